"""The pace at which bulk data fills this peer's line without filling the queues before it. Pure.

Whoever sends as fast as the operating system takes bytes fills megabytes of buffers and the router's queue; packets are
lost in bursts, connections stop for several round trips, and everything else on the line waits. How long a frame takes
from its last written byte until the remote has read it tells how much lies in between: half a round trip when the line
keeps up, several times that when it does not. The pace follows that delay, as in LEDBAT (RFC 6817), frame by frame
instead of packet by packet.

It begins slowly and becomes half as fast again every few frames, until there is a queue. From then on a stretch of a
second or so is judged at a time. When the line is full, the pace falls below it until the queue has drained, and comes
back to just below where the line was full, from where it goes on in small steps.

The remote says when it has read a frame, by its own clock: what the acknowledgement then waits for, behind the remote's
own data, is no fault of this line. Clocks differ and drift, so after each pause a few bytes go ahead while nothing
queues, and delays are taken against theirs. They never count for more than the whole way there and back took.

A remote can acknowledge late; the median remote counts, therefore. One that acknowledges too early makes the pace too
high, which is what a sender without any pace has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Final

SHORTEST_SECONDS, LONGEST_SECONDS = 0.3, 1.0
"""A stretch of sending is judged when it ends, or after the longer time with enough frames. Shorter ones are noise."""
FEWEST_FRAMES: Final = 6
"""Acknowledged in a stretch, for it to be judged."""
NUM_SHORTEST: Final = 30
"""Stretches and pauses over which the shortest round trip to a remote is remembered: routes change."""
NUM_SHORTEST_WAYS: Final = 8
"""The same for one way, by two clocks that drift apart: a round or two."""
QUEUE_SECONDS: Final = 0.06
"""What may lie between the last written byte and the line: about half of the queue of a home router."""
SHORT_TRIP_SECONDS: Final = 0.05
TRIPS_TO_RESUME: Final = 5
"""What a round trip is longer than the above, so many times, may lie there as well: connections take that long to get
going again after every pause, and what they have not sent yet waits."""
LONGEST_QUEUE_SECONDS: Final = 0.3
"""Nothing waits longer for that: even the shortest delay is a queue then."""
BEGINNING_BYTES_PER_SECOND: Final = 25e6 / 8
"""Before anything is known of the line. Without a pace the first second fills megabytes of buffers, and what is lost in
each other's queues keeps everybody from finding out for many rounds."""
BEGINNING_SECONDS: Final = 0.1
"""A stretch is judged after so long, in the beginning."""
BEGINNING_FACTOR: Final = 1.5
"""From stretch to stretch, until there is a queue."""
BEGINNING_BOUND_SHARE: Final = 0.3
"""In place of BOUND_SHARE, in the beginning: short stretches wait for streams that open, and for the last frame."""
GUESSED_SHARE: Final = 2.5
"""Of what is delivered in the first stretch, in which streams open: the line takes no more, give or take."""
LEAST_GUESSED_SHARE: Final = 0.125
"""Of the pace before: a process that stood still delivers next to nothing, and not because of its line."""
BOUND_SHARE: Final = 0.7
"""Of the pace that was sent at least, for a stretch to say that more would have gone."""
FEWEST_TO_STOP: Final = 3
"""Frames of which most waited in a queue, to end the beginning at once."""
LITTLE_QUEUE, SOME_QUEUE, FULL_QUEUE = 0.25, 0.5, 1.0
"""Delays, in units of what may be there. Beyond the last one the line is full."""
STEP_WITH_LITTLE, STEP_WITH_SOME = 1.2, 1.08
"""The pace is multiplied by so much."""
STEP_BELOW_OVERFULL: Final = 1.1
"""At most, while it is below a pace that has filled the line."""
LEAST_FULL_SHARE: Final = 0.9
"""Of a pace that filled the line: the line takes that much, however slow the pace before was."""
NEAR_SHARE: Final = 0.97
"""Of the pace at which the line was last found to be full: many a queue is empty at 95 % of the line, full at 98 %."""
RETURN_STEP, FURTHER_STEP = 0.05, 0.005
"""More than the pace, before it is so near again and, if there is hardly any queue, from there on. The second such step
is twice, the third three times as large."""
NEVER_FULL_SHARE: Final = 1.05
"""Of that pace: it goes without a queue, so the line has become faster, or was not full then."""
LEAST_DRAINING_SHARE: Final = 0.6
"""Of the pace that comes after it, while a queue drains."""
STILL_FULL_SHARE, STILL_OVERFULL_SHARE = 0.95, 0.85
"""Of the pace that was to come after draining, if the queue is no shorter; the second one for a long queue."""
LONG_QUEUE: Final = 4.0
DRAINING_SHARE: Final = 0.9
"""Of the delay before: it falls already, and what is left of it was written at an earlier pace."""
LEAST_SHARE: Final = 0.8
"""Of what is being delivered, whatever the delays: somebody else's queue is no reason to send less."""
SLOWEST_BYTES_PER_SECOND: Final = 16_000.0


