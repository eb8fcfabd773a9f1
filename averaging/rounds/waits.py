"""How long a member waits for others in a round. Pure.

All waits follow from two facts, which each peer measures for each fragment:

- the *pace*: how long this peer needs from one contribution to the next, and how long after the first offer of a round
  each other member offers;
- the *line*: how long each other member's contribution takes to get here, how long a reducer's mean takes (that way
  twice, and the reducer's waits), and which rate a member's line has by its own word.

The manifest bounds each wait (`hard_seconds`). A wait that is longer than an interval would take the next round's time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from averaging.rounds.duration_statistics import LearnedPace, LinkDeadlines
from dht.ground.host import PeerId

HEARTBEAT_SECONDS = 1.0
"""A waiting leader sends a sign of life this often. Less than this is never called late: one line stalls that long."""
QUIET_SECONDS = 3 * HEARTBEAT_SECONDS
"""A live peer may be quiet for this long: a lost packet delays a sign of life by a second, a busy machine by more.
Rounds may be faster than that, but no wait follows from a shorter interval: those who were quiet would be left behind
for good."""
FIRST_SECONDS = 10.0
"""Of each learned wait, before three arrivals: a home connection brings 12 MB in it, and later attempts wait longer."""
SHARE_OF_INTERVAL = 0.7
"""What the wait for offers may take of an interval, and what contributions may take of the line's time. Means and
commits need the rest."""
NEXT_INTERVALS = 1.2
"""From the beginning of a round to that of the next, unless all have offered: an interval and a little. Otherwise a
peer that just missed a round would open the next one at once, alone, and the others would miss that one in turn."""
QUORUM_INTERVALS = 1.5
"""A live trainer offers once in an interval: whoever has not after this much of it will not soon."""
LAST_INTERVALS = 2.0
"""For those without whom a round is worth little: the only other trainer, and the majority that a commit lacks."""
MOST_OF_MEDIAN = 2.0
"""Times the median of the members. Where most are slow, rounds take as long as they take."""
MOST_PATIENCE = 5
LINE_SHARERS = 2
"""A member's line serves this peer and, as a rule, another one."""


def patience_factor(attempt: int) -> int:
    """How many times longer than usual to wait in a later attempt at a round: what failed may only have been slow."""
    return min(1 + attempt, MOST_PATIENCE)


def silence_seconds(attempt: int, *, is_heard: bool) -> float:
    """How long a leader may send no sign of life; twice that before the first one, for which a stream is opened."""
    return (1 if is_heard else 2) * QUIET_SECONDS * patience_factor(attempt)


