"""What a round machine is told (events), and what it asks for or has to report (effects). Values only."""

from __future__ import annotations

from dataclasses import dataclass

from averaging.rounds.round_facts import Effect
from averaging.wire.messages import Commit, Message, Offer, Plan, Result
from dht.ground.host import PeerId

# ------------------------------------------------------------------------------------------------- events, in


class Event:
    """What a round machine is told."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Ready(Event):
    """This peer's contribution is encoded; `offer.version` and `offer.attempt` are filled in by the machine."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class View(Event):
    """The trainers that count (`presence.py`), and the members that only follow (seeds, joiners, newcomers).

    `num_known` also counts the trainers that do not answer now though their records are alive. A peer that lost its own
    line sees everybody silent, and must not take itself for a quorum. `newcomers` lead when no other trainer can.
    `awaited` are given time to offer; empty: `trainers`.

    All are kept in the order of the PeerIds, each once.
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
class Heard(Event):
    """A checked message arrived."""

    sender: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The connection to a peer broke or it could not be reached."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class ContributionArrived(Event):
    """A shard's contribution for the round (attempt, leader) is here, from `sender`; or, late, for the previous one."""

    sender: PeerId
    attempt: int
    leader: PeerId
    shard: int
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class ResultArrived(Event):
    """A result of the current version is here, from `sender`."""

    sender: PeerId
    shard: int


@dataclass(frozen=True, slots=True)
class ShardReduced(Event):
    """This peer's reduction of a shard finished."""

    attempt: int
    leader: PeerId
    shard: int
    digest: bytes
    included: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Advanced(Event):
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
class ApplyFailed(Event):
    """The commit's results cannot be had from anyone; the anchor is where it was."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed."""


# ------------------------------------------------------------------------------------------------ effects, out


@dataclass(frozen=True, slots=True)
class SendMessage(Effect):
    to: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class SendShards(Effect):
    """Send this peer's contribution's shards to their reducers."""

    plan: Plan
    leader: PeerId


@dataclass(frozen=True, slots=True)
class ReduceShard(Effect):
    """Average these members' contributions of one shard, encode, report `ShardReduced`."""

    plan: Plan
    leader: PeerId
    shard: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendResult(Effect):
    """Stream the encoded mean of a shard."""

    result: Result
    to: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Apply(Effect):
    """Fetch missing result shards, apply the commit, report `Advanced`."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Repair(Effect):
    """Fetch the fragment's anchor from the swarm; `peer_id` has a heavier one."""

    peer_id: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class WronglySigned(Effect):
    """A member sent something that must be signed by it and is not."""

    peer_id: PeerId
    what: str
