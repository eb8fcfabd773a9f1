"""The process that has a tracker: a row in JSON on each line of its standard input; it ends when that ends.

Output of the library leads nowhere. What ends the process is one sentence on its standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable

from dht.errors import LocalFault
from dht.fields import printable
from peer.tracking.rows import Row
from peer.tracking.trackers import Record, open_tracker


def take_rows(record: Record, lines: Iterable[str]) -> None:
    """Write each line's row into the tracker of `record`, and close it.

    Raises:
        Exception: of the tracker.
    """
    tracker = open_tracker(record)
    try:
        for line in lines:
            fields = json.loads(line)
            tracker.write(Row(fields["step"], fields["at"], fields["values"]))
    finally:
        tracker.close()


def main() -> int:
    """Entry point: `python -m peer.tracking.process RECORD`, RECORD in JSON."""
    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        # A terminal's Ctrl+C reaches every process; the last rows come after it.
        signal.signal(number, signal.SIG_IGN)
    told = os.fdopen(os.dup(2), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        take_rows(Record(**json.loads(sys.argv[1])), sys.stdin)
    except Exception as error:  # noqa: BLE001  a library's own
        reason = str(error) if isinstance(error, LocalFault | OSError) else f"{type(error).__name__}: {error}"
        told.write(printable(" ".join(reason.split()))[:300])
        told.flush()
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    # Libraries leave threads and handlers behind, which may wait for a network.
    sys.stdout.flush()
    os._exit(code)
