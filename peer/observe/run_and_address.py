"""The run to observe and the addresses to use: from flags, an invite, or a peer's data folder."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from dht.ground.errors import NobodyReachable, UsageFault
from peer.console.notices import notice
from peer.console.progress import tell_progress
from peer.observe.ended_run import SEARCH_SECONDS, RunEnd, end_signed_here


@dataclass(frozen=True, slots=True)
class Target:
    """The run to observe.

    Attributes:
        addresses: addresses of members to dial first.
        observer_folder: folder of the observer's key and pass, if the run is private.
        is_new: whether this machine has neither the run's manifest nor an invite.
        end: the end of the run, if known.
        timeout_seconds: time to find a member that has the state.
    """

    run_id: str
    addresses: list[str]
    observer_folder: Path
    is_new: bool = False
    end: RunEnd | None = None
    timeout_seconds: float = 20.0

    def look_first(self, timeout_seconds: float) -> None:
        """Wait until a peer answers, and check that it is of this run, before anything heavy is loaded.

        Raises:
            UsageFault: a different run is trained there.
            NobodyReachable: no peer answered in time.
            Incompatible: no peer answered, and the run has ended.
        """
        from peer.network.membership.address_check import look_first

        advice = "" if self.observer_folder.exists() else "; a private run needs --invite FILE"
        if self.end is not None:
            tell_progress(f"{self.end.known}; looking for a member that still answers")
            timeout_seconds = min(timeout_seconds, SEARCH_SECONDS)
        try:
            look_first(self.run_id, self.addresses, timeout_seconds, asks=self.is_new, advice=advice)
        except NobodyReachable as fault:
            raise fault if self.end is None else self.end.nobody_left(self.addresses) from fault


def checked_target(
    run_id: str | None,
    peers: list[str] | None,
    invite_source: str | None = None,
    data_dir: str | None = None,
    end: RunEnd | None = None,
) -> Target:
    """Return the run and the addresses from which an observer starts.

    Without `--peers`, the addresses come from the invite, from the peer in the data folder (its own and its members'),
    or from the run's page, if the manifest on this machine contains one.

    A stopped seed of this machine is reported at once, because it may be the reason why no member answers.

    Args:
        end: the end of the run, if its page has reported it.

    Raises:
        UsageFault: no run or no address is known, or the invite is unusable.
        Incompatible, NobodyReachable: the run has ended, or is to end, and no address is known.
    """
    from peer.config.peer_config import ADDRESSES_NAME, load_config, read_cached_peers
    from peer.data_folder.run_folders import stopped_seed
    from peer.observe.known_addresses import addresses_elsewhere, no_address, page_of

    flags: dict[str, object] = {"run_id": run_id, "peers": peers or None, "data_dir": data_dir}
    if invite_source is None:
        config = load_config(flags)
    else:
        from peer.network.membership.invitation import read_invite, with_invite
        from peer.observe.observer_entry import keep_observer_invite

        invite = read_invite(invite_source)
        config = load_config(with_invite(flags, invite))
        keep_observer_invite(invite, config.observer_path)
    here = [*read_cached_peers(config.data_dir / ADDRESSES_NAME), *read_cached_peers(config.cached_peers_path)]
    if data_dir is None:
        here += addresses_elsewhere(config.run_id)
    end = end_signed_here(config.run_id, config.data_dir) or end
    if not (config.peers or (end is not None and end.is_over)) and (sentence := stopped_seed(config.run_id)):
        notice(f"{sentence[0].upper()}{sentence[1:]}.")
    addresses = list(config.peers) or list(dict.fromkeys(here))
    if not addresses and (says := page_of(config)) is not None:
        addresses = says.peers or []
    if not addresses:
        raise no_address(config.run_id, config.data_dir) if end is None else end.nobody_left()
    folder = config.observer_path
    if data_dir is not None and not folder.exists():
        # An earlier invite for observing may have been used from the default folder.
        with contextlib.suppress(UsageFault):
            folder = load_config({"run_id": config.run_id}).observer_path
    is_new = not folder.exists() and not config.run_record_path.exists()
    return Target(config.run_id, addresses, folder, is_new, end)