def queue_seconds(round_trip_seconds: float) -> float:
    """What may lie between the last written byte and the line."""
    longer_seconds = TRIPS_TO_RESUME * (round_trip_seconds - SHORT_TRIP_SECONDS)
    return min(max(QUEUE_SECONDS, longer_seconds), LONGEST_QUEUE_SECONDS)


@dataclass(slots=True)
class _Route:
    """To one remote: its delays in this stretch, and the shortest of earlier ones."""

    trips: list[float] = field(default_factory=list)
    ways: list[float] = field(default_factory=list)
    """One way, by the clocks of both ends: only differences mean anything."""
    shortest_trips: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_SHORTEST))
    shortest_ways: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_SHORTEST_WAYS))

    def queues(self) -> float:
        """The median delay beyond the shortest, in units of what may be there."""
        shortest_trip, shortest_way = min([*self.shortest_trips, *self.trips]), min([*self.shortest_ways, *self.ways])
        seconds = min(median(self.trips) - shortest_trip, median(self.ways) - shortest_way)
        return seconds / queue_seconds(shortest_trip)

    def remember(self) -> None:
        """Keep the shortest of this stretch and begin a new one."""
        self.shortest_trips.append(min(self.trips))
        self.shortest_ways.append(min(self.ways))
        self.clear()

    def clear(self) -> None:
        """Begin a new stretch."""
        self.trips, self.ways = [], []


