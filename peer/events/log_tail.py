"""The end of an event log, and what is added to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from dht.regular_files import open_regular
from peer.events.line_log import earlier_log
from peer.events.log import MAX_LINE_BYTES, from_json
from peer.events.peer_events import Event

LOG_TAIL_BYTES = 8 << 20
"""Days of one peer's events; what was refused before them is forgiven long since."""


def tail_of(path: Path, num_bytes: int) -> bytes | None:
    """The last bytes of a file; None without one."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return None
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - num_bytes))
        return file.read(num_bytes)


def last_events(path: Path, count: int) -> tuple[list[Event], int]:
    """The newest events of a log, oldest first, and where it ends.

    Raises:
        OSError: the log cannot be read.
    """
    size = path.stat().st_size
    lines = (tail_of(path, LOG_TAIL_BYTES) or b"").splitlines()
    if len(lines) < count and size < LOG_TAIL_BYTES:
        lines = [*(tail_of(earlier_log(path), LOG_TAIL_BYTES) or b"").splitlines(), *lines]
    return _events(lines[-count:] if count else []), size


def newer_events(path: Path, position: int) -> tuple[list[Event], int]:
    """Events that were written since, and where the whole lines end now; a log that was begun again is read anew.

    Raises:
        OSError: the log cannot be read.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return [], 0  # just now it becomes the earlier one
    with file:
        begin = position if position <= os.fstat(file.fileno()).st_size else 0
        file.seek(begin)
        content = file.read(LOG_TAIL_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    return _events(whole.splitlines()), begin + len(whole)


def _events(lines: Iterable[bytes]) -> list[Event]:
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # cut, or of later software
            found.append(from_json(line[: MAX_LINE_BYTES + 1]))
    return found
