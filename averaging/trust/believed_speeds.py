"""How fast a peer is believed to train that announces a speed, or none. Pure.

A speed is what limits how many tokens a peer may claim, so none may be worth more than all. A peer that has announced
nothing is as slow as the slowest known peer. It may have just come, its record may be late, or it means to. Nor does
any number count: a thousand times the median is further apart than a phone and a data centre.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from averaging.outer.fragment_schedule import MOST_OF_MEDIAN_SPEED

FASTEST_OF_MEDIAN = 1000.0
"""No announced speed counts for more than so many medians."""
NEWCOMER_TOKENS_PER_SECOND = 1e6
"""Where no speed is known at all, as in the first minute of a run: more than one machine trains."""
NOTED_SECONDS = 1.0
"""Announcements are many seconds apart; in a swarm of thousands every offer would sort all of them."""


@dataclass
class BelievedSpeeds:
    """The slowest that counts, the median and the fastest speed, in tokens per second.

    One peer that announces next to nothing does not make everybody next to nothing. The slowest that counts is an
    eighth of the median at least.
    """

    slowest: float = NEWCOMER_TOKENS_PER_SECOND
    usual: float = NEWCOMER_TOKENS_PER_SECOND
    fastest: float = NEWCOMER_TOKENS_PER_SECOND
    _noted_at: float | None = None

    def note(self, known_speeds: Callable[[], Sequence[float]], own: float, now: float) -> None:
        """Look at the known speeds, unless that was just done; zeros are unknown ones.

        This peer's speed is certain: half of the peers announcing next to nothing do not make it impossible.
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
        """What counts when a peer makes a claim; `announced` is 0 when it has announced nothing that is known here."""
        return min(announced, self.fastest) if announced > 0 else self.slowest

    def possible(self, announced: float) -> float:
        """What counts when others believed the claim, and may have known more of the peer than is known here."""
        return min(announced, self.fastest) if announced > 0 else min(MOST_OF_MEDIAN_SPEED * self.usual, self.fastest)
