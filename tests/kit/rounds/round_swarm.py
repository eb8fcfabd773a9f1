"""Round machines joined by queues: no asyncio, no arrays, and every order of events can be chosen.

Work is counted in units (peer, number, block of the fragment), so that a test can say that each is committed once.
A member does with its machine's effects what `averaging.exchange.exchange` does; that part is kept as small as it can
be.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from averaging.rounds.machine_events import (
    Advanced,
    Apply,
    ApplyFailed,
    ContributionArrived,
    Effect,
    Event,
    Heard,
    Lost,
    Ready,
    ReduceShard,
    Repair,
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
from averaging.wire.messages import DIGEST_BYTES, Commit, Message, Offer, Result, VersionIs, own_ranges
from dht.ground.host import PeerId
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of

BLOCK = 8192  # the smallest shard, so that a fragment of few blocks has several reducers
Unit = tuple[PeerId, int, int]
MAX_CHOICES = 100_000


def digest_of(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()[:DIGEST_BYTES]


@dataclass
class Member:
    """One peer: its machine, the work it has, and the lineage of its anchor."""

    machine: RoundMachine
    is_live: bool = True
    waiting: set[Unit] = field(default_factory=set)
    pending: tuple[int, frozenset[Unit]] | None = None
    lineage: tuple[Commit, ...] = ()
    given_up: set[Unit] = field(default_factory=set)
    contributions: dict[tuple[int, int, PeerId, int], dict[PeerId, int]] = field(default_factory=dict)
    results: set[bytes] = field(default_factory=set)
    repairing: bool = False


class RoundSwarm:
    """Members, the queues between them, and what they may do next.

    A choice is (what, arguments): `deliver` the head of a queue, finish a `local` task, or tell of a `lost` link.
    """

    def __init__(self, num_peers: int, *, num_blocks: int = 1) -> None:
        self.now = 0.0
        self.names = [named(number) for number in range(num_peers)]
        self.num_blocks = num_blocks
        self.tokens = 10
        self.sent_units: dict[tuple[PeerId, int], frozenset[Unit]] = {}
        self.queues: dict[tuple[PeerId, PeerId, str], deque[Any]] = {}
        self.tasks: list[tuple[str, PeerId, Any]] = []
        self.cut: set[frozenset[PeerId]] = set()
        self.sequence = 0
        self.num_units = 0
        self.reduced: dict[tuple[PeerId, int, int], bytes] = {}
        self.members = {name: self._new_member(name) for name in self.names}
        for name in self.names:
            self.step(name, View(tuple(self.names)))

    def _new_member(self, name: PeerId) -> Member:
        timing = Waits.with_bounds(60.0)
        machine = RoundMachine(name, "run", 0, self.num_blocks * BLOCK, BLOCK, timing, notary_of(name))
        machine.anchor_digest = digest_of("start")
        return Member(machine)

    # ------------------------------------------------------------------------------------------------- from outside

    def live(self) -> list[PeerId]:
        return [name for name in self.names if self.members[name].is_live]

    def work(self, name: PeerId) -> None:
        """The trainer of `name` hands over one more piece of work."""
        self.num_units += 1
        member = self.members[name]
        member.waiting |= {(name, self.num_units, block) for block in range(self.num_blocks)}
        member.machine.timing.own_pace.observe(self.now)
        self.offer(name)

    def offer(self, name: PeerId) -> None:
        member = self.members[name]
        machine = member.machine
        if not member.waiting or member.pending or machine.applying or member.repairing or not member.is_live:
            return
        self.sequence += 1
        member.pending, member.waiting = (self.sequence, frozenset(member.waiting)), set()
        self.sent_units[(name, self.sequence)] = member.pending[1]
        offer = Offer(
            0, machine.version, 0, machine.anchor_digest, machine.version, self.tokens, 1, self.sequence, 0.0, True
        )
        self.step(name, Ready(offer))

    def crash(self, name: PeerId, *, noticed: bool = True) -> None:
        """The process dies; whoever had sent it something hears of it, when `noticed`."""
        self.members[name].is_live = False
        self.tasks = [task for task in self.tasks if task[1] != name]
        for key in [key for key in self.queues if name in key[:2]]:
            del self.queues[key]
        if noticed:
            self.tasks += [("lost", other, name) for other in self.live()]

    def set_views(self, seen_by: Callable[[PeerId], list[PeerId]] | None = None) -> None:
        for name in self.live():
            self.step(name, View(tuple(seen_by(name) if seen_by else self.live())))

    def split(self, *groups: list[PeerId]) -> None:
        """Cut every link between different groups; what is on its way is lost."""
        group_of = {name: number for number, group in enumerate(groups) for name in group}
        self.cut = {frozenset((a, b)) for a in group_of for b in group_of if group_of[a] != group_of[b]}
        for key in list(self.queues):
            if frozenset(key[:2]) in self.cut:
                self.lose(key[0], key[1])

    def lose(self, sender: PeerId, to: PeerId) -> None:
        """Everything queued from `sender` to `to` is dropped; the sender hears of it."""
        for lane in ("control", "data"):
            self.queues.pop((sender, to, lane), None)
        self.tasks.append(("lost", sender, to))

    def audit(self) -> None:
        """Compare announced anchors, as `peer.network.node.node` does after every announcement."""
        for name in self.live():
            for other in self.live():
                mine, theirs = self.members[name].machine, self.members[other].machine
                if _weight(theirs) > _weight(mine):
                    message = VersionIs(0, mine.version, mine.anchor_digest, mine.lineage_tokens)
                    self._post(name, other, "control", message)

    # ------------------------------------------------------------------------------------------------- what happens

    def choices(self) -> list[tuple[str, Hashable]]:
        queues = [("deliver", key) for key in sorted(self.queues)]
        return [*queues, *(("local", number) for number in range(len(self.tasks)))]

    def take(self, choice: tuple[str, Any]) -> None:
        what, which = choice
        if what == "deliver":
            sender, to, _ = which
            queue = self.queues[which]
            message = queue.popleft()
            if not queue:
                del self.queues[which]
            self._arrive(sender, to, message)
        else:
            kind, name, argument = self.tasks.pop(which)
            getattr(self, f"_{kind}")(name, argument)

    def tick(self) -> None:
        """Wake every machine that is due."""
        for name in self.live():
            machine = self.members[name].machine
            if machine.next_time <= self.now:
                self.step(name, Tick())
                assert machine.next_time > self.now, "a machine that was woken wants to be woken again at once"

    def next_time(self) -> float:
        return min((self.members[name].machine.next_time for name in self.live()), default=math.inf)

    def run(self, chance: random.Random) -> Iterator[None]:
        """Random orders until nothing is left to do; yields before each choice."""
        for _ in range(MAX_CHOICES):
            self.tick()
            choices = self.choices()
            if not choices:
                if self.next_time() == math.inf:
                    return
                self.now = max(self.now, self.next_time())
                continue
            yield
            choices = self.choices()
            if not choices:
                continue
            self.now += chance.expovariate(20 * len(choices))
            self.take(chance.choice(choices))
        raise AssertionError(f"still busy after {MAX_CHOICES} choices: {self.choices()[:5]}")

    def step(self, name: PeerId, event: Event) -> None:
        member = self.members[name]
        for effect in member.machine.step(event, self.now):
            self._perform(name, effect)
        self._check(member)

    def _perform(self, name: PeerId, effect: Effect) -> None:
        member = self.members[name]
        if isinstance(effect, SendMessage):
            self._post(name, effect.to, "control", effect.message)
        elif isinstance(effect, SendShards) and member.pending is not None:
            for index, shard in enumerate(effect.plan.shards):
                reducer = effect.plan.roster[shard.reducer].peer_id
                key = (effect.plan.version, effect.plan.attempt, effect.leader, index)
                if reducer != name:
                    self._post(name, reducer, "data", ("contribution", key, member.pending[0]))
        elif isinstance(effect, ReduceShard):
            self.tasks.append(("reduce", name, effect))
        elif isinstance(effect, SendResult):
            for to in effect.to:
                self._post(name, to, "data", self._result(name, effect.result))
        elif isinstance(effect, Apply):
            machine = member.machine
            assert effect.commit is machine.applying
            assert (effect.commit.version, effect.commit.anchor_digest) == (machine.version, machine.anchor_digest)
            self.tasks.append(("apply", name, effect.commit))
        elif isinstance(effect, Repair):
            self._ask_repair(name, effect.peer_id)

    def _check(self, member: Member) -> None:
        machine = member.machine
        if machine.is_offering and machine.applying is None:
            assert machine.next_time < math.inf, "waits for others without a timer"

    # ---------------------------------------------------------------------------------------- what the exchange does

    def _post(self, sender: PeerId, to: PeerId, lane: str, message: Any) -> None:
        if not self.members[to].is_live or frozenset((sender, to)) in self.cut:
            self.tasks.append(("lost", sender, to))
        else:
            self.queues.setdefault((sender, to, lane), deque()).append(message)

    def _arrive(self, sender: PeerId, to: PeerId, message: Message | tuple[Any, ...]) -> None:
        member = self.members[to]
        if not isinstance(message, tuple):
            self.step(to, Heard(sender, message))
        elif message[0] == "result":
            member.results.add(message[1])
        else:
            _, key, sequence = message
            member.contributions.setdefault(key, {})[sender] = sequence
            if member.machine.version - 1 <= key[0] <= member.machine.version:
                self.step(to, ContributionArrived(sender, *key[1:], is_late=key[0] < member.machine.version))

    def _work(self, name: PeerId, _: None) -> None:
        self.work(name)

    def _lost(self, name: PeerId, other: PeerId) -> None:
        if self.members[name].is_live:
            self.step(name, Lost(other, "the link broke"))

    def _result(self, name: PeerId, mean: Result) -> tuple[Any, ...]:
        return "result", self.reduced[(name, mean.version, mean.shard)]

    def _reduce(self, name: PeerId, effect: ReduceShard) -> None:
        member, plan = self.members[name], effect.plan
        arrived = dict(member.contributions.get((plan.version, plan.attempt, effect.leader, effect.shard), {}))
        if member.pending is not None:
            arrived[name] = member.pending[0]
        included = tuple(
            index for index in effect.members if arrived.get(plan.roster[index].peer_id) == plan.roster[index].sequence
        )
        if not included or member.machine.version != plan.version:
            return
        digest = self.reduced[(name, plan.version, effect.shard)] = digest_of(plan, effect.shard, included)
        member.results.add(digest)
        self.step(name, ShardReduced(plan.attempt, effect.leader, effect.shard, digest, included))

    def _apply(self, name: PeerId, commit: Commit) -> None:
        member, machine = self.members[name], self.members[name].machine
        if machine.applying is not commit:
            return
        needed = {result.digest for result in commit.shards if result.digest}
        for other in self.live():
            if frozenset((name, other)) not in self.cut:
                member.results |= needed & self.members[other].results
        if not needed <= member.results:
            self._ask_repair(name, commit.leader)
            return
        if member.pending is not None:
            sequence, units = member.pending
            committed = self._own_units(commit, name, sequence)
            member.waiting |= units - committed
        member.pending = None
        member.lineage = (*member.lineage, commit)
        digest = digest_of(machine.anchor_digest, commit_digest(commit))
        self._advance(name, commit.version + 1, digest, machine.lineage_tokens + commit.tokens)

    def _own_units(self, commit: Commit, name: PeerId, sequence: int) -> frozenset[Unit]:
        in_commit, ranges = own_ranges(commit, name)
        blocks = {block for start, end in ranges for block in range(start // BLOCK, end // BLOCK)}
        if in_commit != sequence or sequence < 0:
            return frozenset()
        return frozenset(unit for unit in self.sent_units.get((name, sequence), ()) if unit[2] in blocks)

    def _settle(self, name: PeerId, other: RoundMachine) -> None:
        """`FragmentState.settle_in_new_lineage` in units."""
        member = self.members[name]
        left = member.machine
        theirs = other.log.newest.get(left.version)
        is_same = theirs is not None and theirs.anchor_digest == left.anchor_digest
        sequence, units = member.pending or (-1, frozenset())
        member.pending = None
        if is_same and not self._own_units(theirs, name, sequence):
            member.waiting |= units
        else:
            member.given_up |= units
        if not is_same:
            # What was sent before may be in the other lineage.
            sent = {unit for (sender, _), units in self.sent_units.items() if sender == name for unit in units}
            gone = member.waiting if member.waiting & sent else set()
            member.given_up |= gone | {unit for unit in self.committed_units(name) if unit[0] == name}
            member.waiting = member.waiting - gone

    def _advance(
        self, name: PeerId, version: int, digest: bytes, lineage_tokens: int, adopted: tuple[Commit, ...] | None = None
    ) -> None:
        member = self.members[name]
        self.step(name, Advanced(version, digest, lineage_tokens, adopted))
        member.contributions = {key: value for key, value in member.contributions.items() if key[0] >= version}
        for key, senders in sorted(member.contributions.items()):
            for sender in sorted(senders):
                if key[0] == member.machine.version:
                    self.step(name, ContributionArrived(sender, *key[1:]))
        self.offer(name)

    def _ask_repair(self, name: PeerId, donor: PeerId) -> None:
        if not self.members[name].repairing:
            self.members[name].repairing = True
            self.tasks.append(("repair", name, donor))

    def _repair(self, name: PeerId, donor: PeerId) -> None:
        member, other = self.members[name], self.members[donor]
        reachable = other.is_live and frozenset((name, donor)) not in self.cut
        if reachable and _weight(other.machine) > _weight(member.machine):
            self._settle(name, other.machine)
            member.lineage = other.lineage
            machine = other.machine
            adopted = tuple(other.machine.log.newest.values())
            self._advance(name, machine.version, machine.anchor_digest, machine.lineage_tokens, adopted)
        member.repairing = False
        if member.machine.applying is not None:
            self.step(name, ApplyFailed(member.machine.applying))
        self.offer(name)

    # ----------------------------------------------------------------------------------------------------- verdicts

    def committed_units(self, name: PeerId) -> list[Unit]:
        """All units in the lineage of a member's anchor, each as often as it was committed."""
        return [
            unit
            for commit in self.members[name].lineage
            for shard in commit.shards
            for index in shard.included
            for unit in self.sent_units[(commit.roster[index].peer_id, commit.roster[index].sequence)]
            if shard.start // BLOCK <= unit[2] < shard.end // BLOCK
        ]

    def assert_agreement(self) -> None:
        """Same version, same anchor, same chain of commits, and every unit in it at most once."""
        chains = {tuple(commit_digest(commit) for commit in self.members[name].lineage) for name in self.live()}
        machines = [self.members[name].machine for name in self.live()]
        assert len(chains) == 1, [machine.version for machine in machines]
        assert len({(machine.version, machine.anchor_digest, machine.lineage_tokens) for machine in machines}) == 1
        units = self.committed_units(self.live()[0])
        assert len(units) == len(set(units)), "work was committed twice"

    def lost_units(self, name: PeerId) -> set[Unit]:
        """Work of `name` that is neither committed in its lineage nor with it, and that it did not give up."""
        member = self.members[name]
        everything = {unit for units in self.sent_units.values() for unit in units if unit[0] == name}
        kept = member.waiting | (member.pending[1] if member.pending else set()) | set(self.committed_units(name))
        kept |= member.given_up
        return everything - kept


def _weight(machine: RoundMachine) -> tuple[int, bytes]:
    return machine.lineage_tokens, machine.anchor_digest


def settle(swarm, chance, num_audits=3):
    """Run until nothing is left to do, then as many announcements as a fork may survive."""
    for _ in swarm.run(chance):
        pass
    for _ in range(num_audits):
        swarm.audit()
        for _ in swarm.run(chance):
            pass
