"""What an exchange tells its owner: past-tense facts about rounds. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from averaging.rounds.events import (
    Awaited,
    DeadlinePassed,
    Effect,
    LeaderReplaced,
    QuorumAwaited,
    RoundFailed,
    RoundStarted,
)
from averaging.wire.messages import Commit
from dht.host import PeerId


@dataclass(frozen=True, slots=True)
class RoundBegan:
    fragment: int
    version: int
    leader: PeerId
    num_members: int


@dataclass(frozen=True, slots=True)
class ContributionSent:
    fragment: int
    version: int
    num_bytes: int
    tokens: int
    steps: int
    staleness: int


@dataclass(frozen=True, slots=True)
class RoundClosed:
    """A commit was applied here.

    `up_*` count this peer's contribution (payload and all framing, offers included) and the values it covers;
    `down_*` the results it received and their values. Both are 0 when this peer was not in the round.
    """

    fragment: int
    commit: Commit
    outer_lr: float
    own_included: bool
    seconds: float
    up_bytes: int
    up_values: int
    down_bytes: int
    down_values: int


@dataclass(frozen=True, slots=True)
class CommitApplied:
    """The commit that left `version`: its results came within `receive_seconds`, then it was applied."""

    fragment: int
    version: int
    receive_seconds: float
    apply_seconds: float


@dataclass(frozen=True, slots=True)
class AnchorMoved:
    fragment: int
    version: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class RoundAborted:
    fragment: int
    version: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    fragment: int
    version: int
    attempt: int
    old: PeerId
    new: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class DeadlineExpired:
    """`waited_for` were waited for in vain for `seconds`; the time was learned from `num_arrivals` arrivals."""

    fragment: int
    version: int
    awaited: Awaited
    waited_for: tuple[PeerId, ...]
    seconds: float
    num_arrivals: int


@dataclass(frozen=True, slots=True)
class QuorumMissing:
    """A round led here has too few offers; it begins without the `missing` in `seconds` at the latest."""

    fragment: int
    version: int
    num_offers: int
    quorum: int
    missing: tuple[PeerId, ...]
    seconds: float
    num_arrivals: int


@dataclass(frozen=True, slots=True)
class WorkReturned:
    """Own work did not get into a round and waits again."""

    fragment: int
    version: int
    reason: str
    num_values: int


@dataclass(frozen=True, slots=True)
class WorkExpired:
    """Own work is older than the staleness limit allows anyone to apply, and was dropped."""

    fragment: int
    version: int
    staleness: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WorkForgotten:
    """Own work of `tokens` is not in the lineage that was adopted at `version`, or is in it twice, for `reason`."""

    fragment: int
    version: int
    tokens: int
    is_doubled: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RepairNeeded:
    """The fragment must be fetched from the swarm; `Applying.repaired` ends it."""

    fragment: int
    version: int
    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """Something a remote sent was refused, or (`is_left_out`) it is left out of rounds for a while from now on.

    Attributes:
        counts: (offence, how often) of that remote since it was last forgiven, this one included.
        left_out_seconds: how long from now on.
    """

    peer_id: PeerId
    reason: str
    left_out_seconds: float = 0.0
    counts: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @property
    def is_left_out(self) -> bool:
        return self.left_out_seconds > 0


ExchangeReport = (
    RoundBegan
    | ContributionSent
    | RoundClosed
    | CommitApplied
    | AnchorMoved
    | RoundAborted
    | LeaderChanged
    | DeadlineExpired
    | QuorumMissing
    | WorkReturned
    | WorkExpired
    | WorkForgotten
    | RepairNeeded
    | PeerRefused
)


def report_of(fragment: int, version: int, effect: Effect) -> ExchangeReport | None:
    """What the owner is told when a round machine at `version` says `effect`; None for what must be done instead."""
    match effect:
        case RoundStarted(leader, num_members):
            return RoundBegan(fragment, version, leader, num_members)
        case RoundFailed(attempt, reason):
            return RoundAborted(fragment, version, attempt, reason)
        case LeaderReplaced(attempt, old, new, reason):
            return LeaderChanged(fragment, version, attempt, old, new, reason)
        case DeadlinePassed(awaited, waited_for, seconds, num_arrivals):
            return DeadlineExpired(fragment, version, awaited, waited_for, seconds, num_arrivals)
        case QuorumAwaited(num_offers, quorum, missing, seconds, num_arrivals):
            return QuorumMissing(fragment, version, num_offers, quorum, missing, seconds, num_arrivals)
    return None
