"""How often each remote may do something that costs others more than itself. Pure: time is an argument."""

from __future__ import annotations

from typing import Final

from dht.ground.bounded_dictionary import Newest
from dht.ground.host import PeerId

MAX_REMEMBERED: Final = 4096
"""Remotes whose allowance is known; of more the one that was seen least recently begins anew."""


class Allowances:
    """So many times at once, then one more in so many seconds.

    Args:
        burst: times at once.
        seconds: until one more.
    """

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst, self._seconds = burst, seconds
        self._left: Newest[PeerId, tuple[float, float]] = Newest(MAX_REMEMBERED)
        """Times, and when that was so."""

    def spend(self, remote: PeerId, now: float, count: int = 1) -> bool:
        """Whether `remote` may do it now, so many times, which count then."""
        left, at = self._left.pop(remote, (float(self._burst), now))
        left = min(self._burst, left + max(0.0, now - at) / self._seconds)
        is_allowed = left >= count
        self._left[remote] = (left - count * is_allowed, now)
        return is_allowed
