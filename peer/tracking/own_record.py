"""The record of a peer that trains, from its events."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from dht.host import PeerId
from dht.quantities import short_peer
from peer.config.peer_config import PeerConfig
from peer.events.peer_events import Event
from peer.tracking.recorder import Recorder
from peer.tracking.rows import OWN_COLUMNS, OwnProgress
from peer.tracking.trackers import Record

CSV_NAME = "metrics.csv"
"""In the peer's data folder."""


def record_of(config: PeerConfig, peer_id: PeerId) -> Record:
    """The record of this peer in its run: the same after every restart with its key.

    Raises:
        ValueError: no tracker was chosen.
    """
    if config.track is None:
        raise ValueError("no tracker was chosen")
    name = f"{config.name or 'peer'}-{short_peer(peer_id)}".replace("/", "-")
    return Record(config.track, config.run_id, name, str(config.data_dir.absolute()), CSV_NAME, OWN_COLUMNS)


@contextlib.contextmanager
def recording(
    config: PeerConfig, peer_id: PeerId, warn: Callable[[str], object]
) -> Iterator[Callable[[Event], object]]:
    """What takes every event, from any thread, while this peer runs; nothing is recorded unless that was chosen.

    Raises:
        UsageFault: the tracker's library is not installed.
    """
    if config.track is None:
        yield lambda event: None
        return
    recorder = Recorder(record_of(config, peer_id), warn)
    lock = threading.Lock()
    progress = OwnProgress()

    def note(event: Event) -> None:
        nonlocal progress
        with lock:
            progress, row = progress.after(event)
            if row is not None:
                recorder.add(row)

    try:
        yield note
    finally:
        recorder.close()
