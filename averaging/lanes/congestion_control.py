"""Send rate at which bulk data fills this peer's line without filling the queues before it. Pure.

A sender that writes as fast as the operating system accepts bytes fills megabytes of buffers and the router's queue,
and all other traffic on the line waits behind them. As in LEDBAT (RFC 6817), the time from a frame's last written byte
until the remote has read the frame measures that queue. The sender begins without a limit. When a queue stands, the
line's rate is the bytes that entered the queue less the bytes that stayed in it. The send rate (the pace) follows the
line's rate, a little above or below it, so that the queue reaches its target length.

A busy processor also delays frames, but neither a slower pace nor a faster line changes that. So only the quickest of
all frames in an interval, to any remote, count: a standing queue delays all frames (CoDel, RFC 8289), a processor some.
A delay that stays while the pace falls is not a queue, and is ignored from then on.

The remote reports by its own clock when it has read a frame. So an acknowledgement that waits behind the remote's own
data does not count against this line. Clocks differ and drift: after each pause a few bytes are sent while nothing
queues, and delays are measured relative to those bytes. A delay never exceeds the whole round trip. A remote that
reports late slows a sender down only if it is the only remote. A remote that reports early makes the pace too high, as
if there were no limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final, NamedTuple

QUEUE_SECONDS: Final = 0.03
"""Target time between the last written byte and the line: half of what a home router's queue holds at least."""
STRETCH_SECONDS: Final = 0.5
FEWEST_FRAMES: Final = 4
"""An interval is judged when it is `STRETCH_SECONDS` long and this many of its frames were acknowledged."""
MOST_SAMPLES: Final = 256
"""Frames of an interval that are kept."""
NUM_GREETINGS: Final = 2
"""Number of pauses over which the shortest way to a remote is remembered: routes change, clocks drift, and processors
become idle."""
RATE_WEIGHT: Final = 0.25
"""Weight of one interval in the line's rate: frames are coarse, and connections that lost packets carry less for a
while."""
SLOWEST_SHARE: Final = 0.5
"""Lowest pace while a queue drains, as a share of the line's rate."""
SLOWEST_BYTES_PER_SECOND: Final = 16_000.0
"""A slower remote counts as gone (`links.py`)."""
USED_SHARE: Final = 0.5
"""Least share of the pace that must have been sent for an interval to show that a higher pace is possible. A late
sender does not catch up."""
CLEARLY_SLOWER: Final = 0.1
"""A pace this much below the line's rate must shorten a queue, and bytes this much below the pace were limited by
something else. Rates are a few percent off."""


class Sample(NamedTuple):
    """Measurement from one frame."""

    at: float
    """When the frame was written."""
    passed_bytes: float
    """Bytes that this sender had written to the line until then."""
    queue_seconds: float


