"""Deadlines learned from past durations: for a known link its own, otherwise the group's. Pure.

The rule is the classical one for retransmission (median + k deviations of past durations, between hard bounds), with
medians instead of means, so that one stall does not change it. A duration that was awaited in vain counts as twice the
wait, so a link that became slow gets more time. A link that missed three times in a row gets no more than the group.
Otherwise a peer that promises but never delivers would delay all others.
"""

from __future__ import annotations

import statistics
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from dht.ground.bounds import Newest
from dht.ground.host import PeerId

_DEVIATION = 1.4826
"""Scales the median absolute deviation to a standard deviation for normal data."""
NUM_DEVIATIONS = 4
FEWEST_ARRIVALS = 3
"""Two durations have a median, but do not show the spread."""
GROUP_ARRIVALS = 32
LINK_ARRIVALS = 16
"""For each remote and kind; half of them must change before the median does."""
MISSES_OF_ABSENT = 3
MAX_LINKS = 256
"""As many as a roster; the remote that was observed least recently is forgotten first. 150 bytes each."""


@dataclass(slots=True)
class LearnedDeadline:
    """Deadline of median + 4 deviations of the last durations, between hard bounds; `initial_seconds` until three are
    known.

    Attributes:
        most: number of durations kept.
        misses: number of consecutive newest waits in vain.
    """

    initial_seconds: float
    lowest_seconds: float
    highest_seconds: float
    most: int = GROUP_ARRIVALS
    misses: int = 0
    _seen: array[float] = field(default_factory=lambda: array("d"))
    _known: float | None = None

    def observe(self, seconds: float) -> None:
        """Add an observed duration; the hard bound limits it."""
        self._add(seconds)
        self.misses = 0

    def miss(self, seconds: float) -> None:
        """Add a wait of `seconds` in vain."""
        self._add(2 * seconds)
        self.misses += 1

    @property
    def is_learned(self) -> bool:
        return len(self._seen) >= FEWEST_ARRIVALS

    @property
    def seconds(self) -> float:
        # Read much more often than it changes.
        if self._known is None:
            value = self.initial_seconds
            if self.is_learned:
                middle = statistics.median(self._seen)
                spread = statistics.median(abs(seconds - middle) for seconds in self._seen)
                value = middle + NUM_DEVIATIONS * _DEVIATION * spread + 0.1 * middle
            self._known = min(max(value, self.lowest_seconds), self.highest_seconds)
        return self._known

    def _add(self, seconds: float) -> None:
        self._seen.append(min(max(seconds, 0.0), self.highest_seconds))
        if len(self._seen) > self.most:
            del self._seen[0]
        self._known = None


class LinkDeadlines:
    """Learned deadlines of one kind of arrival: a separate one for each known remote, and the group's for new remotes.

    Args:
        initial_seconds, lowest_seconds, highest_seconds: see `LearnedDeadline`; the bounds hold for each remote. The
            last one limits the first two.
    """

    def __init__(self, initial_seconds: float, lowest_seconds: float, highest_seconds: float) -> None:
        initial_seconds, lowest_seconds = min(initial_seconds, highest_seconds), min(lowest_seconds, highest_seconds)
        self._new_deadline = partial(LearnedDeadline, initial_seconds, lowest_seconds, highest_seconds)
        self._group = self._new_deadline()
        self._links: Newest[PeerId, LearnedDeadline] = Newest(MAX_LINKS)

    def observe(self, peer_id: PeerId, seconds: float) -> None:
        """Note that something from `peer_id` arrived after `seconds`."""
        self._group.observe(seconds)
        self._link(peer_id).observe(seconds)

    def missed(self, peer_id: PeerId) -> None:
        """Note that nothing arrived from `peer_id` within its allowance."""
        waited = self.allowance(peer_id)
        self._link(peer_id).miss(waited)

    def allowance(self, peer_id: PeerId) -> float:
        """Return how long to wait for `peer_id`, in seconds."""
        link = self._links.get(peer_id)
        if link is None or not link.is_learned:
            return self.seconds
        return min(link.seconds, self.seconds) if link.misses >= MISSES_OF_ABSENT else link.seconds

    def longest(self, peer_ids: Iterable[PeerId]) -> float:
        """Return the longest allowance of `peer_ids`; the group's if there are none."""
        # All newcomers share one allowance, which is needed at each event.
        known = {peer_id if peer_id in self._links else None for peer_id in peer_ids}
        return max((self.seconds if one is None else self.allowance(one) for one in known), default=self.seconds)

    def is_absent(self, peer_id: PeerId) -> bool:
        """Return whether the last three waits for `peer_id` were in vain."""
        link = self._links.get(peer_id)
        return link is not None and link.misses >= MISSES_OF_ABSENT

    @property
    def seconds(self) -> float:
        """The group's allowance, which holds for unknown remotes."""
        return self._group.seconds

    def _link(self, peer_id: PeerId) -> LearnedDeadline:
        link = self._links.pop(peer_id, None) or self._new_deadline(most=LINK_ARRIVALS)
        self._links[peer_id] = link
        return link


class LearnedPace:
    """The median time between the last few events of one kind."""

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._intervals: deque[float] = deque(maxlen=8)

    def observe(self, now: float) -> None:
        if self._last_at is not None:
            self._intervals.append(now - self._last_at)
        self._last_at = now

    @property
    def seconds(self) -> float | None:
        """Median interval; None before two events."""
        return statistics.median(self._intervals) if self._intervals else None
