"""How much the upload line takes, learned from lanes that want more than it gives. Pure.

A single lane shares the line with the others, and may be held up by its remote's line. So the bytes of all lanes are
counted together, and only while most of those in use have something waiting: then this line, and nobody else's, decides
how fast they go. The first frame of a lane does not count, because empty buffers on the way swallow it at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

WINDOW_SECONDS = 0.1
"""Shorter stretches say more about buffers than about the line."""
WINDOW_BYTES = 256 * 1024
NUM_WINDOWS = 8
"""The fastest of the last few counts: a remote or a busy processor can make a stretch slower, nothing makes it faster
for long."""


class UploadRate:
    """The learned rate; `began`, `sent` and `ended` tell it what the lanes do."""

    def __init__(self) -> None:
        self.bits_per_second = 0.0
        self._num_sent: dict[Hashable, int] = {}
        self._most = 0
        self._since: float | None = None
        self._bytes = 0
        self._seen: deque[float] = deque(maxlen=NUM_WINDOWS)

    def began(self, lane: Hashable) -> None:
        """Something waits in `lane`."""
        if lane not in self._num_sent:
            self._num_sent[lane] = 0
            self._most = max(self._most, len(self._num_sent))

    def sent(self, lane: Hashable, num_bytes: int, now: float) -> None:
        """The lane's next frame has left."""
        if lane not in self._num_sent:
            return
        if self._since is not None:
            self._bytes += num_bytes
        self._num_sent[lane] += 1
        if self._since is None and self._is_full():
            self._since, self._bytes = now, 0

    def ended(self, lane: Hashable, now: float) -> None:
        """Nothing waits in `lane` any more, or it broke."""
        self._num_sent.pop(lane, None)
        if self._since is not None and not self._is_full():
            self._close(now)
        if not self._num_sent:
            self._most = 0

    def _is_full(self) -> bool:
        num_warm = sum(count > 0 for count in self._num_sent.values())
        return num_warm > 0 and 2 * num_warm >= self._most

    def _close(self, now: float) -> None:
        assert self._since is not None
        seconds, self._since = now - self._since, None
        if seconds >= WINDOW_SECONDS and self._bytes >= WINDOW_BYTES:
            self._seen.append(8 * self._bytes / seconds)
            self.bits_per_second = max(self._seen)
