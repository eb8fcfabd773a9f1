"""The record of a run, which one page writes."""

from __future__ import annotations

from typing import get_args

from dht.errors import UsageFault
from peer.config.peer_config import TrackerKind, load_config
from peer.tracking.rows import RUN_COLUMNS
from peer.tracking.trackers import Record, check_tracker

CSV_NAME = "run-metrics.csv"
"""In the data folder of the run."""
NAME = "swarm"


def run_record(run_id: str, kind: str) -> Record:
    """The record of a run, the same after every restart of its page.

    Raises:
        UsageFault: there is no such tracker, or its library is not installed.
    """
    for known in get_args(TrackerKind):
        if kind == known:
            check_tracker(known)
            return Record(known, run_id, NAME, str(load_config({"run_id": run_id}).data_dir), CSV_NAME, RUN_COLUMNS)
    raise UsageFault(f"--track is {kind!r}; expected one of {', '.join(get_args(TrackerKind))}.")
