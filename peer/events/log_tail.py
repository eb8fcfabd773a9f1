"""The end of an event log, and what is added to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from averaging.rounds.round_facts import RoundCommitted
from dht.ground.host import PeerId
from dht.ground.regular_files import open_regular
from peer.events.event_log import MAX_LINE_BYTES, from_json
from peer.events.peer_events import Event, JoinedRun, LeftRun, TrainingProgressed
from peer.events.rotating_log import earlier_log

LOG_TAIL_BYTES = 8 << 20
"""Days of one peer's events; what was refused before them is forgiven long since."""


def tail_lines(path: Path) -> list[bytes]:
    """The newest lines of a log, oldest first; before them those of the earlier one, where this one has just begun.

    Raises:
        OSError: the log cannot be read.
    """
    tail, earlier = _tail_of(path, LOG_TAIL_BYTES), b""
    if len(tail) < LOG_TAIL_BYTES:
        with contextlib.suppress(FileNotFoundError):
            earlier = _tail_of(earlier_log(path), LOG_TAIL_BYTES - len(tail))
    return (earlier + tail).splitlines()


def events_in(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events of lines that hold one, as this software knows them."""
    for line in lines:
        with contextlib.suppress(ValueError):  # cut, or from other software
            yield from_json(line[: MAX_LINE_BYTES + 1])


def last_events(path: Path, count: int) -> tuple[list[Event], int]:
    """The newest events of a log, oldest first, and where it ends.

    Raises:
        OSError: the log cannot be read.
    """
    size = path.stat().st_size
    return list(events_in(tail_lines(path)[-count:] if count else [])), size


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
    return list(events_in(whole.splitlines())), begin + len(whole)


def work_in_log(path: Path, run_id: str, me: PeerId) -> tuple[int, int]:
    """(tokens, rounds contributed to) of a peer in all its sessions, as the newest one in its log says.

    A peer that was killed did more than its checkpoint knows, and others count that. Zeros where no log tells.
    """
    lines: list[bytes] = []
    with contextlib.suppress(OSError):
        lines = tail_lines(path)
    tokens = rounds = 0
    for event in events_in(reversed(lines)):
        if event.peer_id != me:
            break
        match event.fact:
            case LeftRun() as left:
                return max(tokens, left.tokens), rounds + left.rounds_contributed
            case TrainingProgressed() as progress:
                tokens = max(tokens, progress.tokens)
            case RoundCommitted() as committed:
                rounds += me in committed.contributors
            case JoinedRun() as joined:
                if joined.run_id != run_id:
                    return 0, 0
                return max(tokens, joined.earlier_tokens), rounds + joined.earlier_rounds
    return tokens, rounds


class LogReader:
    """The events of one or more logs, in the order of their times, each with the path of its log.

    Raises:
        OSError: of each method: a log cannot be read.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._positions: dict[Path, int] = {}

    def last(self, count: int) -> list[tuple[Path, Event]]:
        """The newest `count` of all together."""
        return self._read(lambda path: last_events(path, count))[-count:]

    def newer(self) -> list[tuple[Path, Event]]:
        """Those that were written since the last call."""
        return self._read(lambda path: newer_events(path, self._positions[path]))

    def _read(self, read: Callable[[Path], tuple[list[Event], int]]) -> list[tuple[Path, Event]]:
        found = []
        for path in self._paths:
            events, self._positions[path] = read(path)
            found += [(path, event) for event in events]
        return sorted(found, key=lambda one: one[1].at)


def _tail_of(path: Path, num_bytes: int) -> bytes:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - num_bytes))
        return file.read(num_bytes)