def line_seconds(num_bytes: int, bits_per_second: float) -> float:
    """How long a line that others use as well needs for so many bytes; 0 when its rate is not known."""
    return LINE_SHARERS * 8 * num_bytes / bits_per_second if bits_per_second > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Waits:
    """What a peer has learned about durations in one fragment's rounds, and the waits that follow.

    Attributes:
        offer: from a round's first offer at its leader until this trainer's.
        line: from the plan until a member's shard was at its reducer.
        mean: from the plan until a reducer's report was at the leader, or its result at a member.
        own_pace: between two own sends of the fragment.
        hard_seconds: the manifest's upper bound of each wait.
        num_fragments: of the run, which take turns on the lines.
    """

    offer: LinkDeadlines
    line: LinkDeadlines
    mean: LinkDeadlines
    own_pace: LearnedPace
    hard_seconds: float
    num_fragments: int = 1

    @classmethod
    def with_bounds(cls, hard_seconds: float, num_fragments: int = 1) -> Waits:
        """Waits that begin patient and learn."""
        offer, line, mean = (LinkDeadlines(FIRST_SECONDS, HEARTBEAT_SECONDS, hard_seconds) for _ in range(3))
        return cls(offer, line, mean, LearnedPace(), hard_seconds, num_fragments)

    @property
    def interval_seconds(self) -> float | None:
        """Between two rounds, as far as waits follow from it; None while the own pace is not known."""
        pace = self.own_pace.seconds
        return None if pace is None else max(pace, QUIET_SECONDS)

    # ---------------------------------------------------------------------------------------- before the plan

    def not_before(self, previous_began_at: float | None) -> float:
        """When the next round may begin, unless everybody has offered."""
        interval = self.interval_seconds
        if interval is None or previous_began_at is None:
            return 0.0
        return previous_began_at + NEXT_INTERVALS * interval

    def grace_seconds(self, missing: Collection[PeerId]) -> float:
        """How long after its first offer a round with a quorum waits for the missing: as long as they usually take.

        Peers of one speed have constant phases in the interval, so a window of most of it lets everybody take part in
        every round. A peer that missed the last three rounds is not waited for: it comes when it comes.
        """
        expected = [peer_id for peer_id in missing if not self.offer.is_absent(peer_id)]
        if not expected:
            return 0.0
        return min(self.offer.longest(expected), SHARE_OF_INTERVAL * (self.interval_seconds or QUIET_SECONDS))

    def quorum_seconds(self, missing: Iterable[PeerId]) -> float:
        """How long after its first offer a round waits for its quorum.

        A round without it may be one side of a fork: a line that stalls for seconds must not be enough for that.
        """
        interval = self.interval_seconds
        if interval is None:
            return self.hard_seconds
        return max(QUORUM_INTERVALS * interval, self.offer.longest(missing))

    # ----------------------------------------------------------------------------------------- after the plan

    def contribution_seconds(
        self, peer_ids: Iterable[PeerId], attempt: int, *, is_pair: bool = False
    ) -> dict[PeerId, float]:
        """How long to wait for each member's contribution: as it takes, but not so that one delays everybody's rounds.

        A member that takes longer than a round may, and longer than the others, is dropped then.

        Args:
            peer_ids: the other members.
            is_pair: no other trainer counts than this peer and one more.
        """
        factor = patience_factor(attempt)  # the lines still carry what was sent for the attempts before
        allowed = {peer_id: self.line.allowance(peer_id) * factor for peer_id in peer_ids}
        intervals = LAST_INTERVALS if is_pair and len(allowed) == 1 else 1 / self.num_fragments
        most = self._most(list(allowed.values()), intervals)
        return {peer_id: min(seconds, most) for peer_id, seconds in allowed.items()}

    def means_in_time(self, peer_ids: Sequence[PeerId]) -> list[bool]:
        """The members whose means were seen to come in time; all members where nobody's do."""
        seconds = [self.mean.allowance(peer_id) for peer_id in peer_ids]
        most = self._most(seconds, 1 / self.num_fragments)
        return [each <= most for each in seconds]

    def plan_seconds(self, contributions: Mapping[PeerId, float], reducers: Collection[PeerId]) -> tuple[float, float]:
        """From a plan until contributions, and until the commit, are not waited for any more.

        Args:
            contributions: see `contribution_seconds`.
        """
        mean = self.mean.longest(reducers)
        # A mean is there after the contributions to it, so its reducer may know of a slower line than this peer does.
        contribution = max([mean, *contributions.values()])
        # A reducer that waits for a dead member averages after that, and must still count.
        return contribution, contribution + mean

    def result_seconds(self, num_bytes: int = 0, bits_per_second: float = 0.0) -> float:
        """How long a holder may need to send results, or for the next one of them.

        A line whose rate nobody has measured was never busy for long.

        Args:
            num_bytes: of all results that it is to send.
            bits_per_second: of its line; 0 when that is not known.
        """
        return min(max(HEARTBEAT_SECONDS, line_seconds(num_bytes, bits_per_second)), self.hard_seconds)

    def delivery_seconds(self, to: PeerId, num_bytes: int, bits_per_second: float) -> float:
        """How long the other member of a pair may need to read a mean: as its contribution took, or as this line takes.

        Nobody else gains from waiting.
        """
        return max(self.line.allowance(to), line_seconds(num_bytes, bits_per_second))

    def bytes_each(self, bits_per_second: float) -> float:
        """What a line takes for one contribution while all fragments' are sent in turn; infinite when not known."""
        interval = self.interval_seconds
        if bits_per_second <= 0 or interval is None:
            return math.inf
        return SHARE_OF_INTERVAL * interval * bits_per_second / 8 / self.num_fragments

    def _most(self, seconds: Sequence[float], intervals: float) -> float:
        """The longest that a round waits for one of several members that take so long."""
        interval = self.interval_seconds
        if interval is None:
            return math.inf
        return max(intervals * interval, MOST_OF_MEDIAN * statistics.median_low(seconds) if len(seconds) > 1 else 0.0)
