"""The speed at which a peer is believed to train, with or without an announced speed. Pure.

A speed limits the tokens that a peer may claim, so announcing none must not allow more than any announcement. A peer
without an announcement counts as the slowest known peer: it may be new, its record may be late, or it may hide its
speed on purpose. Announcements are limited too: a thousand times the median is further apart than a phone and a data
centre.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from averaging.outer.fragment_schedule import MOST_OF_MEDIAN_SPEED

FASTEST_OF_MEDIAN = 1000.0
"""An announced speed counts for at most this many medians."""
NEWCOMER_TOKENS_PER_SECOND = 1e6
"""Assumed speed when none is known, as in the first minute of a run: more than one machine trains."""
NOTED_SECONDS = 1.0
"""Shortest time between two updates: announcements are many seconds apart, and in a swarm of thousands each offer would
sort all of them."""


@dataclass
class BelievedSpeeds:
    """The slowest speed that counts, the median and the fastest, in tokens per second.

    The slowest speed that counts is at least an eighth of the median, so that one very low announcement does not lower
    the limit for all peers.
    """

    slowest: float = NEWCOMER_TOKENS_PER_SECOND
    usual: float = NEWCOMER_TOKENS_PER_SECOND
    fastest: float = NEWCOMER_TOKENS_PER_SECOND
    _noted_at: float | None = None

    def note(self, known_speeds: Callable[[], Sequence[float]], own: float, now: float) -> None:
        """Update from the known speeds (0: unknown), unless this was just done.

        This peer's own speed is certain: even if half of the peers announce next to nothing, it stays possible.
        """
        if self._noted_at is not None and 0 <= now - self._noted_at < NOTED_SECONDS:
            return
        self._noted_at = now
        known = [speed for speed in (*known_speeds(), own) if speed > 0]
        if not known:
            self.slowest = self.usual = self.fastest = NEWCOMER_TOKENS_PER_SECOND
            return
        self.usual = statistics.median_low(known)
        self.slowest = max(min(known), self.usual / MOST_OF_MEDIAN_SPEED)
        self.fastest = FASTEST_OF_MEDIAN * max(self.usual, own)

    def believed(self, announced: float) -> float:
        """Return the speed that limits a peer's claim; `announced` is 0 if no announcement is known here."""
        return min(announced, self.fastest) if announced > 0 else self.slowest

    def possible(self, announced: float) -> float:
        """Return the speed that limits a claim that others believed, since they may have known more of the peer."""
        return min(announced, self.fastest) if announced > 0 else min(MOST_OF_MEDIAN_SPEED * self.usual, self.fastest)
