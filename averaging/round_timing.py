"""What a peer has learned about durations, per fragment; shared by all its rounds of that fragment. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.deadlines import LearnedPace, LinkDeadlines

HEARTBEAT_SECONDS = 1.0
"""A waiting leader says so this often: a member may then call a few missed ones silence, however long rounds take."""
MISSED_HEARTBEATS = 3
"""A lost packet delays one sign of life by up to a second; three in a row are more than that."""
LEAST_GRACE_SECONDS = 0.5
"""Peers in step offer within milliseconds; a short stall of one line must not leave its peer out of the round."""
MOST_PATIENCE = 5


def patience_factor(attempt: int) -> int:
    """How many times longer than usual to wait in a later attempt at a round: what failed may only have been slow."""
    return min(1 + attempt, MOST_PATIENCE)


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
    """

    offer: LinkDeadlines
    contribution: LinkDeadlines
    reduced: LinkDeadlines
    result: LinkDeadlines
    leader_silence: LinkDeadlines
    own_pace: LearnedPace
    hard_seconds: float

    @classmethod
    def with_bounds(cls, hard_seconds: float) -> RoundTiming:
        """Deadlines that start patient and learn; `hard_seconds` is the manifest's upper bound of each."""

        def learned(initial_seconds: float, lowest_seconds: float) -> LinkDeadlines:
            return LinkDeadlines(min(initial_seconds, hard_seconds), min(lowest_seconds, hard_seconds), hard_seconds)

        return cls(
            offer=learned(hard_seconds, LEAST_GRACE_SECONDS),
            contribution=learned(10.0, 1.0),
            reduced=learned(20.0, 1.0),
            result=learned(3.0, 0.5),
            leader_silence=learned(2 * MISSED_HEARTBEATS * HEARTBEAT_SECONDS, MISSED_HEARTBEATS * HEARTBEAT_SECONDS),
            own_pace=LearnedPace(),
            hard_seconds=hard_seconds,
        )
