"""Ports that the owner of an exchange provides, and the context that its roles share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec
from averaging.fragment.runtime import FragmentRuntime
from averaging.lanes.links import Links
from averaging.outer.change_buffers import Change, Deliver, Lend
from averaging.outer.outer_settings import OuterRule
from averaging.outer.robust_mean import ShardContribution
from averaging.outer.shard_mean import Reduction, reduce_shard
from averaging.rounds.leader import Leading
from averaging.rounds.machine_events import Event
from averaging.rounds.round_facts import Report
from averaging.trust.claim_guard import Guard
from averaging.wire.messages import Message
from dht.ground.compute import Compute
from dht.ground.host import PeerId

Reduce = Callable[
    [Sequence[ShardContribution], OuterRule, Codec, int, EncodedBlocks | None],
    Reduction | None,
]
"""Signature of `averaging.outer.shard_mean.reduce_shard`."""


@dataclass(frozen=True, slots=True)
class RoundParts:
    """Replaceable parts of rounds: the simulator's dishonest peers have their own.

    Attributes:
        reduce: makes a mean.
        says: returns the message to send instead of a message.
        leading_type: class that leads a round.
    """

    reduce: Reduce = reduce_shard
    says: Callable[[Message], Message] = lambda message: message
    leading_type: type[Leading] = Leading


HONEST = RoundParts()


@dataclass(frozen=True, slots=True)
class ExchangePorts:
    """The outside world of an exchange.

    Attributes:
        deliver: takes changes of the live parameters and returns at once.
        lend: lends memory for these changes.
        rule_at: returns the outer rule of the commit that follows a version; None: the same rule for all.
        chance: returns a secret random number, uniform in [0, 1); the default begins no audits here.
        signs_of: returns the number of signs of life of a peer; None: all peers count as alive.
        rate_of: returns the upload rate that a remote announces, in bits per second; 0 if unknown.
    """

    clock: Callable[[], float]
    compute: Compute
    deliver: Deliver
    report: Callable[[Report], None]
    lend: Lend
    rule_at: Callable[[int], OuterRule] | None = None
    chance: Callable[[], float] = lambda: 1.0
    signs_of: Callable[[PeerId], int] | None = None
    rate_of: Callable[[PeerId], float] = lambda remote: 0.0
    parts: RoundParts = HONEST


@dataclass(frozen=True, slots=True)
class Context:
    """Context that the roles of one exchange share.

    Attributes:
        rule: the rule for all decisions except the rates of one commit.
        members: returns the members that get messages about rounds, as far as this peer sees them.
        lost: peers whose connection was lost and that have sent nothing since.
        step: passes an event to a fragment's machine, and performs the effects.
        spawn: runs a coroutine in the background.
    """

    me: PeerId
    rule: OuterRule
    fragments: Sequence[FragmentRuntime]
    guard: Guard
    links: Links
    ports: ExchangePorts
    members: Callable[[], Sequence[PeerId]]
    lost: Collection[PeerId]
    step: Callable[[FragmentRuntime, Event], None]
    spawn: Callable[[Coroutine[Any, Any, None]], None]

    def rule_at(self, fragment: FragmentRuntime, version: int) -> OuterRule:
        rule = self.rule if self.ports.rule_at is None else self.ports.rule_at(version)
        return rule.of_buffers() if fragment.of_buffers else rule

    def show(self, fragment: FragmentRuntime, change: Change | None) -> None:
        """Pass a change of the live parameters to the trainer, unless it is None."""
        if change is not None:
            self.ports.deliver(fragment.index, change, fragment.state.version)
