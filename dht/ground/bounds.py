"""Bounds on the effects of remotes: entries, rates, and pauses after faults. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_REMEMBERED: Final = 4096
"""Keys whose allowance is stored; beyond that the least recently used key starts anew."""


class Newest(OrderedDict[K, V]):
    """Dictionary of at most `most` entries. A new key becomes the newest and displaces the oldest; an existing key
    keeps its place.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)


class Allowances(Generic[K]):
    """Limits how often each key, such as a remote, may cause work that costs others more than itself.

    Args:
        burst: allowed number at once.
        seconds: time until one more is allowed, in the unit of `now` (seconds, versions or others).
    """

    def __init__(self, burst: float = 1.0, seconds: float = 1.0) -> None:
        self._burst, self._seconds = burst, seconds
        self._left: Newest[K, tuple[float, float]] = Newest(MAX_REMEMBERED)
        """Remaining number, and the time of that value."""

    def spend(
        self, key: K, now: float, count: float = 1, *, burst: float | None = None, seconds: float | None = None
    ) -> bool:
        """Spend `count` of the allowance of `key`, and return whether it was enough.

        Args:
            burst, seconds: values for this key, if different from the common ones.
        """
        most, pause = self._burst if burst is None else burst, self._seconds if seconds is None else seconds
        left, at = self._left.pop(key, (most, now))
        left = min(most, left + max(0.0, now - at) / pause)
        is_allowed = left >= count
        self._left[key] = (left - count * is_allowed, now)
        return is_allowed


class Pauses(Generic[K]):
    """Pauses for keys, such as remotes, that double with each further fault.

    Args:
        first_seconds, longest_seconds: first and longest pause of one key.
        most: number of keys; beyond that the key with the oldest last fault is forgotten.
    """

    def __init__(self, first_seconds: float, longest_seconds: float, most: int) -> None:
        self._first, self._longest = first_seconds, longest_seconds
        self._pauses: Newest[K, tuple[float, float]] = Newest(most)
        """End and length of each pause."""

    def begin(
        self, key: K, now: float, *, first_seconds: float | None = None, longest_seconds: float | None = None
    ) -> float:
        """Begin a pause of `key`, and return its length in seconds.

        Args:
            first_seconds, longest_seconds: values for this fault, if different from the common ones.
        """
        first = self._first if first_seconds is None else first_seconds
        longest = self._longest if longest_seconds is None else longest_seconds
        _, before = self._pauses.pop(key, (0.0, 0.0))
        seconds = max(first, min(2 * before, longest))
        self._pauses[key] = now + seconds, seconds
        return seconds

    def until(self, key: K) -> float:
        """Return when the last pause of `key` ends or ended; 0 if it had none."""
        return self._pauses.get(key, (0.0, 0.0))[0]

    def seconds(self, key: K) -> float:
        """Return the length of the last pause of `key`; 0 if it had none."""
        return self._pauses.get(key, (0.0, 0.0))[1]

    def holds(self, key: K, now: float) -> bool:
        """Return whether `key` is paused now."""
        return key in self._pauses and now < self.until(key)

    def held(self, now: float) -> set[K]:
        """Return all keys that are paused now."""
        return {key for key, (until, _) in self._pauses.items() if now < until}

    def forgive(self, key: K) -> None:
        """Forget the faults of `key`, so that its next pause is a first one."""
        self._pauses.pop(key, None)
