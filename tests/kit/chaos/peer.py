"""One peer of a chaos run: the real exchange, links, state server and fetcher, with what a node and a trainer do.

Records of other peers come from the run instead of a DHT, late and sometimes not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from averaging.arrays import F32
from averaging.codec.codec import make_codec
from averaging.exchange.exchange import Exchange
from averaging.exchange.exchange_ports import ExchangePorts
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import ShardStore
from averaging.lanes.handshake import open_greeted_stream
from averaging.lanes.links import ROUND_PROTOCOL, LinkPorts, Links
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.rounds.learned_durations import RoundTiming
from averaging.rounds.machine_events import Event
from averaging.rounds.round_facts import Fact, RepairNeeded, Report, RoundStarted, WorkLost
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.shard_plan import MOST_OF_MEDIAN
from averaging.transfer.server import StateServer
from averaging.transfer.snapshots import Snapshot
from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.trust.leader_trust import HOSTILE_SHARE
from averaging.wire.field_checks import Limits
from averaging.wire.messages import Commit, Message
from dht.admission.handshake_frames import AccessRule
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.records.peer_record import PeerRecord
from peer.events.anchor_events import AnchorRepair
from peer.network.anchors.fetcher import Fetched, Fetcher
from peer.network.membership.membership import (
    FIRST_SUSPICION_SECONDS,
    LONGEST_SUSPICION_SECONDS,
    MEETINGS_AT_ONCE,
)
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.node.anchor_repairs import Repairs
from peer.network.node.fragment_memory import adopt_snapshot
from tests.kit.chaos.ledger import NO_WORK, UNIT, AuditedState, Ledger
from tests.kit.chaos.liars import spoil
from tests.kit.chaos.scenario import BLOCK_SIZE
from tests.kit.network.memory_networks import named, now
from tests.kit.notaries import CHECKER, notary_of
from tests.kit.records import make_record
from tests.simulator.network.host import MemoryHost
from tests.simulator.network.lines import LineSettings

RUN_ID = "tiny.abcdefghij234567abcd"
ACCESS = AccessRule(RUN_ID, bytes(32), "test")
TOKENS_PER_SECOND = 100
LEAVE_SECONDS = 60.0


class AuditedMachine(RoundMachine):
    """Tells the run of every event after it was taken."""

    watch: Any = None

    def step(self, event: Event, now: float) -> list[Any]:
        effects = super().step(event, now)
        if self.watch is not None:
            self.watch(event)
        return effects


class AuditedStore(ShardStore):
    """What is reduced must be what was sent, byte for byte."""

    check: Any = None

    def contributions(self, rule, plan, leader, shard_index, members):  # type: ignore[no-untyped-def]
        found = super().contributions(rule, plan, leader, shard_index, members)
        for member, _, blocks in found:
            self.check(plan.roster[member], plan.shards[shard_index], blocks)
        return found


class Company:
    """What one peer believes about the others; `peer.network.membership.membership.Membership` without a DHT."""

    def __init__(self, peer: ChaosPeer) -> None:
        self._peer = peer
        self._records: dict[PeerId, tuple[PeerRecord, float]] = {}
        self._suspected: dict[PeerId, tuple[float, float, int]] = {}
        self.is_frozen = False

    def members(self) -> list[PeerRecord]:
        time = now()
        suspected = {peer_id for peer_id, (until, _, _) in self._suspected.items() if time < until}
        return [
            record
            for peer_id, (record, expires_at) in sorted(self._records.items())
            if record.state != "left" and (self.is_frozen or (time < expires_at and peer_id not in suspected))
        ]

    def heads(self, fragment: int) -> set[tuple[int, bytes]]:
        known = [record for record in self.members() if fragment < len(record.versions)]
        return {(record.versions[fragment], record.digests[fragment]) for record in known}

    def names(self) -> list[PeerId]:
        return [record.peer_id for record in self.members()]

    def trainers(self) -> list[PeerId]:
        return [record.peer_id for record in self.members() if record.role == "trainer" and record.state == "training"]

    def tokens_per_second(self, peer_id: PeerId) -> float:
        known = self._records.get(peer_id)
        return known[0].tokens_per_second if known is not None else 0.0

    def suspected_trainers(self) -> list[PeerId]:
        known = (self._records[peer_id] for peer_id in self._suspected if peer_id in self._records)
        live = (record for record, expires_at in known if self._is_suspected(record.peer_id) and now() < expires_at)
        return [record.peer_id for record in live if record.role == "trainer" and record.state == "training"]

    def suspect(self, peer_id: PeerId, reason: str) -> None:
        until, seconds, _ = self._suspected.get(peer_id, (0.0, 0.0, 0))
        if now() >= until:
            seconds = min(2 * seconds or FIRST_SUSPICION_SECONDS, LONGEST_SUSPICION_SECONDS)
            known = self._records.get(peer_id)
            self._suspected[peer_id] = (now() + seconds, seconds, known[0].sequence if known else -1)
            self._peer.on_view()

    def heard_from(self, peer_id: PeerId) -> None:
        is_new = self._peer.guard.presence.meet(peer_id)
        if self._suspected.pop(peer_id, None) is not None or is_new:
            self._peer.on_view()

    def hear(self, records: Sequence[PeerRecord], life_seconds: float) -> None:
        if self.is_frozen or not any([self._take(record, life_seconds) for record in records]):
            return
        self._peer.on_view()

    def _take(self, record: PeerRecord, life_seconds: float) -> bool:
        known = self._records.get(record.peer_id)
        is_newest = known is None or (record.session, record.sequence) > (known[0].session, known[0].sequence)
        if is_newest:
            self._records[record.peer_id] = (record, now() + life_seconds)
            if self._is_suspected(record.peer_id) and record.sequence > self._suspected[record.peer_id][2] + 1:
                self._peer.spawn(self._peer.meet(record.peer_id))
        return is_newest

    def _is_suspected(self, peer_id: PeerId) -> bool:
        return peer_id in self._suspected and now() < self._suspected[peer_id][0]


class ChaosPeer:
    """A process in a `world.World`, from its start to its end."""

    def __init__(self, world: Any, number: int, life: int, memory: ChaosPeer | None = None) -> None:
        scenario = world.scenario
        self.world, self.number, self.profile = world, number, scenario.profiles[number]
        self.name = named(number)
        self.session = 100 * number + life
        self.codec = make_codec(scenario.codec, BLOCK_SIZE)
        self.chance = world.chance_of(f"peer {number} life {life}")
        self.is_dead = self.is_open = self.is_leaving = False
        self.state = "joining"
        self.num_expired = 0
        self.company = Company(self)
        self._record_sequence = 0
        self._introduced_to: set[PeerId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        watch = GuardPorts(
            self.clock,
            self._report,
            on_exclusion=lambda: self.exchange.exclude(),
            speed_of=self._speed_of,
            known_speeds=lambda: [
                record.tokens_per_second
                for record in self.company.members()
                if self.guard.presence.counts(record.peer_id)
            ],
        )
        self.guard = Guard(self.name, world.rule.staleness_limit, watch, is_strict=world.rule.is_strict)
        self.fragments = [self._fragment(index, memory) for index in range(len(scenario.sizes))]
        self.live = [fragment.state.shown() for fragment in self.fragments]
        self.not_taken = [np.zeros(size, dtype=np.float32) for size in scenario.sizes]
        self.live_version = [fragment.state.version for fragment in self.fragments]
        self.is_unchecked = [True for _ in scenario.sizes]
        self.largest = [0.0 for _ in scenario.sizes]
        """Absolute value that an anchor had."""
        self.host = MemoryHost(world.network, self.name, LineSettings(self.profile.upload_bits_per_second))
        role = "trainer" if self.profile.is_trainer else "seed"
        self.handshake_policy = handshake_policy = RunHandshakePolicy(ACCESS, self.name, role)
        limits = Limits(scenario.sizes, max(self.codec.encoded_num_bytes(size) for size in scenario.sizes))
        met = self.company.heard_from
        ports = LinkPorts(self._on_message, self._on_lost, self._on_refused, on_met=met)
        self.links = Links(self.host, handshake_policy, limits, ports, self.clock)
        self.links.traffic.upload_bits_per_second = self.profile.upload_bits_per_second
        self.exchange = Exchange(
            *(self.name, world.rule, self.fragments, self.guard, self.links),
            ExchangePorts(self.clock, self._compute, self._deliver, self._report, self._lend),
            first_sequence=10_000 * self.session,
        )
        has_worked = self.guard.presence.has_worked
        self.fetcher = Fetcher(self.host, handshake_policy, limits, self.company, CHECKER, has_worked=has_worked)
        self.repairs = Repairs(self.exchange, self.fetcher, self.company, self._on_repair, _nothing)
        StateServer(self.host, handshake_policy, self, len(scenario.sizes), self._compute)
        for fragment in self.fragments:
            fragment.machine.watch = lambda event, fragment=fragment: world.checks.after_event(self, fragment)
        if self.profile.lie:
            spoil(self)
        self.spawn(self._run())

    def _lend(self, index: int) -> contextlib.AbstractContextManager[F32]:
        return contextlib.nullcontext(np.empty(self.world.scenario.sizes[index], np.float32))

    def _fragment(self, index: int, memory: ChaosPeer | None) -> FragmentRuntime:
        world, size = self.world, self.world.scenario.sizes[index]
        lineages = world.checks.lineages[index]
        old = memory.fragments[index].state if memory is not None else None
        assert old is None or isinstance(old, AuditedState)
        values = (world.start_of(index), np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.float32))
        if old is not None:
            values = (old.anchor.copy(), old.momentum.copy(), old.residual.copy())
        state = AuditedState(world.rule, self.codec, *values)
        state.blame = lambda invariant, what: self._blame(invariant, index, what)
        state.clock = now
        state.bases = np.full(state.num_values, NO_WORK)
        state.may_be_misled = lambda: world.checks.may_be_misled(self)
        state.on_node = lambda node: world.checks.on_node(self, index, node)
        if old is None:
            state.ledger = Ledger.empty(self.name, lineages, world.rule, world.is_exact)
            state.refresh_digest()
        else:
            state.ledger = old.ledger
            state.ledger.forget_process()
            state.version, state.lineage_tokens, state.digest = old.version, old.lineage_tokens, old.digest
            state.unsent_tokens, state.unsent_steps = old.unsent_tokens, old.unsent_steps
            state.unsent_base_version, state.unsent_parts = old.unsent_base_version, old.unsent_parts
            state.was_sent_before = old.unsent_tokens > 0
            state.audit("the process was restarted")
        timing = RoundTiming.with_bounds(world.scenario.hard_seconds)
        machine = AuditedMachine(
            self.name,
            RUN_ID,
            index,
            size,
            self.codec.block_size,
            timing,
            notary_of(self.name),
            world.scenario.quorum_fraction,
            most_of_median=MOST_OF_MEDIAN if world.rule.is_strict else math.inf,
            least_share=HOSTILE_SHARE if world.rule.is_strict else 0.0,
            objection=partial(self.guard.claim_objection, timing=timing),
            doubt=partial(self.guard.doubts, timing=timing),
        )
        state.committing = lambda: machine.applying
        store = AuditedStore(self.codec, size)
        store.check = lambda entry, shard, blocks: world.checks.check_contribution(index, entry, shard, blocks)
        fragment = FragmentRuntime(index, state, machine, store)
        fragment.restart()
        return fragment

    # ------------------------------------------------------------------------------------------------------- a life

    def spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.checks.blame("error", f"peer {self.number}: {type(error).__name__}: {error}")

    def _blame(self, invariant: str, index: int, what: str) -> None:
        if not self.profile.lie:
            self.world.checks.blame(invariant, f"peer {self.number} fragment {index}: {what}")

    def clock(self) -> float:
        return now() + 100.0 + self.profile.clock_offset_seconds

    async def _run(self) -> None:
        """What `peer.network.node.starting_state` and `peer.network.node.node` do."""
        self.world.introduce(self)
        await asyncio.sleep(1.5 * self.world.scenario.record_delay_seconds)
        # Who meets only liars at first has nothing to hold their claims against: not what is looked at here.
        while self.company.names() and not self.world.has_honest(self.company.names()):  # noqa: ASYNC110
            await asyncio.sleep(0.5)

        async def adopt(index: int, found: Fetched) -> None:
            fragment, snapshot = self.fragments[index], found.snapshot
            fragment.enter_lineage(lambda state: adopt_snapshot(state, snapshot), snapshot.commits, self.name)
            fragment.restart([commit for commit in snapshot.commits if commit.version < snapshot.version])

        await self.fetcher.fetch_better({f.index: f.state for f in self.fragments}, adopt)
        for index, fragment in enumerate(self.fragments):
            # A trainer that went on over the restart of its network process starts again from here (REBASE).
            self.live[index] = fragment.state.shown() - self.not_taken[index]
            self.live_version[index] = fragment.state.version
        self.is_open = True
        self.state = "training" if self.profile.is_trainer else "serving"
        self.exchange.sending.take_part(self.profile.is_trainer)
        self.on_view()
        self.announce()
        for name in self.company.names():
            self.spawn(self.meet(name))
        self.spawn(self._meet_others())
        self.spawn(self._announce_and_audit())
        if self.profile.is_trainer:
            self.spawn(self._train())
            for fragment in self.fragments:
                await self.exchange.sending.offer(fragment)

    async def _announce_and_audit(self) -> None:
        while True:
            await asyncio.sleep(self.world.scenario.announce_seconds * self.chance.uniform(0.8, 1.2))
            self.announce()
            self.on_view()
            await self.repairs.audit()

    def announce(self) -> None:
        self._record_sequence += 1
        self.world.spread(self, [self.record()])

    def record(self) -> PeerRecord:
        states = [fragment.state for fragment in self.fragments]
        return make_record(
            self.name,
            run_id=RUN_ID,
            session=self.session,
            sequence=self._record_sequence,
            state=self.state,
            role="trainer" if self.profile.is_trainer else "seed",
            device="",
            software="test",
            tokens_per_second=float(TOKENS_PER_SECOND),
            versions=tuple(state.version for state in states),
            digests=tuple(state.digest[:8] for state in states),
            lineage_tokens=tuple(state.lineage_tokens for state in states),
            expires_at=0.0,
            started_at=0.0,
        )

    async def leave(self) -> None:
        """Finish what is under way, say goodbye, go."""
        self.is_leaving = True
        end = now() + LEAVE_SECONDS
        while now() < end and not self.is_dead and self.has_work():  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.5)
        if not self.is_dead:
            self.state = "left"
            self.announce()
            await self.stop()

    async def stop(self) -> None:
        """End the process."""
        self.is_dead = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.exchange.close()
        await self.links.close()
        await self.host.close()

    def has_work(self) -> bool:
        states = [fragment.state for fragment in self.fragments]
        return any(state.pending is not None or state.unsent_tokens for state in states)

    # --------------------------------------------------------------------------------------------------- the trainer

    async def _train(self) -> None:
        """Work of every fragment once an interval, in turn; in lock step it waits for the commit."""
        pause = self.profile.interval_seconds / len(self.fragments)
        base = list(self.live_version)
        await asyncio.sleep(self.chance.uniform(0, self.profile.interval_seconds))
        while self.world.is_training and not self.is_leaving:
            for index, fragment in enumerate(self.fragments):
                await asyncio.sleep(pause * self.chance.uniform(0.95, 1.05))
                state = fragment.state
                if self.world.rule.mode == "sync":
                    while state.pending is not None or state.unsent_tokens:  # noqa: ASYNC110
                        await asyncio.sleep(0.2)
                await self.work(index, base[index])
                base[index] = self.live_version[index]

    async def work(self, index: int, base_version: int) -> None:
        """One interval of training, handed over."""
        size = self.world.scenario.sizes[index]
        values = np.array([self.chance.randint(-64, 64) * UNIT for _ in range(size)], dtype=np.float32)
        self.live[index] -= values
        self.not_taken[index] += values
        tokens = max(1, round(TOKENS_PER_SECOND * self.profile.interval_seconds))

        def fill(state: FragmentState) -> None:
            state.receive_work(values, tokens, max(1, tokens // 10), base_version)
            self.not_taken[index] -= values

        await self.exchange.sending.work_arrived(index, fill)

    def check_shown(self, index: int) -> float:
        """How far the live parameters are from A - O - r - L."""
        expected = self.fragments[index].state.shown() - self.not_taken[index]
        return float(np.abs(self.live[index] - expected).max())

    # ------------------------------------------------------------------------------------------------------ callbacks

    async def _compute(self, work: Any) -> Any:
        """A thread that is busy before and after: other events come in between."""
        longest = self.world.scenario.compute_seconds
        if longest:
            await asyncio.sleep(self.chance.uniform(0.0, longest))
        result = work()
        if longest and self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.uniform(0.0, longest))
        return result

    def _deliver(self, index: int, change: F32, version: int) -> None:
        self.live[index] += change
        self.live_version[index] = version
        self.is_unchecked[index] = True

    def _on_message(self, sender: PeerId, message: Message, payload: memoryview, num_bytes: int) -> None:
        self.company.heard_from(sender)
        if not self.is_open or self.is_dead:
            return
        held = self.world.tampering(message)
        if held is None:
            self.exchange.on_message(sender, message, payload, num_bytes)
            return
        delays, kept = held, memoryview(bytes(payload))
        for delay in delays:
            if delay:
                loop = asyncio.get_running_loop()
                loop.call_later(delay, self._on_late_message, sender, message, kept, num_bytes)
            else:
                self.exchange.on_message(sender, message, payload, num_bytes)

    def _on_late_message(self, sender: PeerId, message: Message, payload: memoryview, num_bytes: int) -> None:
        if not self.is_dead and not self.world.is_over:
            with contextlib.suppress(PeerFault):  # a link would close the stream; here there is none
                self.exchange.on_message(sender, message, payload, num_bytes)

    def _on_lost(self, peer_id: PeerId, reason: str) -> None:
        self.company.suspect(peer_id, reason)
        self.exchange.peer_lost(peer_id, reason)

    def _on_refused(self, peer_id: PeerId, reason: str) -> None:
        self.world.checks.trace(f"peer {self.number} refused {peer_id[-6:]}: {reason}")
        self.guard.blame(peer_id, "malformed", reason)

    def _on_repair(self, fact: Fact) -> None:
        self.world.checks.seen["repaired" if isinstance(fact, AnchorRepair) and fact.is_done else "outvoted"] += 1
        self.world.checks.trace(f"peer {self.number}: {fact}")

    def on_view(self) -> None:
        if self.is_dead or not hasattr(self, "exchange"):
            return
        members = self.company.members()
        trainers = [record.peer_id for record in members if record.role == "trainer" and record.state == "training"]
        training = set(trainers)
        followers = [record.peer_id for record in members if record.peer_id not in training]
        own = [self.name] if self.state == "training" else []
        self.exchange.set_view([*trainers, *own], followers, self.company.suspected_trainers())

    def _speed_of(self, peer_id: PeerId) -> float:
        return float(TOKENS_PER_SECOND) if peer_id == self.name else self.company.tokens_per_second(peer_id)

    def _report(self, report: Report) -> None:
        if self.is_dead:
            return
        self.world.on_report(self, report)
        if isinstance(report, WorkLost) and report.cause == "late":
            self.num_expired += 1
        elif isinstance(report, RoundStarted):
            self.world.on_round_began(self, report)
        elif isinstance(report, RepairNeeded):
            self.spawn(self.repairs.repair(report.fragment, report.peer_id, report.reason))

    async def _meet_others(self) -> None:
        while True:
            await asyncio.sleep(self.world.scenario.announce_seconds / 2 * self.chance.uniform(0.8, 1.2))
            others = [name for name in self.company.names() if name not in self._introduced_to]
            for name in self.chance.sample(others, min(MEETINGS_AT_ONCE, len(others))):
                self.spawn(self.meet(name))

    async def meet(self, peer_id: PeerId) -> None:
        """Introduce this peer to another one that answers, as `Membership.meet_others` does."""
        try:
            stream = await open_greeted_stream(self.host, self.handshake_policy, peer_id, ROUND_PROTOCOL)
        except PeerFault:
            return
        await stream.close()
        if not self.is_dead:
            self._introduced_to.add(peer_id)
            self.company.heard_from(peer_id)
            for other in self.world.live():
                if other.name == peer_id and other.guard.presence.take_part(self.name):
                    other.on_view()

    # ---------------------------------------------------------------------------------------- StateSource for donors

    async def snapshot(self, fragment: int) -> Snapshot | None:
        runtime = self.fragments[fragment]
        if not self.is_open:
            return None
        async with runtime.busy:
            state = runtime.state
            anchor, momentum = await self._compute(lambda: (state.anchor.copy(), state.momentum.copy()))
            commits = tuple(runtime.machine.history[version] for version in sorted(runtime.machine.history))
            return Snapshot(state.version, state.lineage_tokens, anchor, momentum, state.digest, commits)

    def digest_at(self, fragment: int, version: int) -> bytes:
        return self.fragments[fragment].digests.get(version, b"")

    def commits_from(self, fragment: int, version: int) -> Sequence[Commit]:
        history = self.fragments[fragment].machine.history
        return [history[key] for key in sorted(history) if key >= version]

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        return self.fragments[fragment].log.page(version)


async def _nothing() -> None: ...