class LinePace:
    """Tell it what was written and acknowledged; `bytes_per_second` is the pace."""

    def __init__(self) -> None:
        self.bytes_per_second = BEGINNING_BYTES_PER_SECOND
        self._is_beginning = True
        """Until there is a queue for the first time."""
        self._after_draining: float | None = None
        """The pace that follows when the queue is gone; None: nothing drains."""
        self._routes: dict[Hashable, _Route] = {}
        self._began_at: float | None = None
        self._last_at = 0.0
        self._queues = 0.0
        self._full_at: float | None = None
        """The pace at which the line was last found to be full, or would have been as far as is known."""
        self._overfull_at = 0.0
        """The last pace that filled it."""
        self._clear_at = 0.0
        """The last pace that was used and did not."""
        self._num_raised = 0
        """Steps one after the other since then, on the same side of what is near to it."""
        self._is_remainder = False
        """Whether the stretch follows another without a pause. Its end, when most of the others rest, says nothing."""
        self._num_acknowledged = 0
        self._acknowledged_bytes = 0.0

    def greeted(self, remote: Hashable, asked_at: float, read_at: float, now: float) -> None:
        """`remote` answered a few bytes that went ahead after a pause.

        Args:
            read_at: by the clock of the remote.
        """
        route = self._routes.setdefault(remote, _Route())
        route.shortest_trips.append(now - asked_at)
        route.shortest_ways.append(read_at - asked_at)

    def resumed(self, now: float) -> None:
        """Something is to be sent again after nothing was; a stretch that a pause has cut counts for nothing.

        Usually the last acknowledgement has ended it, but a remote may be lost, or never acknowledge.
        """
        if self._began_at is None or now - max(self._began_at, self._last_at) <= LONGEST_SECONDS:
            return
        self._began_at, self._num_acknowledged, self._acknowledged_bytes = None, 0, 0
        self._is_remainder = False
        for route in self._routes.values():
            route.clear()

    def started(self, now: float) -> None:
        """A frame is being sent."""
        if self._began_at is None:
            self._began_at = now

    def acknowledged(
        self,
        remote: Hashable,
        num_bytes: int,
        started_at: float,
        written_at: float | None,
        read_at: float,
        now: float,
    ) -> None:
        """`remote` has read a frame.

        Args:
            written_at: its last byte; None: somewhat earlier than that was noticed.
            read_at: by the clock of the remote.
        """
        if self._began_at is None:
            return
        if started_at < self._began_at:
            # What of it was sent since then.
            if now > started_at:
                self._acknowledged_bytes += num_bytes * (now - self._began_at) / (now - started_at)
            return
        route = self._routes.setdefault(remote, _Route())
        route.trips.append(now - (written_at or now))
        route.ways.append(read_at - (written_at or now))
        self._acknowledged_bytes += num_bytes
        self._num_acknowledged += 1
        self._last_at = now

    def forget(self, remote: Hashable) -> None:
        """`remote` is gone."""
        self._routes.pop(remote, None)

    def rest(self, now: float, *, is_idle: bool) -> bool:
        """End a stretch that is long enough, or that ends because nothing is left to send and to acknowledge.

        Returns:
            True: there is another pace.
        """
        if self._began_at is None:
            return False
        longest_seconds = BEGINNING_SECONDS if self._is_beginning else LONGEST_SECONDS
        is_short = now - self._began_at < longest_seconds or self._num_acknowledged < FEWEST_FRAMES
        if not is_idle and is_short and not (self._is_beginning and self._is_filling()):
            return False
        is_end_of_longer, self._is_remainder = self._is_remainder and is_idle, not is_idle
        seconds, num_frames = self._last_at - self._began_at, self._num_acknowledged
        delivered = self._acknowledged_bytes / seconds if seconds > 0 else 0.0
        self._began_at, self._num_acknowledged, self._acknowledged_bytes = None, 0, 0
        routes = [route for route in self._routes.values() if route.trips]
        if not routes:
            return False
        queues = median_low([route.queues() for route in routes])
        for route in routes:
            route.remember()
        before = self.bytes_per_second
        if self._is_beginning:
            self._begin(queues, delivered, num_frames)
        elif not is_end_of_longer and seconds >= SHORTEST_SECONDS and num_frames >= FEWEST_FRAMES:
            self._judge(queues, delivered)
        elif not is_end_of_longer:
            self._judge_little(queues, delivered)
        if is_idle and self._after_draining is not None:
            # A pause drains every queue.
            self.bytes_per_second, self._after_draining = self._after_draining, None
        return self.bytes_per_second != before

    def _is_filling(self) -> bool:
        if self._num_acknowledged < FEWEST_TO_STOP:
            return False
        queued = [route.queues() for route in self._routes.values() if route.trips]
        return bool(queued) and median_low(queued) > FULL_QUEUE

    def _begin(self, queues: float, delivered: float, num_frames: int) -> None:
        """Ever faster, until there is a queue; then back to the last pace without one."""
        before = self.bytes_per_second
        if queues <= SOME_QUEUE:
            if delivered >= BEGINNING_BOUND_SHARE * before:
                self._clear_at, self.bytes_per_second = before, before * BEGINNING_FACTOR
        elif num_frames >= FEWEST_TO_STOP:
            self._is_beginning, self._queues = False, queues
            if queues > FULL_QUEUE:
                self._overfull_at = before
                self._drain(self._clear_at or self._guess(delivered), queues, delivered)

    def _judge(self, queues: float, delivered: float) -> None:
        before, earlier = self.bytes_per_second, self._queues
        self._queues = queues
        if self._after_draining is not None:
            after, self._after_draining = self._after_draining, None
            if queues <= FULL_QUEUE:
                self.bytes_per_second = after
            else:
                if queues >= DRAINING_SHARE * earlier:
                    after *= STILL_FULL_SHARE if queues < LONG_QUEUE else STILL_OVERFULL_SHARE
                self._drain(after, queues, delivered)
        elif queues > FULL_QUEUE:
            # The line ends between the pace that left no queue and this one. To come back to this one would overfill
            # it once more, and connections that lost packets are slow for many stretches.
            self._overfull_at, self._num_raised = before, 0
            if self._clear_at:
                middle = (self._clear_at + before) / 2 if self._clear_at < before else before
                self._full_at = max(middle, LEAST_FULL_SHARE * before)
            self._drain(NEAR_SHARE * self._full_at if self._full_at else self._guess(delivered), queues, delivered)
        elif delivered >= BOUND_SHARE * before and queues <= SOME_QUEUE:
            self._clear_at = before
            self.bytes_per_second = self._raised(queues)

    def _guess(self, delivered: float) -> float:
        """The pace after one that filled the line, if none is known that did not."""
        before = self.bytes_per_second
        return max(min(before / 2, GUESSED_SHARE * delivered), LEAST_GUESSED_SHARE * before)

    def _drain(self, after: float, queues: float, delivered: float) -> None:
        """So much slower than `after` for one stretch that the queue is gone then.

        At a pace just below the line's it would stay there for many stretches.
        """
        share = max(LEAST_DRAINING_SHARE, 1 - QUEUE_SECONDS * (queues - SOME_QUEUE) / LONGEST_SECONDS)
        self._after_draining = after = max(after, SLOWEST_BYTES_PER_SECOND)
        self.bytes_per_second = max(share * after, min(after, LEAST_SHARE * delivered), SLOWEST_BYTES_PER_SECOND)

    def _judge_little(self, queues: float, delivered: float) -> None:
        """Rounds of few frames say too little to slow down for, or to go beyond a line that was full."""
        before = self.bytes_per_second
        if self._after_draining is not None or queues > SOME_QUEUE or delivered < BOUND_SHARE * before:
            return
        if self._full_at is None or before < NEAR_SHARE * self._full_at:
            self.bytes_per_second = self._raised(queues)

    def _raised(self, queues: float) -> float:
        """Quickly back to where the line was full the last time, carefully from there on."""
        before = self.bytes_per_second
        factor = STEP_WITH_LITTLE if queues <= LITTLE_QUEUE else STEP_WITH_SOME
        if before < self._overfull_at:
            factor = min(factor, STEP_BELOW_OVERFULL)
        if self._full_at is None:
            return before * factor
        near = NEAR_SHARE * self._full_at
        if before < near:
            self._num_raised += 1
            after = before * min(factor, 1 + RETURN_STEP * self._num_raised)
            if after >= near:
                after, self._num_raised = near, 0
            return after
        if before > NEVER_FULL_SHARE * self._full_at:
            self._full_at = None
            return before * factor
        self._num_raised += 1
        return before * min(factor, 1 + FURTHER_STEP * self._num_raised)
