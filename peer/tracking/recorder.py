"""Pass rows to the tracker's process without ever waiting. A failed tracker costs one warning."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeVar

from dht.ground.errors import LocalFault
from peer.child_process import PIPE, ChildProcess, how_it_ended
from peer.import_path import python_command
from peer.tracking.recorded_rows import Row
from peer.tracking.trackers import Record, check_tracker

T = TypeVar("T")

MAX_WAITING = 1000
"""Rows kept for a tracker that is busy, about half an hour of them; then the oldest are dropped."""
END_SECONDS = 15.0
"""Time for the tracker to store the last rows: several attempts of an upload."""


@dataclass(eq=False)
class Recorder:
    """A record that rows are added to; `add` may be called from any thread.

    Attributes:
        warn: called with a sentence, once, from another thread.
        end_seconds: see `END_SECONDS`.

    Raises:
        UsageFault: the tracker's library is not installed.
    """

    record: Record
    warn: Callable[[str], object]
    end_seconds: float = END_SECONDS

    def __post_init__(self) -> None:
        check_tracker(self.record.kind)
        self._rows: deque[Row] = deque(maxlen=MAX_WAITING)
        self._news = threading.Event()
        self._is_closing = False
        self._process: ChildProcess | None = None
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)
        self._thread.start()

    def add(self, row: Row) -> None:
        """Queue a row for recording."""
        self._rows.append(row)
        self._news.set()

    def close(self) -> None:
        """Wait up to `end_seconds` until the tracker has stored all rows."""
        self._is_closing = True
        self._news.set()
        self._thread.join(self.end_seconds)
        if self._thread.is_alive():
            if self._process is not None:
                self._process.kill()
            self._thread.join(self.end_seconds)

    def _run(self) -> None:
        command = python_command("peer.tracking.tracker_process", json.dumps(asdict(self.record)))
        try:
            process = self._process = ChildProcess(command, "for the tracker", errors=PIPE)
        except LocalFault as fault:
            self._tell(str(fault))
            return
        with contextlib.suppress(OSError):  # it has ended, and reports why
            while not (self._is_closing and not self._rows):
                self._news.wait()
                self._news.clear()
                while self._rows:
                    process.feed(json.dumps(asdict(self._rows.popleft())).encode() + b"\n")
        process.close_input()
        if code := process.wait():
            self._tell(process.last_words() or f"its process {how_it_ended(code)}")
        process.end(0.0)

    def _tell(self, reason: str) -> None:
        self.warn(f"--track {self.record.kind}: {reason}; nothing more is recorded, but everything else continues")


@contextlib.contextmanager
def recording(
    record: Record | None, warn: Callable[[str], object], row_of: Callable[[T], Row | None]
) -> Iterator[Callable[[T], object]]:
    """Yield a function that records a value, callable from any thread. Without a record it does nothing.

    Raises:
        UsageFault: the tracker's library is not installed.
    """
    if record is None:
        yield lambda seen: None
        return
    recorder, lock = Recorder(record, warn), threading.Lock()

    def note(seen: T) -> None:
        with lock:
            if (row := row_of(seen)) is not None:
                recorder.add(row)

    try:
        yield note
    finally:
        recorder.close()
