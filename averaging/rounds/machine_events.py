"""Inputs of a round machine (events), and its requests and reports (effects). Values only."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.rounds.round_facts import Fact
from averaging.wire.messages import Commit, Message, Offer, Plan, Result
from dht.ground.host import PeerId

# ------------------------------------------------------------------------------------------------- events, in


@dataclass(frozen=True, slots=True)
class Ready:
    """This peer has a contribution to offer. The machine fills in `offer.version` and `offer.attempt`."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class View:
    """The live members, by their part in rounds (`presence.py`), sorted by PeerId, without duplicates.

    Attributes:
        trainers: trainers that count: they form the quorum, are awaited, and lead.
        followers: members that only follow (seeds, joiners, newcomers).
        num_known: number of trainers that count, including unresponsive ones whose records are alive. A peer that lost
            its own line finds all others silent, and must not consider itself a quorum.
        newcomers: trainers that were met and do not count; they lead when no other trainer can.
        awaited: trainers that get time to offer, and of which a commit needs more than a quarter: those that count, and
            newcomers that take part; if no member is established, all with a record. Empty: `trainers`.
    """

    trainers: tuple[PeerId, ...]
    followers: tuple[PeerId, ...] = ()
    num_known: int = 0
    newcomers: tuple[PeerId, ...] = ()
    awaited: tuple[PeerId, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "trainers", tuple(sorted(set(self.trainers))))
        object.__setattr__(self, "followers", tuple(sorted(set(self.followers))))
        object.__setattr__(self, "newcomers", tuple(sorted(set(self.newcomers))))


@dataclass(frozen=True, slots=True)
class Heard:
    """A checked message has arrived."""

    sender: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection to a peer broke, or the peer could not be reached."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class ContributionArrived:
    """A contribution to a shard of the round (attempt, leader) or, if late, of the previous version, has arrived from
    `sender`.
    """

    sender: PeerId
    attempt: int
    leader: PeerId
    shard: int
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class ResultArrived:
    """A result of the current version has arrived from `sender`."""

    sender: PeerId
    shard: int


@dataclass(frozen=True, slots=True)
class ShardReduced:
    """This peer's reduction of a shard finished."""

    attempt: int
    leader: PeerId
    shard: int
    digest: bytes
    included: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Advanced:
    """The anchor is at `version`: the commit in progress was applied, or the fragment was fetched.

    `adopted` are the recent commits of the fetched lineage, or None after a commit. `passed_over` are not asked to lead
    from now on.
    """

    version: int
    anchor_digest: bytes
    lineage_tokens: int
    adopted: tuple[Commit, ...] | None = None
    passed_over: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class ApplyFailed:
    """The commit's results cannot be fetched from any peer. The anchor did not change."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Ready | View | Heard | Lost | ContributionArrived | ResultArrived | ShardReduced | Advanced | ApplyFailed | Tick
"""Input of a round machine."""


# ------------------------------------------------------------------------------------------------ effects, out


@dataclass(frozen=True, slots=True)
class SendMessage:
    to: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class SendShards:
    """Send the shards of this peer's contribution to their reducers."""

    plan: Plan
    leader: PeerId


@dataclass(frozen=True, slots=True)
class ReduceShard:
    """Average these members' contributions to one shard, encode the mean and report `ShardReduced`."""

    plan: Plan
    leader: PeerId
    shard: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendResult:
    """Send the encoded mean of a shard."""

    result: Result
    to: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """Fetch the missing results, apply the commit and report `Advanced`."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Repair:
    """Fetch the fragment's anchor from the swarm; `peer_id` claims a heavier one."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class WronglySigned:
    """A member sent something without its required signature."""

    peer_id: PeerId
    what: str


Effect = SendMessage | SendShards | ReduceShard | SendResult | Apply | Repair | WronglySigned | Fact
"""Action that a round machine requests, or fact that it reports."""
