"""The process that has a tracker: a row in JSON on each line of its standard input; it ends when that ends.

Output of the library leads nowhere. What ends the process is one sentence on its standard error.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.fields import printable
from peer.tracking.recorded_rows import Row, StepCount
from peer.tracking.trackers import Record, open_tracker

WRITER_SECONDS = 20.0
"""For an earlier writer of the same record to end: longer than a recorder waits for its last rows."""
_LOOK_SECONDS = 0.1
_NOTE_BYTES = 48
"""Two numbers of at most 20 digits, and room."""


def take_rows(record: Record, lines: Iterable[str], writer_seconds: float = WRITER_SECONDS) -> None:
    """Write each line's row into the tracker of `record`, and close it.

    Args:
        writer_seconds: see `WRITER_SECONDS`.

    Raises:
        UsageFault: another process still writes this record.
        Exception: of the tracker.
    """
    with _only_writer(record, writer_seconds) as note:
        tracker = open_tracker(record)
        steps = StepCount(*_numbers_in(note)) if record.counts_on else StepCount()
        try:
            for line in lines:
                fields = json.loads(line)
                tracker.write(Row(steps.next(fields["step"]), fields["at"], fields["values"]))
                with contextlib.suppress(OSError):  # a full disk: the next row says it again
                    os.pwrite(note, f"{steps.last} {steps.lost}\n".ljust(_NOTE_BYTES).encode(), 0)
        finally:
            tracker.close()


def _numbers_in(note: int) -> list[int]:
    """The last step of earlier sessions, and how many of their steps were lost; none: there were none."""
    words = os.pread(note, _NOTE_BYTES, 0).split()
    return [int(word) for word in words] if len(words) == 2 and all(map(bytes.isdigit, words)) else []


@contextlib.contextmanager
def _only_writer(record: Record, seconds: float) -> Iterator[int]:
    """Two writers would put every row into the record twice. Gives the descriptor of the file that they lock."""
    path = Path(record.folder) / f"{Path(record.file).stem}.{record.kind}.lock"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    end = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    raise UsageFault(
                        f"another process records {record.name} of {record.run_id}; expected one writer of a record; "
                        "leave --track out here, or end the other one"
                    ) from error
                time.sleep(_LOOK_SECONDS)
            except OSError:
                break  # a file system without locks: there each owner has to take care
        yield descriptor
    finally:
        os.close(descriptor)


def main() -> int:
    """Entry point: `python -m peer.tracking.tracker_process RECORD`, RECORD in JSON."""
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
