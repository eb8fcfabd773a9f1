"""A whole swarm in virtual time, to find faults and to replay them.

Node, exchange, membership and trainer are the real ones. Only the network, the DHT and the clock are simulated, and
everything random comes from the seed. A failure found with one seed happens again with the same seed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from unittest import mock

import averaging.rounds.shard_plan
from averaging.rounds.round_facts import RoundStarted
from dht.ground.host import PeerId
from dht.identity.keys import make_run_id
from dht.records.signature_cache import VerifiedRecords
from peer.config.averaging_rules import rule_of
from peer.events.peer_events import Event
from tests.simulator.books.books import Books
from tests.simulator.checks import (
    ENOUGH_SYNCS,
    ENOUGH_SYNCS_AMONG_FAULTS,
    anchors_are_equal,
    has_settled,
    honest_lives,
    violations,
)
from tests.simulator.network.host import MemoryNetwork
from tests.simulator.network.store import MemoryRecords
from tests.simulator.peer import EPOCH_SECONDS, Life, SimulatedPeer, World, anchors_of, simulated_identity, workload_of
from tests.simulator.result import Durations, GroupResult, LossPoint, SimulationResult
from tests.simulator.scenarios.spec import START_SECONDS, Fault, SimulationSpec, tiny_manifest
from tests.simulator.trace import Trace
from tests.simulator.virtual_time import run_virtual
from tests.simulator.workload import one_thread

__all__ = ["Fault", "Progress", "SimulationResult", "SimulationSpec", "simulate", "tiny_manifest"]

LEAVE_SECONDS = 60.0
"""Virtual time in which everybody must have left in an orderly way."""
COLLECT_THRESHOLDS = (50_000, 20, 50)
"""A swarm in one process has millions of objects that stay; looking through them often is a tenth of the time."""
_OF_A_LIFE: dict[str, Callable[[Life], None]] = {
    "leave": lambda life: life.leave(),
    "crash": lambda life: life.kill(),
    "restart_network": lambda life: life.restart_network(),
    "sleep": lambda life: life.process.sleep(),
    "wake": lambda life: life.process.wake(),
}
"""What happens to a peer that runs, by kind of fault."""
PROGRESS_SECONDS = 5.0
"""Virtual time between two calls of `on_progress`."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a simulation is, in virtual seconds."""

    done_seconds: float
    training_seconds: float
    rounds_committed: int
    num_live_peers: int


