"""A home line in virtual time: senders that pace themselves, the buffers before the line, processors that are late.

Everything is one queue in order. A sender hands over pieces of its frames at its pace, as far as its buffers take them;
they leave at the line's rate, and the remote acknowledges each frame with the time by its own clock. What is late with
that, and by how much, is up to the test. Like `Links`, a sender sends an empty frame ahead after each pause, and has
one to three streams for each remote.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from averaging.lanes.congestion_control import LinePace
from dht.streams.upload_and_download_limits import LARGEST_PIECE_BYTES, PIECE_SECONDS, SMALLEST_PIECE_BYTES, TokenBucket

FRAME_BYTES = 540_000
MBIT = 1e6 / 8
BUFFER_BYTES = 3_000_000
MOST_STREAMS, BYTES_PER_SECOND_OF_STREAM = 3, 1e6
CLOCKS_APART_SECONDS = -1234.5


def on_time(*_: object) -> float:
    """Nobody is late."""
    return 0.0


class Line:
    """A line and the events on it."""

    def __init__(self, bytes_per_second: float, round_trip_seconds: float = 0.03) -> None:
        self.bytes_per_second = bytes_per_second
        self.round_trip_seconds = round_trip_seconds
        self.now = self.free_at = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        """Do `what` then."""
        heapq.heappush(self._events, (when, next(self._numbers), what, arguments))

    def run(self, is_done: Callable[[], bool]) -> None:
        """Until it is."""
        while not is_done():
            when, _, what, arguments = heapq.heappop(self._events)
            self.now = max(self.now, when)
            what(*arguments)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        rang: list[bool] = []
        self.at(self.now + seconds, rang.append, True)
        self.run(lambda: bool(rang))


class Sender:
    """One peer on a line.

    Args:
        remotes: who gets the frames, in turn.
        reading_late: seconds after which a remote reads what has arrived.
        hearing_late: the same for this sender and acknowledgements.
        writing_late: the same for noticing that a frame was written.
        lying: seconds that a remote adds to the time at which it says it has read a frame.
    """

    def __init__(
        self,
        line: Line,
        pace: LinePace,
        remotes: Sequence[str] = ("a", "b", "c"),
        *,
        reading_late: Callable[[str], float] = on_time,
        hearing_late: Callable[[], float] = on_time,
        writing_late: Callable[[], float] = on_time,
        lying: Callable[[str], float] = on_time,
    ) -> None:
        self.line, self.pace, self.remotes = line, pace, remotes
        self.reading_late, self.hearing_late, self.writing_late = reading_late, hearing_late, writing_late
        self.lying = lying
        self.queues_seconds: list[float] = []
        """What lay before the line whenever a piece was handed over, in the latest round."""
        self.seconds = 0.0
        """That the latest round took."""
        self.num_unread = 0
        self._bucket: TokenBucket | None = None
        self._passed_bytes = self._buffered_bytes = 0
        self._blocked: deque[tuple[str, float, int, int]] = deque()
        self._num_waiting = dict.fromkeys(remotes, 0)
        self._num_streams = dict.fromkeys(remotes, 0)
        self._read_at = dict.fromkeys(remotes, 0.0)

    @property
    def pace_of_line(self) -> float:
        """The pace in units of the line's rate; infinite without one."""
        return (self.pace.bytes_per_second or math.inf) / self.line.bytes_per_second

    @property
    def usual_queue_seconds(self) -> float:
        """That was not exceeded by nine of ten pieces."""
        return sorted(self.queues_seconds)[int(0.9 * (len(self.queues_seconds) - 1))]

    def begin(self, num_frames: int) -> None:
        """A round begins, of so many frames."""
        self._began_at, self.num_unread = self.line.now, num_frames
        self.queues_seconds = []
        self.pace.resumed(self.line.now, self._passed_bytes)
        self._steer()
        for index, remote in enumerate(self.remotes):
            self._num_waiting[remote] += (num_frames - index - 1) // len(self.remotes) + 1
        for remote in self.remotes:
            there = max(self.line.now, self.line.free_at) + self.line.round_trip_seconds / 2
            read_at = there + self.reading_late(remote)
            heard_at = read_at + self.line.round_trip_seconds / 2 + self.hearing_late()
            self.line.at(heard_at, self._greeted, remote, self.line.now, read_at)
        for remote in self.remotes:
            self._fill_streams(remote)

    def _greeted(self, remote: str, asked_at: float, read_at: float) -> None:
        said_at = read_at + CLOCKS_APART_SECONDS + self.lying(remote)
        self.pace.greeted(remote, asked_at, said_at, self.line.now)

    def _steer(self) -> None:
        rate = self.pace.bytes_per_second
        if rate is not None and self._bucket is None:
            self._bucket = TokenBucket(rate, self.line.now)
        elif rate is not None and self._bucket is not None:
            self._bucket.change(rate, self.line.now)

    def _fill_streams(self, remote: str) -> None:
        rate, num_lanes = self.pace.bytes_per_second, sum(waiting > 0 for waiting in self._num_waiting.values())
        most = MOST_STREAMS
        if rate is not None and num_lanes:
            most = min(most, math.ceil(rate / num_lanes / BYTES_PER_SECOND_OF_STREAM))
        while self._num_waiting[remote] and self._num_streams[remote] < most:
            self._num_waiting[remote] -= 1
            self._num_streams[remote] += 1
            self._let_pass(remote, self.line.now, FRAME_BYTES)

    def _let_pass(self, remote: str, started_at: float, num_missing: int) -> None:
        piece, wait_seconds = LARGEST_PIECE_BYTES, 0.0
        if self._bucket is not None:
            wanted = math.ceil(self._bucket.bytes_per_second * PIECE_SECONDS)
            piece = min(max(wanted, SMALLEST_PIECE_BYTES), LARGEST_PIECE_BYTES)
            wait_seconds = self._bucket.take(min(piece, num_missing), self.line.now)
        num_bytes = min(piece, num_missing)
        self.line.at(self.line.now + wait_seconds, self._write, remote, started_at, num_missing, num_bytes)

    def _write(self, remote: str, started_at: float, num_missing: int, num_bytes: int) -> None:
        line = self.line
        if self._buffered_bytes and self._buffered_bytes + num_bytes > BUFFER_BYTES:
            self._blocked.append((remote, started_at, num_missing, num_bytes))
            return
        self._buffered_bytes += num_bytes
        self._passed_bytes += num_bytes
        line.free_at = max(line.free_at, line.now) + num_bytes / line.bytes_per_second
        self.queues_seconds.append(line.free_at - line.now)
        line.at(line.free_at, self._left, num_bytes)
        if num_missing > num_bytes:
            self._let_pass(remote, started_at, num_missing - num_bytes)
            return
        written_at = line.now + self.writing_late()
        read_at = max(line.free_at + line.round_trip_seconds / 2 + self.reading_late(remote), self._read_at[remote])
        self._read_at[remote] = read_at
        heard_at = max(read_at + line.round_trip_seconds / 2 + self.hearing_late(), written_at)
        line.at(heard_at, self._heard, remote, written_at, self._passed_bytes, read_at)
        line.at(written_at, self._written, remote)

    def _left(self, num_bytes: int) -> None:
        self._buffered_bytes -= num_bytes
        while self._blocked and self._buffered_bytes + self._blocked[0][3] <= BUFFER_BYTES:
            self._write(*self._blocked.popleft())

    def _written(self, remote: str) -> None:
        self._num_streams[remote] -= 1
        self._fill_streams(remote)

    def _heard(self, remote: str, written_at: float, passed_bytes: int, read_at: float) -> None:
        said_at = read_at + CLOCKS_APART_SECONDS + self.lying(remote)
        self.pace.acknowledged(remote, written_at, passed_bytes, said_at, self.line.now)
        self._steer()
        self.num_unread -= 1
        self.seconds = self.line.now - self._began_at


def play(*senders: Sender, num_rounds: int = 1, num_frames: int = 36, pause_seconds: float = 1.0) -> None:
    """Rounds of all `senders` on one line, each beginning with all of them."""
    line = senders[0].line
    for _ in range(num_rounds):
        for sender in senders:
            sender.begin(num_frames)
        line.run(lambda: not any(sender.num_unread for sender in senders))
        line.wait(pause_seconds)
