"""Bounds of what others can cause: entries, how often something may be done, and pauses after faults. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_REMEMBERED: Final = 4096
"""Keys whose allowance is known; of more the one that was seen least recently begins anew."""


class Newest(OrderedDict[K, V]):
    """At most `most` entries. A new key is the newest, and the oldest leaves for it; a known one keeps its place."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)


class Allowances(Generic[K]):
    """Limits how often each key, such as a remote, may do something that costs others more than itself.

    Args:
        burst: times at once.
        seconds: until one more; or versions, or whatever `now` counts.
    """

    def __init__(self, burst: float = 1.0, seconds: float = 1.0) -> None:
        self._burst, self._seconds = burst, seconds
        self._left: Newest[K, tuple[float, float]] = Newest(MAX_REMEMBERED)
        """Times, and when that was so."""

    def spend(
        self, key: K, now: float, count: float = 1, *, burst: float | None = None, seconds: float | None = None
    ) -> bool:
        """Whether `key` may do it now, so many times, which count then.

        Args:
            burst, seconds: of this key, where they are not those of all.
        """
        most, pause = self._burst if burst is None else burst, self._seconds if seconds is None else seconds
        left, at = self._left.pop(key, (most, now))
        left = min(most, left + max(0.0, now - at) / pause)
        is_allowed = left >= count
        self._left[key] = (left - count * is_allowed, now)
        return is_allowed


class Pauses(Generic[K]):
    """Keys, such as remotes, that are left alone for a time, which doubles with each further fault.

    Args:
        first_seconds, longest_seconds: of the pauses of one key.
        most: keys; of more the one whose last fault is the oldest is forgotten.
    """

    def __init__(self, first_seconds: float, longest_seconds: float, most: int) -> None:
        self._first, self._longest = first_seconds, longest_seconds
        self._pauses: Newest[K, tuple[float, float]] = Newest(most)
        """Until when, and for how long in all."""

    def begin(
        self, key: K, now: float, *, first_seconds: float | None = None, longest_seconds: float | None = None
    ) -> float:
        """Leave `key` alone from now on; returns for how many seconds.

        Args:
            first_seconds, longest_seconds: of this fault, where they are not those of all.
        """
        first = self._first if first_seconds is None else first_seconds
        longest = self._longest if longest_seconds is None else longest_seconds
        _, before = self._pauses.pop(key, (0.0, 0.0))
        seconds = max(first, min(2 * before, longest))
        self._pauses[key] = now + seconds, seconds
        return seconds

    def until(self, key: K) -> float:
        """Return the time at which the last pause of `key` ends or ended; 0 when it had none."""
        return self._pauses.get(key, (0.0, 0.0))[0]

    def seconds(self, key: K) -> float:
        """Return the length of its last pause; 0 when it had none."""
        return self._pauses.get(key, (0.0, 0.0))[1]

    def holds(self, key: K, now: float) -> bool:
        """Whether `key` is left alone now."""
        return key in self._pauses and now < self.until(key)

    def held(self, now: float) -> set[K]:
        """All keys that are left alone now."""
        return {key for key, (until, _) in self._pauses.items() if now < until}

    def forgive(self, key: K) -> None:
        """The next pause of `key` is a first one."""
        self._pauses.pop(key, None)
