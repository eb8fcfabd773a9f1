"""Waits of a member for other members in a round. Pure.

All waits follow from two kinds of durations, which each peer measures for each fragment:

- the *pace*: the time between two contributions of this peer, and the time from the first offer of a round to the offer
  of each other member;
- the *line*: the time until each other member's contribution arrives, the time until a reducer's mean arrives (twice
  that way, plus the reducer's waits), and the rate that a member announces for its line.

The manifest bounds each wait (`hard_seconds`). A wait longer than an interval would use up the next round's time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from averaging.rounds.duration_statistics import LearnedPace, LinkDeadlines
from dht.ground.host import PeerId

HEARTBEAT_SECONDS = 1.0
"""A waiting leader sends a sign of life at this interval. Shorter delays never count as late: lines stall that long."""
QUIET_SECONDS = 3 * HEARTBEAT_SECONDS
"""A live peer may be quiet for this time: a lost packet delays a sign of life by a second, a busy machine by more.
Rounds may be faster than that, but no wait follows from a shorter interval: quiet peers would be left behind for
good."""
FIRST_SECONDS = 10.0
"""Length of each learned wait before three arrivals: a home connection transfers 12 MB in it, and later attempts wait
longer."""
SHARE_OF_INTERVAL = 0.7
"""Share of an interval for the wait for offers, and share of the line's time for contributions. Means and commits need
the rest."""
NEXT_INTERVALS = 1.2
"""Intervals from the beginning of a round to the next, unless all have offered: a little more than one. Otherwise a
peer that just missed a round would open the next one at once, alone, and the others would miss that one in turn."""
QUORUM_INTERVALS = 1.5
"""A live trainer offers once in an interval: a trainer that has not offered after this many will not offer soon."""
LAST_INTERVALS = 2.0
"""Intervals to wait for essential members: the only other trainer, or the majority that a commit lacks."""
MOST_OF_MEDIAN = 2.0
"""Longest wait, in medians of the members. If most are slow, rounds take correspondingly long."""
MOST_PATIENCE = 5
LINE_SHARERS = 2
"""A member's line typically serves this peer and one more."""


def patience_factor(attempt: int) -> int:
    """Return the factor for waits in a later attempt at a round, because the earlier failure may have been slowness."""
    return min(1 + attempt, MOST_PATIENCE)


def silence_seconds(attempt: int, *, is_heard: bool) -> float:
    """Return how long a leader may give no sign of life; twice as long before the first one, for which a stream is
    opened.
    """
    return (1 if is_heard else 2) * QUIET_SECONDS * patience_factor(attempt)


