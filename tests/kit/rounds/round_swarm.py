"""Round machines joined by queues: no asyncio, no arrays, and a test chooses what happens next.

A member does with its machine's effects what `averaging.exchange.exchange` does, as far as nothing fails. Crashes,
splits, lost and repeated messages are for whole peers: `tests.simulator`.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from averaging.rounds.machine_events import (
    Advanced,
    Apply,
    ContributionArrived,
    Effect,
    Event,
    Heard,
    Ready,
    ReduceShard,
    SendMessage,
    SendResult,
    SendShards,
    ShardReduced,
    Tick,
    View,
)
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.wire.frames import commit_digest
from averaging.wire.messages import DIGEST_BYTES, Commit, Message, Offer
from dht.ground.host import PeerId
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of

BLOCK = 8192  # the smallest shard, so that a fragment of few blocks has several reducers
MAX_CHOICES = 100_000


def digest_of(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()[:DIGEST_BYTES]


@dataclass
class Member:
    """One peer: its machine, whether it has work, the sequence of what it offered, and the lineage of its anchor."""

    machine: RoundMachine
    has_work: bool = False
    offered: int | None = None
    lineage: tuple[Commit, ...] = ()
    contributions: dict[tuple[int, int, PeerId, int], dict[PeerId, int]] = field(default_factory=dict)


class RoundSwarm:
    """Members, the queues between them, and what they may do next: take the head of a queue, or finish a task."""

    def __init__(self, num_peers: int, *, num_blocks: int = 1) -> None:
        self.now = 0.0
        self.names = [named(number) for number in range(num_peers)]
        self.num_blocks = num_blocks
        self.queues: dict[tuple[PeerId, PeerId], deque[Any]] = {}
        self.tasks: list[tuple[PeerId, ReduceShard | Apply]] = []
        self.said: list[tuple[PeerId, PeerId, Any]] = []
        """(sender, receiver, message), everything that was ever sent."""
        self.members = {name: self._new_member(name) for name in self.names}
        self._sequence = 0
        self.set_views()

    def _new_member(self, name: PeerId) -> Member:
        timing = Waits.with_bounds(60.0)
        machine = RoundMachine(name, "run", 0, self.num_blocks * BLOCK, BLOCK, timing, notary_of(name))
        machine.anchor_digest = digest_of("start")
        return Member(machine)

    def set_views(self, seen_by: Callable[[PeerId], list[PeerId]] | None = None) -> None:
        for name in self.names:
            self.step(name, View(tuple(seen_by(name) if seen_by else self.names)))

    def work(self, *names: PeerId) -> None:
        """The trainers hand over work."""
        for name in names:
            self.members[name].has_work = True
            self.members[name].machine.timing.own_pace.observe(self.now)
            self.offer(name)

    def offer(self, name: PeerId) -> None:
        member, machine = self.members[name], self.members[name].machine
        if not member.has_work or member.offered is not None or machine.applying:
            return
        self._sequence += 1
        member.offered, member.has_work = self._sequence, False
        place = (0, machine.version, 0, machine.anchor_digest, machine.version)
        self.step(name, Ready(Offer(*place, 10, 1, self._sequence, 0.0, True)))

    def drain(self, until: Callable[[], bool] = lambda: False) -> None:
        """Take everything in order, without letting time pass."""
        while (choices := self._choices()) and not until():
            choices[0]()

    def run(self, chance: random.Random) -> None:
        """Random orders until nothing is left to do."""
        for _ in range(MAX_CHOICES):
            self.tick()
            choices = self._choices()
            if choices:
                self.now += chance.expovariate(20 * len(choices))
                chance.choice(choices)()
                continue
            next_time = min(member.machine.next_time for member in self.members.values())
            if next_time == math.inf:
                return
            self.now = max(self.now, next_time)
        raise AssertionError(f"still busy after {MAX_CHOICES} choices")

    def tick(self) -> None:
        """Wake every machine that is due."""
        for name in self.names:
            machine = self.members[name].machine
            if machine.next_time <= self.now:
                self.step(name, Tick())
                assert machine.next_time > self.now, "a machine that was woken wants to be woken again at once"

    def step(self, name: PeerId, event: Event) -> None:
        machine = self.members[name].machine
        for effect in machine.step(event, self.now):
            self._perform(name, effect)
        if machine.is_offering and machine.applying is None:
            assert machine.next_time < math.inf, "waits for others without a timer"

    def assert_agreement(self) -> None:
        """Same version, same anchor, same chain of commits, and all work of each member in it at most once."""
        chains = {tuple(map(commit_digest, member.lineage)) for member in self.members.values()}
        assert len(chains) == 1, [member.machine.version for member in self.members.values()]
        places = {(member.machine.version, member.machine.anchor_digest) for member in self.members.values()}
        assert len(places) == 1
        sent = Counter(
            (commit.roster[index].peer_id, commit.roster[index].sequence)
            for commit in self.members[self.names[0]].lineage
            for index in commit.included
        )
        assert set(sent.values()) <= {1}, "work was committed twice"

    # ---------------------------------------------------------------------------------------- what the exchange does

    def _choices(self) -> list[Callable[[], None]]:
        deliver = [lambda key=key: self._deliver(*key) for key in sorted(self.queues)]
        return [*deliver, *(lambda number=number: self._finish(number) for number in range(len(self.tasks)))]

    def _deliver(self, sender: PeerId, to: PeerId) -> None:
        queue = self.queues[sender, to]
        message = queue.popleft()
        if not queue:
            del self.queues[sender, to]
        if not isinstance(message, tuple):
            self.step(to, Heard(sender, message))
            return
        key, sequence = message
        member = self.members[to]
        member.contributions.setdefault(key, {})[sender] = sequence
        if member.machine.version - 1 <= key[0] <= member.machine.version:
            self.step(to, ContributionArrived(sender, *key[1:], is_late=key[0] < member.machine.version))

    def _finish(self, number: int) -> None:
        name, effect = self.tasks.pop(number)
        if isinstance(effect, Apply):
            self._apply(name, effect.commit)
        else:
            self._reduce(name, effect)

    def _perform(self, name: PeerId, effect: Effect) -> None:
        member = self.members[name]
        if isinstance(effect, SendMessage):
            self._post(name, effect.to, effect.message)
        elif isinstance(effect, SendShards) and member.offered is not None:
            for index in range(len(effect.plan.shards)):
                reducer = effect.plan.reducer_of(index)
                if reducer != name:
                    key = (effect.plan.version, effect.plan.attempt, effect.leader, index)
                    self._post(name, reducer, (key, member.offered))
        elif isinstance(effect, ReduceShard | Apply):
            self.tasks.append((name, effect))
        else:
            assert not isinstance(effect, Event) or isinstance(effect, SendResult)

    def _post(self, sender: PeerId, to: PeerId, message: Message | tuple[Any, ...]) -> None:
        self.said.append((sender, to, message))
        self.queues.setdefault((sender, to), deque()).append(message)

    def _reduce(self, name: PeerId, effect: ReduceShard) -> None:
        member, plan = self.members[name], effect.plan
        arrived = dict(member.contributions.get((plan.version, plan.attempt, effect.leader, effect.shard), {}))
        if member.offered is not None:
            arrived[name] = member.offered
        included = tuple(
            index for index in effect.members if arrived.get(plan.roster[index].peer_id) == plan.roster[index].sequence
        )
        if included and member.machine.version == plan.version:
            digest = digest_of(plan, effect.shard, included)
            self.step(name, ShardReduced(plan.attempt, effect.leader, effect.shard, digest, included))

    def _apply(self, name: PeerId, commit: Commit) -> None:
        member, machine = self.members[name], self.members[name].machine
        if machine.applying is not commit:
            return
        own = [index for index, entry in enumerate(commit.roster) if entry.peer_id == name]
        if member.offered is not None:
            is_in = own and commit.roster[own[0]].sequence == member.offered and own[0] in commit.included
            member.has_work |= not is_in
        member.offered, member.lineage = None, (*member.lineage, commit)
        digest = digest_of(machine.anchor_digest, commit_digest(commit))
        self.step(name, Advanced(commit.version + 1, digest, machine.lineage_tokens + commit.tokens))
        member.contributions = {key: value for key, value in member.contributions.items() if key[0] > commit.version}
        for key, senders in sorted(member.contributions.items()):
            for sender in sorted(senders):
                if key[0] == machine.version:
                    self.step(name, ContributionArrived(sender, *key[1:]))
        self.offer(name)
