"""The newest events of an event log, and the events that are added later."""

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
"""Holds several days of one peer's events; remotes refused before then have been forgiven."""


def tail_lines(path: Path) -> list[bytes]:
    """Return the newest lines of a log, oldest first; if the log is short, start with lines of the earlier log.

    Raises:
        OSError: the log cannot be read.
    """
    tail, earlier = _tail_of(path, LOG_TAIL_BYTES), b""
    if len(tail) < LOG_TAIL_BYTES:
        with contextlib.suppress(FileNotFoundError):
            earlier = _tail_of(earlier_log(path), LOG_TAIL_BYTES - len(tail))
    return (earlier + tail).splitlines()


def events_in(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the event of each line; skip lines that this software cannot read."""
    for line in lines:
        with contextlib.suppress(ValueError):  # cut, or from other software
            yield from_json(line[: MAX_LINE_BYTES + 1])


def last_events(path: Path, count: int) -> tuple[list[Event], int]:
    """Return the newest events of a log, oldest first, and the log's length in bytes.

    Raises:
        OSError: the log cannot be read.
    """
    size = path.stat().st_size
    return list(events_in(tail_lines(path)[-count:] if count else [])), size


def newer_events(path: Path, position: int) -> tuple[list[Event], int]:
    """Return the events written after `position`, and the position after the last complete line.

    If a new log has replaced it since, read the new log from its start.

    Raises:
        OSError: the log cannot be read.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return [], 0  # the log is being rotated at this moment
    with file:
        begin = position if position <= os.fstat(file.fileno()).st_size else 0
        file.seek(begin)
        content = file.read(LOG_TAIL_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    return list(events_in(whole.splitlines())), begin + len(whole)


def work_in_log(path: Path, run_id: str, me: PeerId) -> tuple[int, int]:
    """Return (tokens, rounds contributed to) of a peer in all its sessions, from the newest session in its log.

    A peer that was killed did more work than its checkpoint records, and other members count that work. Both numbers
    are 0 if the log has no session of this run.
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
    """Reads events of one or more logs, ordered by time, each with the path of its log.

    Raises:
        OSError: from each method: a log cannot be read.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._positions: dict[Path, int] = {}

    def last(self, count: int) -> list[tuple[Path, Event]]:
        """Return the newest `count` events of all logs together."""
        return self._read(lambda path: last_events(path, count))[-count:]

    def newer(self) -> list[tuple[Path, Event]]:
        """Return the events written since the last call."""
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
