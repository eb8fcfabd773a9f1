"""Capacity of the upload line, measured from acknowledged bytes while more data waits than the line carries. Pure.

A single lane shares the line with the others, and its remote's line may be slow. So the bytes of all lanes count
together, and only while most lanes in use have frames in flight: then only this line limits their arrival. Written
bytes show nothing, because buffers on the way accept megabytes at once, which is all of a small fragment. A measurement
begins with a frame and not with its acknowledgement, because frames to many remotes travel in parallel and end
together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

WINDOW_SECONDS = 0.1
"""Shorter intervals measure frames rather than the line."""
WINDOW_BYTES = 256 * 1024
LONG_SECONDS = 1.0
"""An interval of this length measures a slow line if at least `LONG_BYTES` passed in it."""
LONG_BYTES = 16 * 1024
"""See `LONG_SECONDS`."""
DISPROVED = 2.0
"""A single frame that was this many times faster disproves a long interval: then another line was slow."""
MOST_OF_TIME = 0.75
"""Share of an interval in which most lanes must have frames in flight, and share of its bytes that must have been in
flight throughout. So a slow remote, or answers that wait at the remote's own line, do not make this line look slow."""
QUIET_SECONDS = 1.0
"""A new measurement begins after this time without a frame or an acknowledgement, if no frame waits."""
NUM_WINDOWS = 8
"""The result is the fastest of this many measurements. A remote or a busy processor can slow a measurement down;
nothing speeds it up for long."""


@dataclass(slots=True)
class _Lane:
    is_waiting: bool = True
    unread_bytes: int = 0

    @property
    def is_in_use(self) -> bool:
        return self.is_waiting or self.unread_bytes > 0


class UploadRate:
    """The measured upload rate. The owner reports the lanes' activity with `began`, `sent`, `acknowledged`, `ended` and
    `lost`.
    """

    def __init__(self) -> None:
        self.bits_per_second = 0.0
        self._lanes: dict[Hashable, _Lane] = {}
        self._most = 0
        """Most lanes in use at once since a time when no lane was in use."""
        self._since: float | None = None
        self._began_at = -math.inf
        self._arrived_at = -math.inf
        """When the last acknowledgement arrived."""
        self._crowded_seconds = 0.0
        """Seconds of this measurement while most lanes (of two or more) were in use."""
        self._seen_at = -math.inf
        self._answered_bytes = 0.0
        """Bytes of this measurement in frames whose answers took longer than the frames."""
        self._bytes = 0.0
        self._is_doubtful = False
        """The rate is from a long interval, in which the line may have stalled."""
        self._seen: deque[float] = deque(maxlen=NUM_WINDOWS)

    def began(self, lane: Hashable, now: float) -> None:
        """Note that data waits in `lane`."""
        self._pass(now)
        is_quiet = now - max(self._began_at, self._arrived_at) > QUIET_SECONDS
        self._began_at = now
        if is_quiet and not any(other.is_waiting for other in self._lanes.values()):
            # Frames in flight may never be acknowledged.
            self._close()
            self._lanes.clear()
            self._most = 0
        self._lanes.setdefault(lane, _Lane()).is_waiting = True
        self._most = max(self._most, len(self._lanes))

    def sent(self, lane: Hashable, num_bytes: int, now: float) -> None:
        """Note that a frame that will be acknowledged is about to be written."""
        self._pass(now)
        if lane in self._lanes:
            self._lanes[lane].unread_bytes += num_bytes
            if self._since is None and self._is_full():
                self._since = now
                self._bytes = self._crowded_seconds = self._answered_bytes = 0.0

    def acknowledged(
        self, lane: Hashable, num_bytes: int, started_at: float, now: float, read_after_seconds: float = math.inf
    ) -> None:
        """Note that the remote has read a frame: by its own clock, `read_after_seconds` later than a frame on an idle
        line.
        """
        self._pass(now)
        one = self._lanes.get(lane)
        if one is None:
            return
        one.unread_bytes = max(0, one.unread_bytes - num_bytes)
        if self._is_doubtful and 8 * num_bytes > DISPROVED * self.bits_per_second * (now - started_at):
            self._is_doubtful, self.bits_per_second = False, 0.0
        self._arrived_at = now
        if self._since is not None:
            is_whole = started_at >= self._since
            self._bytes += num_bytes if is_whole else num_bytes * (now - self._since) / (now - started_at)
            self._answered_bytes += num_bytes * (read_after_seconds < MOST_OF_TIME * (now - started_at))
        self._settle(lane)

    def ended(self, lane: Hashable) -> None:
        """Note that no data waits in `lane` any more."""
        if lane in self._lanes:
            self._lanes[lane].is_waiting = False
            self._settle(lane)

    def lost(self, lane: Hashable) -> None:
        if lane in self._lanes:
            self._lanes[lane] = _Lane(is_waiting=False)
            self._settle(lane)

    def _pass(self, now: float) -> None:
        if 2 * len(self._lanes) > self._most > 1:
            self._crowded_seconds += now - self._seen_at
        self._seen_at = now

    def _settle(self, lane: Hashable) -> None:
        if not self._lanes[lane].is_in_use:
            del self._lanes[lane]
        if not self._is_full():
            self._close()
        if not self._lanes:
            self._most = 0

    def _is_full(self) -> bool:
        return 2 * len(self._lanes) >= max(1, self._most)

    def _close(self) -> None:
        if self._since is None:
            return
        seconds, self._since = self._arrived_at - self._since, None
        is_much = seconds >= WINDOW_SECONDS and self._bytes >= WINDOW_BYTES
        is_long = seconds >= LONG_SECONDS and self._bytes >= LONG_BYTES
        is_own = self._answered_bytes <= (1 - MOST_OF_TIME) * self._bytes
        if is_much:
            self._seen.append(8 * self._bytes / seconds)
            self.bits_per_second = max(self._seen)
        elif is_long and is_own and not self._seen and self._crowded_seconds >= MOST_OF_TIME * seconds:
            self._is_doubtful = True
            self.bits_per_second = 8 * self._bytes / seconds
