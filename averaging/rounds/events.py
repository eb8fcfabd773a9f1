"""What a round machine is told (events), and what it asks for or has to report (effects). Values only."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.rounds.round_facts import Fact
from averaging.wire.cell_messages import SliceOrder
from averaging.wire.messages import Commit, Message, Offer, Plan
from dht.host import PeerId

# ------------------------------------------------------------------------------------------------- events, in


@dataclass(frozen=True, slots=True)
class Ready:
    """This peer's contribution is encoded; `offer.version` and `offer.attempt` are filled in by the machine."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class View:
    """The live trainers, this peer included when it trains, and the members that only follow (seeds, joiners).

    `num_known` counts also the trainers that do not answer now though their records are alive. A peer that lost its own
    line sees everybody silent, and must not take itself for a quorum.

    Both are kept in the order of the PeerIds, each once.
    """

    trainers: tuple[PeerId, ...]
    followers: tuple[PeerId, ...] = ()
    num_known: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "trainers", tuple(sorted(set(self.trainers))))
        object.__setattr__(self, "followers", tuple(sorted(set(self.followers))))


@dataclass(frozen=True, slots=True)
class Heard:
    """A checked message arrived."""

    sender: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection to a peer broke or it could not be reached."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class ContributionArrived:
    """A shard's contribution for the round (attempt, leader) is here, from `sender`; or, late, for the previous one."""

    sender: PeerId
    attempt: int
    leader: PeerId
    shard: int
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class ResultArrived:
    """A result of the current version is here, from `sender`."""

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
    """The anchor is now at `version`: the commit under way was applied, or the fragment was fetched.

    `adopted` are the recent commits of the lineage that was fetched, and None after a commit. `passed_over` are not
    asked to lead from now on.
    """

    version: int
    anchor_digest: bytes
    lineage_tokens: int
    adopted: tuple[Commit, ...] | None = None
    passed_over: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class ApplyFailed:
    """The commit's results cannot be had from anyone; the anchor is where it was."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class PartialArrived:
    """Cell number `cell`'s mean of a slice is here, from `sender`, for the round above the cells (attempt, leader)."""

    sender: PeerId
    attempt: int
    leader: PeerId
    slice: int
    cell: int


@dataclass(frozen=True, slots=True)
class SliceReduced:
    """This peer's averaging of slice `order.numbers[position]` across cells finished; `included` are cells."""

    order: SliceOrder
    position: int
    digest: bytes
    included: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = (
    Ready
    | View
    | Heard
    | Lost
    | ContributionArrived
    | ResultArrived
    | ShardReduced
    | Advanced
    | ApplyFailed
    | PartialArrived
    | SliceReduced
    | Tick
)

# ------------------------------------------------------------------------------------------------ effects, out


@dataclass(frozen=True, slots=True)
class SendMessage:
    to: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class SendShards:
    """Send this peer's contribution's shards to their reducers."""

    plan: Plan
    leader: PeerId


@dataclass(frozen=True, slots=True)
class ReduceShard:
    """Average these members' contributions of one shard, encode, report `ShardReduced`."""

    plan: Plan
    leader: PeerId
    shard: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendResult:
    """Stream the encoded mean of one shard to the other members."""

    plan: Plan
    shard: int
    to: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class SendPartials:
    """Send this peer's cell's means of these slices to their owners; `leader` is the cell's."""

    order: SliceOrder
    leader: PeerId


@dataclass(frozen=True, slots=True)
class ReduceSlice:
    """Average these cells' means of slice `order.numbers[position]`, encode, report `SliceReduced`."""

    order: SliceOrder
    leader: PeerId
    position: int
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendSlice:
    """Stream the encoded mean of a slice of which this peer is the owner."""

    order: SliceOrder
    position: int
    to: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """Fetch missing result shards, apply the commit, report `Advanced`."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Repair:
    """Fetch the fragment's anchor from the swarm; `peer_id` has a heavier one."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class WronglySigned:
    """A member sent something that must be signed by it and is not."""

    peer_id: PeerId
    what: str


Effect = (
    SendMessage
    | SendShards
    | ReduceShard
    | SendResult
    | SendPartials
    | ReduceSlice
    | SendSlice
    | Apply
    | Repair
    | WronglySigned
    | Fact
)
"""What must be done, or, as a `Fact`, what happened."""
