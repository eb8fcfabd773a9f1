"""The pace at which bulk data fills this peer's line without filling the queues before it. Pure.

Whoever sends as fast as the operating system takes bytes fills megabytes of buffers and the router's queue; packets are
lost in bursts, connections stop for several round trips, and everything else on the line waits. How long a frame takes
from its last written byte until the remote acknowledges it tells how much lies in between: a round trip when the line
keeps up, several times that when it does not. The pace follows that delay, as in LEDBAT (RFC 6817), frame by frame
instead of packet by packet.

A remote can acknowledge late. Delays are therefore taken against the shortest one of the same remote, and the median
remote counts. One that acknowledges too early makes the pace too high, which is what a sender without any pace has.
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
"""Stretches over which the shortest delay to a remote is remembered: routes change."""
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
STEPS: Final = ((0.25, 1.2), (0.5, 1.08), (1.0, 1.03), (2.0, 0.98), (4.0, 0.93), (float("inf"), 0.85))
"""Delay up to so many times what may be there: the pace is multiplied by so much. Near the goal one percent of the pace
makes a third of it, so that larger steps would overshoot for ever."""
LARGEST_STEP: Final = 1.05
"""Once the line was found to be full: it seldom becomes faster, and who tries much more fills the queue each time."""
MANY_EMPTY: Final = 4
"""Stretches in a row with hardly any queue: the line has become faster."""
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

    delays: list[float] = field(default_factory=list)
    shortest: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_SHORTEST))

    def queues(self) -> float:
        """The median delay beyond the shortest, in units of what may be there; begins a new stretch."""
        delays, self.delays = self.delays, []
        self.shortest.append(min(delays))
        shortest = min(self.shortest)
        return (median(delays) - shortest) / queue_seconds(shortest)


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
        self._was_full = False
        self._num_empty = 0
        self._is_remainder = False
        """Whether the stretch follows another without a pause. Its end, when most of the others rest, says nothing."""
        self._num_acknowledged = 0
        self._acknowledged_bytes = 0

    def resumed(self, now: float) -> None:
        """Something is to be sent again after nothing was; a stretch that a pause has cut counts for nothing.

        Usually the last acknowledgement has ended it, but a remote may be lost, or never acknowledge.
        """
        if self._began_at is None or now - max(self._began_at, self._last_at) <= LONGEST_SECONDS:
            return
        self._began_at, self._num_acknowledged, self._acknowledged_bytes = None, 0, 0
        self._is_draining = self._is_remainder = False
        for route in self._routes.values():
            route.delays.clear()

    def started(self, now: float) -> None:
        """A frame is being sent."""
        if self._began_at is None:
            self._began_at = now

    def acknowledged(
        self, remote: Hashable, num_bytes: int, started_at: float, written_at: float | None, now: float
    ) -> None:
        """`remote` has read a frame; `written_at`: its last byte, None: somewhat earlier than that was noticed."""
        if self._began_at is None or started_at < self._began_at:
            return
        self._routes.setdefault(remote, _Route()).delays.append(now - (written_at or now))
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
        routes = [route for route in self._routes.values() if route.delays]
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
        self._num_empty = 0 if factor < STEPS[0][1] else self._num_empty + 1
        self._was_full = factor < 1 or (self._was_full and self._num_empty < MANY_EMPTY)
        if self._was_full:
            factor = min(factor, LARGEST_STEP)
        if factor > 1 and delivered < BOUND_SHARE * before:
            return False
        if factor < 1 and queues < DRAINING_SHARE * earlier:
            return False
        after = before * factor
        if factor < 1:
            after = min(before, max(after, LEAST_SHARE * delivered, SLOWEST_BYTES_PER_SECOND))
        self.bytes_per_second = after
        return after != before
