"""How much the upload line takes, learned from what arrives while more waits than it takes. Pure.

A single lane shares the line with the others, and may be held up by its remote's line. So the bytes of all lanes are
counted together, and only while most of those in use have something under way: then this line, and nobody else's,
decides how fast they arrive. What was written says nothing: buffers on the way take megabytes at once, which for a
small fragment is all of it. A count begins with a frame and not with its acknowledgement, because frames to many
remotes go side by side and end together, all within a moment.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

WINDOW_SECONDS = 0.1
"""Shorter stretches say more about frames than about the line."""
WINDOW_BYTES = 256 * 1024
QUIET_SECONDS = 1.0
"""After so long in which nothing began and nothing was acknowledged, another count begins, if nothing waits."""
NUM_WINDOWS = 8
"""The fastest of the last few counts: a remote or a busy processor can make a stretch slower, nothing makes it faster
for long."""


@dataclass(slots=True)
class _Lane:
    is_waiting: bool = True
    unread_bytes: int = 0

    @property
    def is_in_use(self) -> bool:
        return self.is_waiting or self.unread_bytes > 0


class UploadRate:
    """The learned rate; `began`, `sent`, `acknowledged`, `ended` and `lost` tell it what the lanes do."""

    def __init__(self) -> None:
        self.bits_per_second = 0.0
        self._lanes: dict[Hashable, _Lane] = {}
        self._most = 0
        """Lanes that were in use together since none was."""
        self._since: float | None = None
        self._began_at = -math.inf
        self._arrived_at = -math.inf
        """The last acknowledgement."""
        self._bytes = 0.0
        self._seen: deque[float] = deque(maxlen=NUM_WINDOWS)

    def began(self, lane: Hashable, now: float) -> None:
        """Something waits in `lane`."""
        is_quiet = now - max(self._began_at, self._arrived_at) > QUIET_SECONDS
        self._began_at = now
        if is_quiet and not any(other.is_waiting for other in self._lanes.values()):
            # What is still under way may never be acknowledged.
            self._close()
            self._lanes.clear()
            self._most = 0
        self._lanes.setdefault(lane, _Lane()).is_waiting = True
        self._most = max(self._most, len(self._lanes))

    def sent(self, lane: Hashable, num_bytes: int, now: float) -> None:
        """A frame that will be acknowledged is about to be written."""
        if lane in self._lanes:
            self._lanes[lane].unread_bytes += num_bytes
            if self._since is None and self._is_full():
                self._since, self._bytes = now, 0.0

    def acknowledged(self, lane: Hashable, num_bytes: int, started_at: float, now: float) -> None:
        """The remote has read such a frame."""
        one = self._lanes.get(lane)
        if one is None:
            return
        one.unread_bytes = max(0, one.unread_bytes - num_bytes)
        self._arrived_at = now
        if self._since is not None:
            is_whole = started_at >= self._since
            self._bytes += num_bytes if is_whole else num_bytes * (now - self._since) / (now - started_at)
        self._settle(lane)

    def ended(self, lane: Hashable) -> None:
        """Nothing waits in `lane` any more."""
        if lane in self._lanes:
            self._lanes[lane].is_waiting = False
            self._settle(lane)

    def lost(self, lane: Hashable) -> None:
        """`lane` broke."""
        if lane in self._lanes:
            self._lanes[lane] = _Lane(is_waiting=False)
            self._settle(lane)

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
        if seconds >= WINDOW_SECONDS and self._bytes >= WINDOW_BYTES:
            self._seen.append(8 * self._bytes / seconds)
            self.bits_per_second = max(self._seen)
