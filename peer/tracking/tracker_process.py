"""The process that runs a tracker: it reads one JSON row per line of its standard input, and ends with it.

Output of the library is discarded. If the process fails, the reason is one sentence on its standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable

from peer.child_process import reason_of, taken_stream
from peer.tracking.recorded_rows import Row
from peer.tracking.trackers import Record, open_tracker


def take_rows(record: Record, lines: Iterable[str]) -> None:
    """Write each line's row into the tracker of `record`, and close it.

    Raises:
        Exception: the tracker raised it.
    """
    tracker = open_tracker(record)
    try:
        for line in lines:
            tracker.write(Row(**json.loads(line)))
    finally:
        tracker.close()


def main() -> int:
    """Run `python -m peer.tracking.tracker_process RECORD`, RECORD in JSON."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A terminal's Ctrl+C reaches every process; the last rows come after it.
        signal.signal(number, signal.SIG_IGN)
    reasons = taken_stream(2)
    try:
        take_rows(Record(**json.loads(sys.argv[1])), sys.stdin)
    except Exception as error:  # noqa: BLE001  a library's own
        reasons.write(reason_of(error))
        reasons.flush()
        return 1
    return 0


if __name__ == "__main__":
    # Libraries leave threads and exit handlers behind, which may wait for a network.
    os._exit(main())
