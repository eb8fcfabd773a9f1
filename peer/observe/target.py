"""Which run an observer looks at, and through whom: from flags, an invite, or a peer's data folder."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from dht.errors import NobodyReachable, UsageFault


@dataclass(frozen=True, slots=True)
class Target:
    """What an observer looks at.

    Attributes:
        addresses: of members to dial first.
        observer_folder: where its key and pass are, if the run is private.
        is_new: nothing of the run is on this machine, neither its manifest nor an invite.
        ended: what is known here of the run's end, as the beginning of a sentence.
    """

    run_id: str
    addresses: list[str]
    observer_folder: Path
    is_new: bool = False
    ended: str = ""

    def look_first(self, timeout_seconds: float) -> None:
        """Before anything heavy is loaded: wait until somebody answers, and see that it is this run.

        Raises:
            UsageFault: another run is trained there.
            NobodyReachable: nobody answered in time.
        """
        from peer.network.membership.first_look import look_first

        advice = "" if self.observer_folder.exists() else "; a private run needs --invite FILE"
        try:
            look_first(self.run_id, self.addresses, timeout_seconds, asks=self.is_new, advice=advice)
        except NobodyReachable as fault:
            raise NobodyReachable(f"{self.ended}; {fault}") if self.ended else fault from None


def checked_target(
    run_id: str | None, peers: list[str] | None, invite_source: str | None = None, data_dir: str | None = None
) -> Target:
    """The run and the addresses an observer starts from.

    Without `--peers`, those of the invite, or of the peer in the data folder (its own, and those it met). Or those that
    the run's page gives, if its manifest is here and names one.

    Raises:
        UsageFault: no run or no address is known, or the invite cannot be used.
    """
    from peer.config.peer_config import ADDRESSES_NAME, load_config, read_cached_peers
    from peer.observe.kept_manifest import end_signed_here
    from peer.observe.known_addresses import addresses_elsewhere, addresses_of_page, no_address

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
    if data_dir is None:
        here += addresses_elsewhere(config.run_id)
    addresses = list(config.peers) or list(dict.fromkeys(here)) or addresses_of_page(config)
    if not addresses:
        raise no_address(config.run_id, config.data_dir)
    folder = config.observer_path
    if data_dir is not None and not folder.exists():
        # An earlier invitation to look may have been used from the default folder.
        with contextlib.suppress(UsageFault):
            folder = load_config({"run_id": config.run_id}).observer_path
    is_new = not folder.exists() and not config.run_record_path.exists()
    ended = end_signed_here(config.run_record_path, config.run_id)
    return Target(config.run_id, addresses, folder, is_new, ended)
