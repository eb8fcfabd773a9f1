"""The pace at which bulk data fills this peer's line without filling the queues before it. Pure.

Whoever sends as fast as the operating system takes bytes fills megabytes of buffers and the router's queue; packets are
lost in bursts, connections stop for several round trips, and everything else on the line waits. How long a frame takes
from its last written byte until the remote has read it tells how much lies in between: half a round trip when the line
keeps up, several times that when it does not. The pace follows that delay, as in LEDBAT (RFC 6817), frame by frame
instead of packet by packet.

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
BOUND_SHARE: Final = 0.7
"""Of the pace that was sent at least, for a stretch to say that more would have gone."""
STEPS: Final = ((0.25, 1.2), (0.5, 1.08), (1.0, 1.0), (2.0, 0.97), (4.0, 0.93), (float("inf"), 0.85))
"""Delay up to so many times what may be there: the pace is multiplied by so much."""
NEAR_SHARE: Final = 0.97
"""Of the pace at which the line was last found to be full: many a queue is empty at 95 % of the line, full at 98 %."""
RETURN_STEP, FURTHER_STEP = 0.05, 0.005
"""More than the pace, before it is so near again and, if there is hardly any queue, from there on. The second such step
is twice, the third three times as large."""
NEVER_FULL_SHARE: Final = 1.05
"""Of that pace: it goes without a queue, so the line has become faster, or was not full then."""
DRAINING_SHARE: Final = 0.9
"""Of the delay before: it falls already, and what is left of it was written at an earlier pace."""
FIRST_SHARE: Final = 2.5
"""Of what was delivered in the first second, in which streams open and the round begins: too fast is soon noticed, too
slow costs a whole round."""
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
        """The median delay beyond the shortest, in units of what may be there; begins a new stretch."""
        self.shortest_trips.append(min(self.trips))
        self.shortest_ways.append(min(self.ways))
        shortest = min(self.shortest_trips)
        seconds = min(median(self.trips) - shortest, median(self.ways) - min(self.shortest_ways))
        self.clear()
        return seconds / queue_seconds(shortest)

    def clear(self) -> None:
        """Begin a new stretch."""
        self.trips, self.ways = [], []


class LinePace:
    """Tell it what was written and acknowledged; `bytes_per_second` is the pace, None: not known yet."""

    def __init__(self) -> None:
        self.bytes_per_second: float | None = None
        self._routes: dict[Hashable, _Route] = {}
        self._began_at: float | None = None
        self._is_draining = False
        """Until the next pause, delays are those of buffers that were filled without a pace."""
        self._last_at = 0.0
        self._queues = 0.0
        self._full_at: float | None = None
        """The pace at which the line was last found to be full, or would have been as far as is known."""
        self._clear_at = 0.0
        """The last pace that was used and left hardly any queue."""
        self._num_raised = 0
        """Steps one after the other since then, on the same side of what is near to it."""
        self._is_cutting = False
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
        self._is_draining = self._is_remainder = False
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
        was_draining, self._is_draining = self._is_draining, self._is_draining and not is_idle
        if self._began_at is None:
            return False
        if not is_idle and (now - self._began_at < LONGEST_SECONDS or self._num_acknowledged < FEWEST_FRAMES):
            return False
        is_end_of_longer, self._is_remainder = self._is_remainder and is_idle, not is_idle
        seconds, num_frames = self._last_at - self._began_at, self._num_acknowledged
        delivered = self._acknowledged_bytes / seconds if seconds > 0 else 0.0
        self._began_at, self._num_acknowledged, self._acknowledged_bytes = None, 0, 0
        routes = [route for route in self._routes.values() if route.trips]
        queued = [route.queues() for route in routes]
        if seconds < SHORTEST_SECONDS or num_frames < FEWEST_FRAMES or was_draining or is_end_of_longer:
            return False
        before = self.bytes_per_second
        if before is None:
            self._is_draining = not is_idle
            self.bytes_per_second = max(FIRST_SHARE * delivered, SLOWEST_BYTES_PER_SECOND)
            return True
        queues, earlier = median_low(queued), self._queues
        self._queues = queues
        factor = next(factor for limit, factor in STEPS if queues <= limit)
        self._is_cutting = self._is_cutting and factor < 1
        if queues <= STEPS[0][0] and delivered >= BOUND_SHARE * before:
            self._clear_at = before
        if factor > 1 and delivered < BOUND_SHARE * before:
            return False
        if factor < 1 and queues < DRAINING_SHARE * earlier:
            return False
        if factor < 1:
            if not self._is_cutting:
                # The line ends between the pace that left no queue and this one. To come back to this one would
                # overfill it once more, and connections that lost packets are slow for many stretches.
                self._full_at = (self._clear_at + before) / 2 if 0 < self._clear_at < before else before
                self._num_raised, self._is_cutting = 0, True
            after = min(before, max(before * factor, LEAST_SHARE * delivered, SLOWEST_BYTES_PER_SECOND))
        else:
            after = self._raised(before, factor)
        self.bytes_per_second = after
        return after != before

    def _raised(self, before: float, factor: float) -> float:
        """Quickly back to where the line was full the last time, carefully from there on."""
        if self._full_at is None or factor == 1:
            return before * factor
        near = NEAR_SHARE * self._full_at
        if before < near:
            self._num_raised += 1
            after = before * min(factor, 1 + RETURN_STEP * self._num_raised)
            if after >= near:
                after, self._num_raised = near, 0
            return after
        if factor < STEPS[0][1]:
            return before
        if before > NEVER_FULL_SHARE * self._full_at:
            self._full_at = None
            return before * factor
        self._num_raised += 1
        return before * min(factor, 1 + FURTHER_STEP * self._num_raised)
