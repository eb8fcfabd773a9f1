"""The record of a peer that trains, and that of a run, which one page writes; both are the same after a restart."""

from __future__ import annotations

from typing import get_args

from dht.errors import UsageFault
from dht.host import PeerId
from dht.quantities import short_peer
from peer.config.peer_config import PeerConfig, TrackerKind, load_config
from peer.tracking.rows import OWN_COLUMNS, RUN_COLUMNS
from peer.tracking.trackers import Record, check_tracker


def own_record(config: PeerConfig, peer_id: PeerId) -> Record | None:
    """The record of this peer in its run, which its key gives; None: no tracker was chosen."""
    if config.track is None:
        return None
    name = f"{config.name or 'peer'}-{short_peer(peer_id)}".replace("/", "-")
    folder = str(config.data_dir.absolute())
    return Record(config.track, config.run_id, name, folder, "metrics.csv", OWN_COLUMNS, counts_on=True)


def run_record(run_id: str, kind: str) -> Record:
    """The record of a run.

    Raises:
        UsageFault: there is no such tracker, or its library is not installed.
    """
    for known in get_args(TrackerKind):
        if kind == known:
            check_tracker(known)
            folder = str(load_config({"run_id": run_id}).data_dir)
            return Record(known, run_id, "swarm", folder, "run-metrics.csv", RUN_COLUMNS)
    raise UsageFault(f"--track is {kind!r}; expected one of {', '.join(get_args(TrackerKind))}.")
