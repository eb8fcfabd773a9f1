"""Which run an observer looks at, and through whom: from flags, an invite, or a peer's data folder."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dht.errors import LocalFault, PeerFault, UsageFault

if TYPE_CHECKING:
    from peer.config.peer_config import PeerConfig


@dataclass(frozen=True, slots=True)
class Target:
    """What an observer looks at.

    Attributes:
        addresses: of members to dial first.
        observer_folder: where its key and pass are, if the run is private.
    """

    run_id: str
    addresses: list[str]
    observer_folder: Path


def check_addresses(config: PeerConfig) -> None:
    """Before a peer joins: ask the run's page for addresses, if its owner named one and none was given by hand.

    They are kept beside those of earlier sessions. A page that does not answer costs a line.

    Raises:
        UsageFault: nobody is known, and the run does not begin on this machine.
    """
    from peer.config.peer_config import read_cached_peers, write_cached_peers

    if config.peers:
        return
    known = read_cached_peers(config.cached_peers_path)
    found = addresses_of_page(config)
    if found:
        write_cached_peers(config.cached_peers_path, [*found, *known])
    elif not known and not config.run_record_path.exists():
        raise no_address(config.run_id, config.data_dir)


def addresses_of_page(config: PeerConfig) -> list[str]:
    """What the page of a run gives that its owner named in the manifest here; nothing, and a line, when it fails."""
    page = _page_here(config.run_record_path, config.run_id)
    if page is None:
        return []
    from peer.observe.run_page import ask_page

    try:
        says = ask_page(page)
    except LocalFault as fault:
        _say(f"{fault} Going on with the addresses of earlier sessions.")
        return []
    if says.run_id != config.run_id:
        _say(f"The page {page} names {says.run_id} now, not {config.run_id}; its addresses are not used.")
        return []
    return list(says.addresses)


def _page_here(record_path: Path, run_id: str) -> str | None:
    from dht.records.signed_records import MAX_RUN_RECORD_BYTES, decode_run_record
    from dht.regular_files import read_regular
    from peer.config.manifest import RunManifest

    try:
        record = decode_run_record(read_regular(record_path, MAX_RUN_RECORD_BYTES), run_id=run_id)
        return RunManifest.from_bytes(record.manifest).page_address
    except (OSError, ValueError, PeerFault):
        return None  # whoever needs the manifest says what is wrong with it


def _say(sentence: str) -> None:
    print(f"peer: {sentence}", file=sys.stderr, flush=True)


def no_address(run_id: str, data_dir: Path) -> UsageFault:
    """What is said when nobody to ask for a run is known."""
    return UsageFault(
        f"No address of a member of {run_id} is known in {data_dir}; expected --peers MULTIADDR, or the address of the "
        "run's page in place of its id; `peer seed` prints one, too."
    )


def checked_target(
    run_id: str | None, peers: list[str] | None, invite_source: str | None = None, data_dir: str | None = None
) -> Target:
    """The run and the addresses an observer starts from.

    Without `--peers`, those of the invite, or of the peer in the data folder (its own, and whom it met), or those that
    the run's page gives, if its manifest is here and names one.

    Raises:
        UsageFault: no run or no address is known, or the invite cannot be used.
    """
    from peer.config.peer_config import ADDRESSES_NAME, load_config, read_cached_peers

    flags: dict[str, object] = {"run_id": run_id, "peers": peers or None, "data_dir": data_dir}
    if invite_source is None:
        config = load_config(flags)
    else:
        from peer.network.membership.invitation import read_invite, with_invite
        from peer.observe.entry import keep_observer_invite

        invite = read_invite(invite_source)
        config = load_config(with_invite(flags, invite))
        keep_observer_invite(invite, config.observer_path)
    here = [*read_cached_peers(config.data_dir / ADDRESSES_NAME), *read_cached_peers(config.cached_peers_path)]
    addresses = list(config.peers) or list(dict.fromkeys(here)) or addresses_of_page(config)
    if not addresses:
        raise no_address(config.run_id, config.data_dir)
    folder = config.observer_path
    if data_dir is not None and not folder.exists():
        # An earlier invitation to look may have been used from the default folder.
        with contextlib.suppress(UsageFault):
            folder = load_config({"run_id": config.run_id}).observer_path
    return Target(config.run_id, addresses, folder)
