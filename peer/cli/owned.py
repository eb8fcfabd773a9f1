"""The run in its owner's folder, for the commands of an owner."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from dht.ground.errors import UsageFault
from peer.observe.named_run import named_run

OwnedRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="The run: its id, the name of a run created on this machine, or the folder that `peer init` wrote.",
        show_default=False,
    ),
]


def owned_run(run: str | None, run_id: str | None, data_dir: str | None) -> Any:
    """Return the run in its owner's folder: the given folder, the default one, or the folder of `peer init --out`."""
    from peer.observe.run_names import owned_folders
    from peer.owner.owned_run import open_owned_run
    from peer.user_folders import expanded

    if run is not None and expanded(run).exists():
        if data_dir is not None or run_id is not None:
            raise UsageFault(f"{run} and {'--data-dir' if data_dir else '--run-id'} are given; expected one of them.")
        place = expanded(run)
        return open_owned_run(None, place if place.is_dir() else place.parent)
    if run is not None and (run.startswith((".", "~")) or ("/" in run and "://" not in run)):
        raise UsageFault(f"{run} does not exist; expected a folder that `peer init` wrote, or a run id or name")
    named = named_run(run, run_id, None)[0]
    if data_dir is None and named is not None:
        data_dir = next(map(str, owned_folders(named)), None)
    return open_owned_run(named, data_dir)


def publish_if_known(owned: Any, addresses: list[str], timeout: float) -> bool:
    """Publish the signed revision and return True, or return False if no address of a member is known.

    Raises:
        NobodyReachable: no member answers; the revision stays signed, for a later `peer manifest publish`.
    """
    from dht.ground.errors import NobodyReachable
    from peer.owner.publish import publish

    if not addresses:
        return False
    try:
        publish(owned, addresses, timeout)
    except NobodyReachable as fault:
        raise NobodyReachable(
            f"revision {owned.manifest.revision} is signed, but not published: {fault}; run "
            f"`{for_owner(owned, 'publish')}` when a member is online"
        ) from fault
    return True


def and_published(owned: Any, published: bool) -> str:
    return " and published" if published else f"; run `{for_owner(owned, 'publish')}` when a member is online"


def for_owner(owned: Any, step: str) -> str:
    """Return the command for the next step with this run's manifest, to be run in the same working directory."""
    return shlex.join(["peer", "manifest", step, "--data-dir", str(owned.folder)])
