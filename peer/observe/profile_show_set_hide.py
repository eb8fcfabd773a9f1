"""`peer profile show`, `set` and `hide`."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path

from dht.ground.errors import UsageFault
from dht.ground.host import PeerId
from dht.ground.quantities import plural
from dht.identity.keys import Identity
from dht.records.profiles import encode_profile
from peer.config.peer_config import load_config
from peer.network.membership.profile_file import (
    Choice,
    changed,
    choice_path,
    load_contributor,
    profile_of,
    read_choice,
    write_choice,
)
from peer.observe.observer import observe
from peer.observe.observer_entry import observer_entry
from peer.observe.run_and_address import Target, checked_target

PUBLISH_SECONDS = 30.0


def show_profile(key_path: Path, as_json: bool) -> int:
    """Print the contributor's id and choice.

    Raises:
        UsageFault: there is no key, or it cannot be read.
    """
    if not key_path.exists():
        raise UsageFault(
            f"you have no profile yet ({key_path} does not exist); `peer profile set --name Ada` creates one"
        )
    contributor = load_contributor(key_path, create=False)
    choice = read_choice(choice_path(key_path))
    if as_json:
        print(json.dumps({"contributor_id": contributor.peer_id, **asdict(choice)}, indent=2))
    else:
        _print(contributor, choice, key_path)
    return 0


def set_profile(
    key_path: Path,
    name: str | None,
    country: str | None,
    team: str | None,
    machines: tuple[str, ...] | None,
    run_id: str | None,
    peers: list[str],
) -> int:
    """Change the choice; arguments that are None stay unchanged. With a run the profile is published at once.

    Raises:
        UsageFault: no argument is given, a value is invalid, or a file is unusable.
        LocalFault: the run was not reached.
    """
    if (name, country, team, machines) == (None,) * 4 and (run_id is None or not key_path.exists()):
        raise UsageFault("no value is given; expected --name, --country, --team or --machine")
    _check_run(run_id, peers)
    ids = None if machines is None else tuple(PeerId(machine) for machine in machines)
    contributor = load_contributor(key_path, create=True)
    choice = changed(
        read_choice(choice_path(key_path)), time.time(), name=name, country=country, team=team, machines=ids
    )
    return _keep(contributor, choice, key_path, run_id, peers)


def hide_profile(key_path: Path, run_id: str | None, peers: list[str]) -> int:
    """Withdraw name, country and team.

    Raises:
        UsageFault: there is no key, or a file is unusable.
        LocalFault: the run was not reached.
    """
    _check_run(run_id, peers)
    contributor = load_contributor(key_path, create=False)
    choice = changed(read_choice(choice_path(key_path)), time.time(), is_hidden=True)
    return _keep(contributor, choice, key_path, run_id, peers)


def _check_run(run_id: str | None, peers: list[str]) -> None:
    """Check the run before anything is written. Raises UsageFault: the run id or an address is invalid, or
    has no run.
    """
    if run_id is not None:
        load_config({"run_id": run_id, "peers": peers or None})
    elif peers:
        raise UsageFault("--peers is given without --run-id; expected both, to publish at once, or neither")


def _keep(contributor: Identity, choice: Choice, key_path: Path, run_id: str | None, peers: list[str]) -> int:
    write_choice(choice_path(key_path), choice)
    _print(contributor, choice, key_path)
    if run_id is None:
        print("Your running peers on this machine that use this key file publish it within seconds.")
        print("If no peer runs here, publish it yourself: add --run-id ID.")
        return 0
    target = checked_target(run_id, peers)
    num_copies = asyncio.run(_publish(contributor, choice, target))
    kept = "keeps" if num_copies == 1 else "keep"
    print(f"Published in {target.run_id}: {plural(num_copies, 'member')} of the run {kept} it.")
    return 0 if num_copies else 1


async def _publish(contributor: Identity, choice: Choice, target: Target) -> int:
    run_id, entry = target.run_id, observer_entry(target.run_id, target.observer_folder)
    async with observe(run_id, target.addresses, PUBLISH_SECONDS, entry=entry) as observer:
        profile = profile_of(choice, contributor, run_id, time.time())
        encoded = encode_profile(profile, contributor)
        return await observer.store.publish_profile(run_id, profile.contributor_id, encoded, profile.expires_at)


def _print(contributor: Identity, choice: Choice, key_path: Path) -> None:
    print(f"contributor  {contributor.peer_id}")
    print(f"key file     {key_path} (keep a copy: credit belongs to this key)")
    shown = "hidden" if choice.is_hidden else choice.name or "none"
    print(f"name         {shown}")
    print(f"country      {choice.country or 'none'}")
    print(f"team         {choice.team or 'none'}")
    for machine in choice.machines:
        print(f"machine      {machine}")