def simulate(
    spec: SimulationSpec,
    on_event: Callable[[int, Event], None] = lambda index, event: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> SimulationResult:
    """Run one simulation to its end.

    Args:
        on_event: called with (peer index, event) for each event, in order.
        on_progress: called every few virtual seconds.
    """
    began = time.perf_counter()
    thresholds = gc.get_threshold()
    gc.set_threshold(*COLLECT_THRESHOLDS)
    try:
        with one_thread(), _smaller_shards(spec.min_shard_values), _errors_logged() as errors:
            result = run_virtual(_Simulation(spec, on_event, on_progress).run(), seed=spec.seed)
    finally:
        gc.set_threshold(*thresholds)
    found = (*result.violations, *errors)
    return dataclasses.replace(result, violations=found, real_seconds=time.perf_counter() - began)


class _Simulation:
    def __init__(
        self,
        spec: SimulationSpec,
        on_event: Callable[[int, Event], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._spec = spec
        self._on_event = on_event
        self._on_progress = on_progress
        self._profiles = [spec.profile(index) for index in range(spec.num_peers)]
        self._trace = Trace([profile.group for profile in self._profiles], self._is_training)
        self._losses: list[LossPoint] = []
        self._blamed: list[str] = []
        self._ambushes: list[Fault] = []
        self.peers: list[SimulatedPeer] = []

    async def run(self) -> SimulationResult:
        spec = self._spec
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unhandled)
        world = self._world()
        self._network, self._books = world.network, world.books
        self.peers = [SimulatedPeer(world, index) for index in range(spec.num_peers)]
        for peer in self.peers:
            self._trace.meet(peer.index, peer.identity.peer_id)
        faults = loop.create_task(self._happen(self._all_faults()))
        watching = loop.create_task(self._watch(world))
        await asyncio.sleep(spec.training_seconds)
        while not faults.done() or (world.now() < self._settle_until and not has_settled(self.peers)):  # noqa: ASYNC110
            # The swarm is looked at from outside; nothing inside of it knows that it has settled.
            await asyncio.sleep(1.0)
        faults.result()
        if watching.done():
            watching.result()
        watching.cancel()
        virtual_seconds = world.now()
        result = self._result(world, virtual_seconds)
        if spec.ends_with_goodbyes:
            await self._say_goodbye(world)
        if self._books is not None:
            self._blamed += self._books.violations
        self._blamed += [f"a handler failed: {error!r}" for error in world.network.handler_errors]
        return dataclasses.replace(
            result,
            violations=(*result.violations, *self._blamed),
            events=dict(sorted((self._trace.kinds if self._books is None else self._books.seen).items())),
            trace_hash=self._trace.hash,
        )

    async def _say_goodbye(self, world: World) -> None:
        live = [peer.life for peer in self.peers if peer.life is not None]
        world.over.set()
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await asyncio.gather(*(life.ended() for life in live))
        except TimeoutError:
            self._blamed.append(f"not everybody had left {LEAVE_SECONDS:.0f} s after the end")
        for life in live:
            self._blamed += life.failures

    async def _watch(self, world: World) -> None:
        """Tell how far it is, and measure the loss now and then. Nothing of it changes the swarm."""
        spec = self._spec
        pause = spec.training_seconds / max(1, spec.num_measurements)
        measure_at = pause if spec.num_measurements else float("inf")
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            num_live = sum(peer.life is not None for peer in self.peers)
            self._on_progress(Progress(world.now(), spec.training_seconds, self._trace.rounds_committed, num_live))
            if measure_at <= world.now() <= spec.training_seconds:
                measure_at += pause
                loss = self._loss(world)
                if loss is not None:
                    self._losses.append(LossPoint(world.now() / 3600, loss))

    def _loss(self, world: World) -> float | None:
        """Validation loss of the anchors of the honest peer that knows most commits."""
        nodes = [life.node for life in honest_lives(self.peers) if life.mailbox.network.ready]
        if not nodes:
            return None
        ahead = max(nodes, key=lambda node: sum(fragment.state.lineage_tokens for fragment in node.fragments))
        return world.workload.loss(anchors_of(ahead))

    def _is_training(self, index: int) -> bool:
        life = self.peers[index].life
        return life is not None and bool(life.mailbox.network.ready)

    @property
    def _settle_until(self) -> float:
        last = max((fault.at_seconds for fault in self._spec.faults), default=0.0)
        return max(self._spec.training_seconds, last) + self._spec.settle_seconds

    def _world(self) -> World:
        spec = self._spec
        owner = simulated_identity(spec.seed, -1)
        network = MemoryNetwork(
            spec.seed,
            latency_seconds=spec.latency_seconds,
            partition_break_seconds=spec.partition_break_seconds,
            window_bytes=spec.window_bytes,
            same_site_latency_seconds=spec.same_site_latency_seconds,
        )
        workload = workload_of(spec)
        return World(
            spec,
            make_run_id(spec.manifest.name, owner.public_key),
            network,
            MemoryRecords(
                network,
                lambda: EPOCH_SECONDS + World.now(),
                spec.record_delay_seconds,
                VerifiedRecords(16 * spec.num_peers + 256),
            ),
            workload,
            self._emit,
            asyncio.Event(),
            self._books_of(workload.layout.sizes, network) if spec.keeps_books else None,
        )

    def _books_of(self, sizes: Sequence[int], network: MemoryNetwork) -> Books:
        spec = self._spec
        names = {index: simulated_identity(spec.seed, index).peer_id for index in range(spec.num_peers)}
        hostile = frozenset(names[index] for index, profile in enumerate(self._profiles) if profile.lie is not None)
        return Books(spec, rule_of(spec.manifest), sizes, names, hostile, World.now, network.can_reach)

    def _result(self, world: World, virtual_seconds: float) -> SimulationResult:
        spec = self._spec
        live = honest_lives(self.peers)
        versions: tuple[int, ...] = ()
        loss_first = loss_last = world.workload.loss(None)
        committed_tokens = 0.0
        if live:
            node = live[0].node
            loss_last = world.workload.loss(anchors_of(node))
            versions = node.versions()
            committed_tokens = sum(fragment.state.lineage_tokens for fragment in node.fragments) / len(versions)
        equal = anchors_are_equal(self.peers)
        enough_syncs = ENOUGH_SYNCS_AMONG_FAULTS if spec.keeps_books else ENOUGH_SYNCS
        found = list(violations(self.peers, self._trace.contributors, enough_syncs))
        if not equal:
            found.append(f"anchors still differ {spec.settle_seconds:.0f} s after training")
        elif spec.keeps_books and not has_settled(self.peers):
            found.append(f"settled: work is still under way {spec.settle_seconds:.0f} s after training")
        tokens = sum(life.mailbox.trainer.tokens for peer in self.peers for life in peer.lives)
        met = [peer.identity.peer_id for peer in self.peers if peer.lives]
        return SimulationResult(
            num_peers=spec.num_peers,
            num_live_peers=sum(peer.life is not None for peer in self.peers),
            seed=spec.seed,
            inner_steps=sum(life.work.link.inner_steps for peer in self.peers for life in peer.lives),
            tokens=tokens,
            rounds_committed=self._trace.rounds_committed,
            rounds_failed=self._trace.rounds_abandoned,
            round_seconds=Durations.of(self._trace.round_seconds),
            wait_seconds=Durations.of(self._trace.wait_seconds),
            bytes_up=tuple(world.network.sent_bytes(peer_id) for peer_id in met),
            bytes_down=tuple(world.network.received_bytes(peer_id) for peer_id in met),
            groups=tuple(
                self._group_result(world, name) for name in dict.fromkeys(profile.group for profile in self._profiles)
            ),
            staleness=dict(sorted(self._trace.staleness.items())),
            goodput=committed_tokens / tokens if tokens else 0.0,
            losses=tuple(self._losses),
            loss_first=loss_first,
            loss_last=loss_last,
            anchors_equal=equal,
            versions=versions,
            refusals=dict(sorted(self._trace.refusals.items())),
            events={},
            trace_hash="",
            virtual_seconds=virtual_seconds,
            real_seconds=0.0,
            violations=tuple(found),
        )

    def _group_result(self, world: World, name: str) -> GroupResult:
        peers = [peer for peer in self.peers if peer.profile.group == name]
        started = [peer for peer in peers if peer.lives]
        ids = [peer.identity.peer_id for peer in started]
        lives = [life for peer in started for life in peer.lives]
        count = max(1, len(started))
        network = world.network
        return GroupResult(
            name,
            peers[0].profile.line.site,
            len(peers),
            len(started),
            sum(life.work.link.inner_steps for life in lives),
            sum(life.mailbox.trainer.tokens for life in lives),
            sum(network.sent_bytes(peer_id) for peer_id in ids) / count,
            sum(network.received_bytes(peer_id) for peer_id in ids) / count,
            sum(network.sent_abroad_bytes(peer_id) for peer_id in ids) / count,
            self._trace.share_of_rounds(name),
        )

    # ------------------------------------------------------------------------------------------------- faults

    def _all_faults(self) -> list[Fault]:
        spec = self._spec
        if spec.profiles:
            return list(spec.faults)  # a scenario says of every peer when it starts
        # A peer whose first fault is a start comes late; all others are there from the beginning.
        first: dict[int, str] = {}
        for fault in sorted(spec.faults, key=lambda fault: fault.at_seconds):
            for peer in fault.peers:
                first.setdefault(peer, fault.kind)
        randomness = random.Random(f"{spec.seed} starts")
        faults = list(spec.faults)
        for peer in range(spec.num_peers):
            at = START_SECONDS * randomness.random()
            if first.get(peer) != "start":
                faults.append(Fault(at, "start", (peer,)))
        return sorted(faults, key=lambda fault: fault.at_seconds)

    async def _happen(self, faults: list[Fault]) -> None:
        for fault in faults:
            await asyncio.sleep(max(0.0, fault.at_seconds - World.now()))
            self._trace.note(repr(fault))
            self._do(fault)
            if self._books is not None:
                self._books.disrupted()

    def _do(self, fault: Fault) -> None:
        network = self._network
        ids = [self.peers[index].identity.peer_id for index in fault.peers]
        if fault.kind == "partition":
            network.partition(ids)
        elif fault.kind == "heal":
            network.heal()
        elif fault.kind in ("crash_leader", "crash_reducer"):
            self._ambushes.append(fault)
        for index, peer_id in zip(fault.peers, ids, strict=True):
            peer = self.peers[index]
            if fault.kind == "start":
                peer.start()
            elif fault.kind in _OF_A_LIFE and peer.life is not None:
                _OF_A_LIFE[fault.kind](peer.life)
            elif fault.kind == "reset_line" and peer.life is not None:
                network.crash(peer_id)
                network.restore(peer_id)
            elif fault.kind == "stall" and peer.lives:
                network.stall(peer_id)
            elif fault.kind == "resume" and peer.lives:
                network.resume(peer_id)

    def _emit(self, index: int, event: Event) -> None:
        self._trace.add(index, event)
        if self._books is not None:
            self._books.on_event(index, event)
        self._on_event(index, event)
        if isinstance(event.fact, RoundStarted) and event.fact.num_contributors >= 3:
            for ambush in list(self._ambushes):
                victim = self._victim(ambush, event.peer_id, event.fact)
                if victim is not None:
                    self._ambushes.remove(ambush)
                    if victim.life is not None:
                        # Not from inside the victim's own call.
                        asyncio.get_running_loop().call_soon(victim.life.kill)

    def _victim(self, ambush: Fault, peer_id: PeerId, round_: RoundStarted) -> SimulatedPeer | None:
        by_id = {peer.identity.peer_id: peer for peer in self.peers}
        if ambush.kind == "crash_leader":
            return by_id.get(round_.leader)  # a further key of a hostile host is no peer
        reporter = by_id[peer_id]
        assert reporter.life is not None
        reduces = reporter.life.node.exchange.fragments[round_.fragment].machine._reducing.reductions
        return reporter if reduces and round_.leader != peer_id else None

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self._blamed.append(f"nobody handled: {context.get('message')}: {context.get('exception')!r}")


def _smaller_shards(min_shard_values: int) -> AbstractContextManager[object]:
    """Fragments of a few dozen values have several reducers, too."""
    return mock.patch.object(averaging.rounds.shard_plan, "MIN_SHARD_VALUES", min_shard_values)


@contextmanager
def _errors_logged() -> Iterator[list[str]]:
    """Collect what the project's own modules log as errors meanwhile: none is expected."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            cause = record.exc_info[1] if record.exc_info else None
            found.append(f"{record.name} logged: {record.getMessage()}" + (f": {cause!r}" if cause else ""))

    collector = Collector(logging.ERROR)
    names = ("dht", "averaging", "peer", "asyncio")
    for name in names:
        logging.getLogger(name).addHandler(collector)
    try:
        yield found
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(collector)