class LinePace:
    """Pace of the line. The owner reports written and acknowledged frames. `bytes_per_second` is the pace, or None for
    no limit.
    """

    def __init__(self) -> None:
        self.bytes_per_second: float | None = None
        self._line: float | None = None
        """The line's rate in bytes per second; None before the first queue."""
        self._line_before = 0.0
        """The line's rate before the current apparent queue."""
        self._supposed = 0.0
        """The line's rate if the apparent queue is real."""
        self._ways: dict[Hashable, deque[tuple[float, float]]] = {}
        """For each remote, after its latest pauses: the one-way time by the clocks of both ends, and the round trip."""
        self._began_at = 0.0
        self._before = Sample(0.0, 0, 0.0)
        """The sample that ended the previous interval."""
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._no_queue_seconds = 0.0
        """Delay that stayed while the pace fell, so is not a queue."""
        self._num_steps = 0
        """Number of consecutive steps upwards; below 0: downwards. The second step is twice as large as the first, the
        third three times."""

    def greeted(self, remote: Hashable, asked_at: float, read_at: float, now: float) -> None:
        """Note that `remote` answered the few bytes that were sent ahead after a pause.

        Args:
            read_at: by the clock of the remote.
        """
        ways = self._ways.setdefault(remote, deque(maxlen=NUM_GREETINGS))
        ways.append((read_at - asked_at, now - asked_at))

    def forget(self, remote: Hashable) -> None:
        self._ways.pop(remote, None)

    def resumed(self, now: float, passed_bytes: float) -> None:
        """Begin to send again after a pause, which has drained all queues."""
        if self._samples:
            sample = self._quick()
            if sample.queue_seconds <= QUEUE_SECONDS or len(self._samples) >= FEWEST_FRAMES:
                self._judge(sample)
            else:
                # Too few frames to justify a slower pace, but no reason for a faster one.
                self._num_steps = min(self._num_steps, 0)
        if self._num_steps <= 0:
            self.bytes_per_second = None if self._line is None else max(self._line, SLOWEST_BYTES_PER_SECOND)
        self._samples.clear()
        self._before = Sample(now, passed_bytes, 0.0)
        self._began_at = now
        self._no_queue_seconds = 0.0

    def acknowledged(
        self, remote: Hashable, written_at: float, passed_bytes: float, read_at: float, now: float
    ) -> None:
        """Note that `remote` has read a frame. May change the pace.

        Args:
            written_at: when its last byte was written.
            passed_bytes: bytes that this sender had written until then.
            read_at: by the clock of the remote.
        """
        if written_at < self._began_at or remote not in self._ways:
            return
        shortest_way, shortest_trip = map(min, zip(*self._ways[remote], strict=True))
        seconds = min(read_at - written_at - shortest_way, now - written_at - shortest_trip)
        self._samples.append(Sample(written_at, passed_bytes, max(0.0, seconds)))
        if len(self._samples) >= FEWEST_FRAMES and written_at - self._before.at >= STRETCH_SECONDS:
            self._judge(self._quick())
            # Only frames written from now on show the effect of the new pace.
            self._began_at = now
            self._samples.clear()

    def _quick(self) -> Sample:
        """Return the quickest-quarter sample of the later half of the interval."""
        half_at = (self._before.at + max(sample.at for sample in self._samples)) / 2
        late_ones = sorted((one for one in self._samples if one.at >= half_at), key=lambda one: one.queue_seconds)
        return late_ones[len(late_ones) // 4]

    def _judge(self, sample: Sample) -> None:
        """Compute the line's rate and the next pace from the bytes that passed and the change of the queue."""
        seconds, passed = sample.at - self._before.at, sample.passed_bytes - self._before.passed_bytes
        if seconds <= 0 or passed <= 0:
            return
        self._no_queue_seconds = min(self._no_queue_seconds, sample.queue_seconds)
        queue = sample.queue_seconds - self._no_queue_seconds
        grown = queue - self._before.queue_seconds
        rate = passed / max(seconds + grown, seconds / 2)
        pace, line = self.bytes_per_second, self._line
        is_paced = pace is not None and passed >= (1 - CLEARLY_SLOWER) * pace * seconds
        is_queue = queue > QUEUE_SECONDS
        # Otherwise the line may have been idle, and its rate may be higher.
        is_measured = is_paced or self._before.queue_seconds > QUEUE_SECONDS
        if is_queue and is_measured and line is not None:
            drained = seconds - passed / self._supposed if self._num_steps < 0 else 0.0
            if is_paced and drained > CLEARLY_SLOWER * seconds and grown > -drained / 2:
                # A queue of this line would be shorter now.
                self._no_queue_seconds, queue, self._line = sample.queue_seconds, 0.0, self._line_before
            else:
                if self._num_steps >= 0:
                    self._line_before = line
                self._supposed, self._line = rate, line + RATE_WEIGHT * (rate - line)
        elif is_queue or (line is not None and is_paced):
            self._line = max(line or 0.0, passed / (seconds + max(grown, 0.0)))
        self._before = sample._replace(queue_seconds=queue)
        if self._line is None:
            return
        step = (QUEUE_SECONDS - queue) / max(seconds, STRETCH_SECONDS)
        share = 1.0
        if step < 0 and is_measured:
            self._num_steps = min(self._num_steps, 0) - 1
            share = max(1 - self._num_steps * step, 1 - 2 * CLEARLY_SLOWER)
            share = max(min(share, 1 + step), SLOWEST_SHARE)
        elif step >= 0 and line and pace and pace >= line and passed >= USED_SHARE * pace * seconds:
            self._num_steps = max(self._num_steps, 0) + 1
            share = 1 + self._num_steps * step
        else:
            self._num_steps = min(self._num_steps, 0) if is_queue else 0
        self.bytes_per_second = max(self._line * share, SLOWEST_BYTES_PER_SECOND)
