"""What a peer has learned about durations, per fragment; shared by all its rounds of that fragment. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from averaging.rounds.duration_statistics import LearnedPace, LinkDeadlines
from dht.ground.host import PeerId

HEARTBEAT_SECONDS = 1.0
"""A waiting leader says so this often: a member may then call a few missed ones silence, however long rounds take."""
MISSED_HEARTBEATS = 3
"""A lost packet delays one sign of life by up to a second; three in a row are more than that."""
LEAST_GRACE_SECONDS = 0.5
"""Peers in step offer within milliseconds; a short stall of one line must not leave its peer out of the round."""
LEAST_INTERVAL_SECONDS = MISSED_HEARTBEATS * HEARTBEAT_SECONDS
"""What waits follow from where rounds could be faster: even a live peer may be quiet for this long, as on a busy
machine."""
MOST_PATIENCE = 5


def patience_factor(attempt: int) -> int:
    """How many times longer than usual to wait in a later attempt at a round: what failed may only have been slow."""
    return min(1 + attempt, MOST_PATIENCE)


PATIENCE_OF_PACE = 0.9
"""Of the time between two own sends, shared by all fragments: a member that needs longer cannot keep pace."""
PATIENCE_OF_PAIR = 2.0
"""The same of a single other member, without which the round would be none."""


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """Learned durations of one kind each, per remote.

    Attributes:
        offer: from a round's first offer at its leader until this trainer's.
        contribution: from the plan until a member's shard was at its reducer.
        reduced: from the plan until a reducer's report was at the leader, or its result at a member.
        result: from the commit, or from asking, until a holder's result shard was here.
        leader_silence: between two signs of life of a leader.
        own_pace: between two own sends of the fragment.
        hard_seconds: the manifest's upper bound of each.
        num_fragments: of the run, which take turns on the lines.
    """

    offer: LinkDeadlines
    contribution: LinkDeadlines
    reduced: LinkDeadlines
    result: LinkDeadlines
    leader_silence: LinkDeadlines
    own_pace: LearnedPace
    hard_seconds: float
    num_fragments: int = 1

    @classmethod
    def with_bounds(cls, hard_seconds: float, num_fragments: int = 1) -> RoundTiming:
        """Deadlines that start patient and learn; `hard_seconds` is the manifest's upper bound of each."""
        learned = partial(LinkDeadlines, highest_seconds=hard_seconds)
        return cls(
            offer=learned(hard_seconds, LEAST_GRACE_SECONDS),
            contribution=learned(10.0, 1.0),
            reduced=learned(20.0, 1.0),
            result=learned(3.0, 0.5),
            leader_silence=learned(2 * MISSED_HEARTBEATS * HEARTBEAT_SECONDS, MISSED_HEARTBEATS * HEARTBEAT_SECONDS),
            own_pace=LearnedPace(),
            hard_seconds=hard_seconds,
            num_fragments=num_fragments,
        )

    @property
    def interval_seconds(self) -> float | None:
        """Between two rounds, as far as waits follow from it: `own_pace`, and never less than a peer may be quiet.

        Rounds that are faster than others get there leave them behind for good. Each commit comes too late for the next
        round, and all that they fetch is old by the time they have it.
        """
        pace = self.own_pace.seconds
        return None if pace is None else max(pace, LEAST_INTERVAL_SECONDS)

    def contribution_patience(
        self, peer_ids: Iterable[PeerId], attempt: int, *, is_pair: bool = False
    ) -> dict[PeerId, float]:
        """How long to wait for each member's contribution: as it takes, but not so that one delays everybody's rounds.

        A member that takes longer than a round may, and longer than the others, is dropped then. Where most lines
        are slow, rounds take as long as they take.

        Args:
            peer_ids: the other members.
            is_pair: the swarm has one other trainer.
        """
        factor = patience_factor(attempt)  # the lines still carry what was sent for the attempts before
        allowed = {peer_id: self.contribution.allowance(peer_id).seconds * factor for peer_id in peer_ids}
        pace = self.interval_seconds
        if pace is None or not allowed:
            return allowed
        most = (PATIENCE_OF_PAIR if is_pair else PATIENCE_OF_PACE / self.num_fragments) * pace
        if len(allowed) > 1:
            most = max(most, statistics.median_low(allowed.values()))
        return {peer_id: min(seconds, most) for peer_id, seconds in allowed.items()}

    def reduces_in_time(self, peer_ids: Sequence[PeerId]) -> list[bool]:
        """The members whose means were seen to come in time; all members where nobody's do."""
        seconds = [self.reduced.allowance(peer_id).seconds for peer_id in peer_ids]
        pace = self.interval_seconds
        if pace is None:
            return [True] * len(seconds)
        most = max(PATIENCE_OF_PACE / self.num_fragments * pace, 2 * statistics.median_low(seconds))
        return [one <= most for one in seconds]