def line_seconds(num_bytes: int, bits_per_second: float) -> float:
    """Return the seconds that a shared line needs for `num_bytes`; 0 if its rate is unknown."""
    return LINE_SHARERS * 8 * num_bytes / bits_per_second if bits_per_second > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Waits:
    """Learned durations of one fragment's rounds, and the waits that follow.

    Attributes:
        offer: from a round's first offer at its leader to this trainer's offer.
        line: from the plan until a member's shard arrived at its reducer.
        mean: from the plan until a reducer's report arrived at the leader, or its result at a member.
        own_pace: time between two own sends of the fragment.
        hard_seconds: the manifest's upper bound for each wait.
        num_fragments: number of the run's fragments, which share the lines.
    """

    offer: LinkDeadlines
    line: LinkDeadlines
    mean: LinkDeadlines
    own_pace: LearnedPace
    hard_seconds: float
    num_fragments: int = 1

    @classmethod
    def with_bounds(cls, hard_seconds: float, num_fragments: int = 1) -> Waits:
        """Return waits that begin long and learn."""
        offer, line, mean = (LinkDeadlines(FIRST_SECONDS, HEARTBEAT_SECONDS, hard_seconds) for _ in range(3))
        return cls(offer, line, mean, LearnedPace(), hard_seconds, num_fragments)

    @property
    def interval_seconds(self) -> float | None:
        """Interval between two rounds, as used for waits; None while the own pace is unknown."""
        pace = self.own_pace.seconds
        return None if pace is None else max(pace, QUIET_SECONDS)

    # ---------------------------------------------------------------------------------------- before the plan

    def not_before(self, previous_began_at: float | None) -> float:
        """Return when the next round may begin if not all members have offered."""
        interval = self.interval_seconds
        if interval is None or previous_began_at is None:
            return 0.0
        return previous_began_at + NEXT_INTERVALS * interval

    def grace_seconds(self, missing: Collection[PeerId]) -> float:
        """Return how long after its first offer a round with a quorum waits for the missing members: their typical
        time.

        Peers of equal speed have constant phases in the interval, so a window of most of the interval lets all take
        part in all rounds. A peer that missed the last three rounds is not awaited.
        """
        expected = [peer_id for peer_id in missing if not self.offer.is_absent(peer_id)]
        if not expected:
            return 0.0
        return min(self.offer.longest(expected), SHARE_OF_INTERVAL * (self.interval_seconds or QUIET_SECONDS))

    def quorum_seconds(self, missing: Iterable[PeerId]) -> float:
        """Return how long after its first offer a round waits for its quorum.

        A round without a quorum may be one side of a fork, and a line that stalls for seconds must not cause one.
        """
        interval = self.interval_seconds
        if interval is None:
            return self.hard_seconds
        return max(QUORUM_INTERVALS * interval, self.offer.longest(missing))

    # ----------------------------------------------------------------------------------------- after the plan

    def contribution_seconds(
        self, peer_ids: Iterable[PeerId], attempt: int, *, is_pair: bool = False
    ) -> dict[PeerId, float]:
        """Return how long to wait for each member's contribution: its learned time, bounded so that one member does not
        delay all rounds.

        A member that takes longer than a round may, and longer than the others, is then dropped.

        Args:
            peer_ids: the other members.
            is_pair: whether only this peer and one more trainer count.
        """
        factor = patience_factor(attempt)  # the lines still carry data of the earlier attempts
        allowed = {peer_id: self.line.allowance(peer_id) * factor for peer_id in peer_ids}
        intervals = LAST_INTERVALS if is_pair and len(allowed) == 1 else 1 / self.num_fragments
        most = self._most(list(allowed.values()), intervals)
        return {peer_id: min(seconds, most) for peer_id, seconds in allowed.items()}

    def means_in_time(self, peer_ids: Sequence[PeerId]) -> list[bool]:
        """Return for each member whether its means arrive in time; if no member's do, True for all."""
        seconds = [self.mean.allowance(peer_id) for peer_id in peer_ids]
        most = self._most(seconds, 1 / self.num_fragments)
        return [each <= most for each in seconds]

    def plan_seconds(self, contributions: Mapping[PeerId, float], reducers: Collection[PeerId]) -> tuple[float, float]:
        """Return the seconds from a plan until the waits for contributions, and for the commit, end.

        Args:
            contributions: see `contribution_seconds`.
        """
        mean = self.mean.longest(reducers)
        # A mean follows its contributions, so its reducer may know of a slower line than this peer does.
        contribution = max([mean, *contributions.values()])
        # A reducer that waits for a dead member averages after that, and must still be in time.
        return contribution, contribution + mean

    def result_seconds(self, num_bytes: int = 0, bits_per_second: float = 0.0) -> float:
        """Return how long a holder may take to send results, or the next one of them.

        A line without a measured rate was never busy for long.

        Args:
            num_bytes: bytes of all results that the holder is to send.
            bits_per_second: rate of its line; 0 if unknown.
        """
        return min(max(HEARTBEAT_SECONDS, line_seconds(num_bytes, bits_per_second)), self.hard_seconds)

    def delivery_seconds(self, to: PeerId, num_bytes: int, bits_per_second: float) -> float:
        """Return how long the other member of a pair may take to read a mean: as long as its contribution took, or by
        this line's rate.

        No other member gains from a longer wait.
        """
        return max(self.line.allowance(to), line_seconds(num_bytes, bits_per_second))

    def bytes_each(self, bits_per_second: float) -> float:
        """Return the bytes that a line can send for one contribution while all fragments take turns; infinite if
        unknown.
        """
        interval = self.interval_seconds
        if bits_per_second <= 0 or interval is None:
            return math.inf
        return SHARE_OF_INTERVAL * interval * bits_per_second / 8 / self.num_fragments

    def _most(self, seconds: Sequence[float], intervals: float) -> float:
        """Return the longest wait of a round for one of several members with these durations."""
        interval = self.interval_seconds
        if interval is None:
            return math.inf
        return max(intervals * interval, MOST_OF_MEDIAN * statistics.median_low(seconds) if len(seconds) > 1 else 0.0)
