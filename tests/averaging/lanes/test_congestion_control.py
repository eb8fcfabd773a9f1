"""The pace finds a line's rate from acknowledgements alone, stays there, and takes no busy processor for a queue.

A round of 36 frames is 25 M values among four members.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.lanes.congestion_control import FEWEST_FRAMES, MOST_SAMPLES, SLOWEST_BYTES_PER_SECOND, LinePace
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


class Lag:
    """A processor that is late by some seconds, uniformly, while `is_busy`."""

    def __init__(self, least_seconds, most_seconds):
        self.bounds = least_seconds, most_seconds
        self.is_busy = True
        self.random = random.Random(7)

    def __call__(self, *_):
        return self.random.uniform(*self.bounds) if self.is_busy else 0.0


def seconds_of(sender, num_rounds, num_frames=36):
    """What each of some rounds takes."""
    found = []
    for _ in range(num_rounds):
        play(sender, num_frames=num_frames)
        found.append(sender.seconds)
    return found


# ---- a calm line


@pytest.mark.parametrize(
    ("mbit", "round_trip_seconds"),
    [(2, 0.03), (20, 0.005), (20, 0.2), (1000, 0.03), *((mbit, 0.03) for mbit in (8, 17, 18, 19, 20, 22, 24, 33, 100))],
)
def test_a_full_line_stays_full_and_a_ping_across_it_short(mbit, round_trip_seconds):
    """Wherever the pace's steps fall beside the line's rate: the way, and less than 80 ms of queue."""
    sender, num_frames = Sender(Line(mbit * MBIT, round_trip_seconds), LinePace()), max(36, 2 * mbit)
    play(sender, num_rounds=4, num_frames=num_frames)
    for taken in seconds_of(sender, 8, num_frames):
        assert taken < 1.06 * (num_frames * FRAME_BYTES / (mbit * MBIT) + round_trip_seconds)
        assert sender.usual_queue_seconds < 0.08


def test_a_line_that_is_never_full_needs_no_pace():
    sender = Sender(Line(1000 * MBIT), LinePace())
    play(sender, num_rounds=20)
    assert sender.pace.bytes_per_second is None


def test_a_line_that_becomes_slower_or_faster_is_followed():
    line = Line(100 * MBIT)
    sender = Sender(line, LinePace())
    for mbit in (100, 30, 90, 10, 60):
        line.bytes_per_second = mbit * MBIT
        play(sender, num_rounds=6)
        assert 0.8 < sender.pace_of_line < 1.2
        assert sender.usual_queue_seconds < 0.12
        assert sender.seconds < 1.1 * 36 * FRAME_BYTES / line.bytes_per_second + 0.03


@pytest.mark.parametrize("mbit", [20, 100])
def test_two_senders_share_a_line(mbit):
    line = Line(mbit * MBIT)
    one, other = Sender(line, LinePace()), Sender(line, LinePace())
    play(one, other, num_rounds=4)
    for _ in range(6):
        play(one, other)
        assert max(one.seconds, other.seconds) < 1.25 * (2 * 36 * FRAME_BYTES / line.bytes_per_second + 0.03)
        assert one.usual_queue_seconds < 0.2
    assert 0.6 < one.pace.bytes_per_second / other.pace.bytes_per_second < 1.7


# ---- a busy processor is no queue


@pytest.mark.parametrize("lag", [(0, 0.08), (0, 0.12), (0.12, 0.24)])
@pytest.mark.parametrize("whose", [["reading_late"], ["reading_late", "hearing_late"]])
def test_a_late_processor_is_not_a_queue(lag, whose):
    """On 9ce67d9: 0 to 80 ms bring it to 38 Mbit/s of 400 for ever, 0 to 120 ms to 18 and less."""
    late = Lag(*lag)
    sender = Sender(Line(400 * MBIT), LinePace(), **dict.fromkeys(whose, late))
    unpaced = Sender(Line(400 * MBIT), Unpaced(), **dict.fromkeys(whose, Lag(*lag)))
    taken, at_best = seconds_of(sender, 30), seconds_of(unpaced, 30)
    assert sum(taken) < 1.25 * sum(at_best)
    assert max(taken[10:]) < 1.5 * max(at_best)
    assert sender.pace_of_line > 0.5


@pytest.mark.parametrize(("mbit", "lag"), [(20, (0.3, 0.6)), (100, (0.12, 0.24)), (400, (0, 0.08)), (400, (0, 0.3))])
def test_nothing_stays_slow_after_the_load_is_gone(lag, mbit):
    late = Lag(*lag)
    sender = Sender(Line(mbit * MBIT), LinePace(), reading_late=late, hearing_late=late)
    play(sender, num_rounds=12)
    late.is_busy = False
    play(sender)
    for taken in seconds_of(sender, 6):
        assert taken < 1.12 * (36 * FRAME_BYTES / (mbit * MBIT) + 0.03)


# ---- remotes that lie, and clocks


def ever_later(seconds, *who):
    """So much later with every word of `who`."""
    words = count()
    return lambda remote: seconds * next(words) if remote in who else 0.0


def test_one_remote_that_acknowledges_ever_later_slows_nobody_down():
    sender = Sender(Line(50 * MBIT), LinePace(), reading_late=ever_later(0.01, "a"))
    honest = Sender(Line(50 * MBIT), Unpaced(), reading_late=ever_later(0.01, "a"))
    for taken, at_best in zip(seconds_of(sender, 20), seconds_of(honest, 20), strict=True):
        assert taken < 1.1 * at_best
    assert sender.pace_of_line > 0.9


@pytest.mark.parametrize("liars", ["a", "ab"])
def test_remotes_that_say_they_read_ever_later_slow_nobody_down_while_another_does_not(liars):
    sender = Sender(Line(50 * MBIT), LinePace(), lying=ever_later(0.5, *liars))
    for taken in seconds_of(sender, 20):
        assert taken < 1.1 * (36 * FRAME_BYTES / (50 * MBIT) + 0.03)


def test_the_only_remote_can_slow_the_pace_and_not_for_long():
    late = {"is": True}
    sender = Sender(Line(50 * MBIT), LinePace(), ["a"])
    sender.reading_late = lambda _: 0.03 * (36 - sender.num_unread) if late["is"] else 0.0
    assert max(seconds_of(sender, 40)) < 4 * (36 * FRAME_BYTES / (50 * MBIT) + 0.03)
    late["is"] = False
    play(sender, num_rounds=2)
    assert sender.pace_of_line > 0.9


def test_clocks_that_drift_apart_slow_nobody_down():
    line = Line(20 * MBIT)
    sender = Sender(line, LinePace(), lying=lambda _: 1e-3 * line.now)
    for taken in seconds_of(sender, 20):
        assert taken < 1.1 * (36 * FRAME_BYTES / (20 * MBIT) + 0.03)


# ---- what says nothing


def written(pace, at, *, remote="a", passed=0.0, queue=0.0, way=0.015):
    """An acknowledgement of a frame that waited for `queue` seconds."""
    read = at + way + queue
    pace.acknowledged(remote, at, passed, read + CLOCKS_APART_SECONDS, read + way)


def greeted(pace, at, remote="a", way=0.015):
    """The answer to what went ahead."""
    pace.greeted(remote, at, at + way + CLOCKS_APART_SECONDS, at + 2 * way)


@pytest.mark.parametrize("is_gone", [False, True])
def test_acknowledgements_of_nobody_and_of_who_is_gone_count_for_nothing(is_gone):
    pace = LinePace()
    pace.resumed(0.0, 0)
    if is_gone:
        greeted(pace, 0.0)
        pace.forget("a")
    for number in range(20):
        written(pace, 0.5 * number, passed=1e6 * number, queue=5.0)
    assert pace.bytes_per_second is None


def test_what_was_written_before_the_pace_changed_says_nothing_about_it():
    pace = LinePace()
    pace.resumed(0.0, 0)
    greeted(pace, 0.0)
    for number in range(1, FEWEST_FRAMES + 1):
        written(pace, 0.5 * number, passed=1e6 * number, queue=1.0)
    found = pace.bytes_per_second
    assert found is not None
    for number in range(1, FEWEST_FRAMES + 1):
        written(pace, 2.0 + 0.1 * number, passed=1e6 * number, queue=9.0)
    assert pace.bytes_per_second == found


@pytest.mark.parametrize("num_frames", range(1, FEWEST_FRAMES))
def test_a_few_frames_do_not_slow_down(num_frames):
    pace = LinePace()
    for round_at in range(0, 1000, 10):
        pace.resumed(round_at, 1e6 * round_at)
        greeted(pace, round_at)
        for number in range(num_frames):
            written(pace, round_at + 0.4 * number, passed=1e6 * (round_at + number), queue=2.0)
    assert pace.bytes_per_second is None


def test_no_pause_makes_the_pace_slower_than_a_remote_may_be():
    """A frame of a MiB would take longer than its deadline, and its remote be given up."""
    pace = LinePace()
    pace.resumed(0.0, 0)
    greeted(pace, 0.0)
    for number in range(1, 100):
        written(pace, 2.0 * number, passed=1e3 * number, queue=1.5)
        assert (pace.bytes_per_second or math.inf) >= SLOWEST_BYTES_PER_SECOND
    pace.resumed(300.0, 1e5)
    assert pace.bytes_per_second == SLOWEST_BYTES_PER_SECOND


def test_a_little_data_brings_a_slow_pace_back():
    sender = Sender(Line(50 * MBIT), LinePace())
    play(sender, num_rounds=3)
    sender.pace.bytes_per_second = sender.pace._line = 5 * MBIT
    play(sender, num_rounds=20, num_frames=3)
    assert sender.pace_of_line > 0.3


def test_what_is_kept_of_a_stretch_is_bounded():
    pace = LinePace()
    pace.resumed(0.0, 0)
    greeted(pace, 0.0)
    for number in range(100_000):
        written(pace, 1e-6 * number, passed=number)
    assert len(pace._samples) == MOST_SAMPLES


def test_a_queue_gives_the_rate_of_the_line_exactly():
    """A megabyte a second, of which half stays in the queue."""
    pace = LinePace()
    pace.resumed(10.0, 7e6)
    greeted(pace, 10.0)
    for number in range(1, FEWEST_FRAMES + 1):
        written(pace, 10.0 + number, passed=7e6 + 1e6 * number, queue=float(number))
    assert pace.bytes_per_second == pace._line == pytest.approx(0.5e6)
    # The line did not wait for anything meanwhile: what passed, less what stays, is its rate, and the queue must go.
    for number in range(FEWEST_FRAMES + 1, 3 * FEWEST_FRAMES + 1):
        written(pace, 10.0 + number, passed=7e6 + 1e6 * number, queue=float(number))
    assert pace._line == pytest.approx(0.5e6)
    assert pace.bytes_per_second == pytest.approx(0.25e6)


REMOTES = st.sampled_from("abc")
TIMES = st.floats(0, 100)
WORDS = st.one_of(
    st.tuples(st.just("resumed"), st.floats(0, 1e9)),
    st.tuples(st.just("forget"), REMOTES),
    st.tuples(st.just("greeted"), REMOTES, TIMES, st.floats(0, 2**64 * 1e-6)),
    st.tuples(st.just("acknowledged"), REMOTES, TIMES, st.floats(0, 1e9), st.floats(0, 2**64 * 1e-6)),
)


@given(words=st.lists(st.tuples(st.floats(0, 2), WORDS), max_size=60))
def test_whatever_remotes_say_there_is_a_pace_or_none(words):
    pace, now = LinePace(), 0.0
    for pause, (name, *values) in words:
        now += pause
        if name == "forget":
            pace.forget(*values)
        elif name == "resumed":
            pace.resumed(now, *values)
        elif name == "greeted":
            pace.greeted(*values, now)
        else:
            pace.acknowledged(*values, now)
        assert pace.bytes_per_second is None or SLOWEST_BYTES_PER_SECOND <= pace.bytes_per_second < math.inf


class Unpaced(LinePace):
    """Hears everything and learns nothing."""

    def acknowledged(self, *_):
        return
