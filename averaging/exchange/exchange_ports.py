"""What the owner of an exchange gives it, and what its roles share."""

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
"""As `averaging.outer.shard_mean.reduce_shard`."""


@dataclass(frozen=True, slots=True)
class RoundParts:
    """What rounds are made of, so that the simulator's liars can have others.

    Attributes:
        reduce: makes a mean.
        says: what is sent in place of a message.
        leading_type: how a round is led.
    """

    reduce: Reduce = reduce_shard
    says: Callable[[Message], Message] = lambda message: message
    leading_type: type[Leading] = Leading


HONEST = RoundParts()


@dataclass(frozen=True, slots=True)
class ExchangePorts:
    """The outside world of an exchange.

    Attributes:
        deliver: takes changes for the live parameters and returns at once.
        lend: memory for such a change.
        rule_at: the outer rule of the commit that leaves a version; None: the same for all.
        chance: uniform in [0, 1) and known to nobody else; by default no audit begins here.
        signs_of: counts what was heard of a peer; None: everybody lives on.
        rate_of: bits per second that a remote says its upload link takes; 0 when that is not known.
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
    """What the roles of one exchange share.

    Attributes:
        rule: of all decisions that are not about one commit's rates.
        members: those that hear of rounds, as far as this peer sees them.
        lost: peers to which the connection was lost, and of which nothing came since.
        step: gives a fragment's machine an event, and performs what it asks for.
        spawn: runs something beside all else.
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
        """Give a change of the live parameters to the trainer; None: there is none."""
        if change is not None:
            self.ports.deliver(fragment.index, change, fragment.state.version)

    def show_anew(self, fragment: FragmentRuntime) -> None:
        """Have the trainer take all that the live parameters are to show."""
        self.ports.deliver(fragment.index, None, fragment.state.version)
