"""Deadlines that are learned from what was seen, never fixed: per link where it is known, else the group's. Pure.

The rule is the classical one for retransmission (median + k deviations of past durations, between hard bounds). Medians
are in place of means, so that one stall does not move it. A duration that was waited for in vain counts as twice the
wait, so a link that became slow gets more time. One that missed three times in a row gets no more than the group.
Otherwise a peer that promises and never delivers would make everybody wait.
"""

from __future__ import annotations

import statistics
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dht.ground.bounds import Newest
from dht.ground.host import PeerId

_DEVIATION = 1.4826
"""Scales the median absolute deviation to a standard deviation for normal data."""
NUM_DEVIATIONS = 4
FEWEST_ARRIVALS = 3
"""Two durations have a median but say nothing of their spread."""
GROUP_ARRIVALS = 32
LINK_ARRIVALS = 16
"""Per remote and kind; half of them must change before the median does."""
MISSES_OF_ABSENT = 3
MAX_LINKS = 256
"""As many as a roster; the remote that was seen least recently is forgotten first. 150 bytes each."""


@dataclass(slots=True)
class _Durations:
    """The last `most` durations, and how many of the newest were waited for in vain."""

    most: int
    seen: array[float] = field(default_factory=lambda: array("d"))
    misses: int = 0
    known: float | None = None

    def add(self, seconds: float) -> None:
        self.seen.append(seconds)
        if len(self.seen) > self.most:
            del self.seen[0]
        self.known = None

    @property
    def learned(self) -> float:
        # Asked for much more often than it changes.
        if self.known is None:
            middle = statistics.median(self.seen)
            spread = statistics.median(abs(seconds - middle) for seconds in self.seen)
            self.known = middle + NUM_DEVIATIONS * _DEVIATION * spread + 0.1 * middle
        return self.known


class LearnedDeadline:
    """median + 4 deviations of the last 32 durations, between hard bounds; `initial_seconds` until three were seen."""

    def __init__(self, initial_seconds: float, lowest_seconds: float, highest_seconds: float) -> None:
        self._initial_seconds = initial_seconds
        self._lowest_seconds = lowest_seconds
        self._highest_seconds = highest_seconds
        self._durations = _Durations(GROUP_ARRIVALS)

    def observe(self, seconds: float) -> None:
        """Add one duration that was seen; durations beyond the hard bound count as the bound."""
        self._durations.add(min(max(seconds, 0.0), self._highest_seconds))

    @property
    def seconds(self) -> float:
        is_learned = len(self._durations.seen) >= FEWEST_ARRIVALS
        value = self._durations.learned if is_learned else self._initial_seconds
        return min(max(value, self._lowest_seconds), self._highest_seconds)


class LinkDeadlines:
    """Learned deadlines of one kind of arrival: of each remote its own, of a newcomer the group's.

    Args:
        initial_seconds, lowest_seconds, highest_seconds: as of `LearnedDeadline`; the bounds hold for each remote. The
            first two are taken for the last one where they are larger.
    """

    def __init__(self, initial_seconds: float, lowest_seconds: float, highest_seconds: float) -> None:
        initial_seconds, lowest_seconds = min(initial_seconds, highest_seconds), min(lowest_seconds, highest_seconds)
        self._group = LearnedDeadline(initial_seconds, lowest_seconds, highest_seconds)
        self._lowest_seconds = lowest_seconds
        self._highest_seconds = highest_seconds
        self._links: Newest[PeerId, _Durations] = Newest(MAX_LINKS)

    def observe(self, peer_id: PeerId, seconds: float) -> None:
        """Something of `peer_id` arrived after so long."""
        self._group.observe(seconds)
        link = self._link(peer_id)
        link.add(min(max(seconds, 0.0), self._highest_seconds))
        link.misses = 0

    def missed(self, peer_id: PeerId) -> None:
        """Its allowance passed and nothing came."""
        waited = self.allowance(peer_id)
        link = self._link(peer_id)
        link.add(min(2 * waited, self._highest_seconds))
        link.misses += 1

    def allowance(self, peer_id: PeerId) -> float:
        """How long to wait for `peer_id`, in seconds."""
        link = self._links.get(peer_id)
        if link is None or len(link.seen) < FEWEST_ARRIVALS:
            return self.seconds
        own = min(max(link.learned, self._lowest_seconds), self._highest_seconds)
        return min(own, self.seconds) if link.misses >= MISSES_OF_ABSENT else own

    def longest(self, peer_ids: Iterable[PeerId]) -> float:
        """The longest allowance among `peer_ids`; the group's when there are none."""
        # A group of newcomers is asked about at every event, and has one allowance.
        known = {peer_id if peer_id in self._links else None for peer_id in peer_ids}
        return max((self.seconds if one is None else self.allowance(one) for one in known), default=self.seconds)

    def is_absent(self, peer_id: PeerId) -> bool:
        """Whether it was waited for in vain three times in a row."""
        link = self._links.get(peer_id)
        return link is not None and link.misses >= MISSES_OF_ABSENT

    @property
    def seconds(self) -> float:
        """The group's allowance, which holds for a remote that is not known yet."""
        return self._group.seconds

    def _link(self, peer_id: PeerId) -> _Durations:
        link = self._links.pop(peer_id, None) or _Durations(LINK_ARRIVALS)
        self._links[peer_id] = link
        return link


class LearnedPace:
    """The median time between the last few happenings of one kind."""

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._intervals: deque[float] = deque(maxlen=8)

    def observe(self, now: float) -> None:
        if self._last_at is not None:
            self._intervals.append(now - self._last_at)
        self._last_at = now

    @property
    def seconds(self) -> float | None:
        """Median interval; None before two happenings."""
        return statistics.median(self._intervals) if self._intervals else None
