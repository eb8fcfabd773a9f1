"""`peer simulate`: a whole swarm in virtual time, to find faults and to replay them.

Node, exchange, membership and trainer are the real ones; only the network, the DHT and the clock are simulated, and
everything random comes from the seed. A failure found with one seed happens again with the same seed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dht.host import PeerId
from dht.identity import make_run_id
from dht.memory_host import MemoryNetwork
from dht.memory_store import MemoryRecords
from peer.evaluation import held_out_loss, load_anchors
from peer.event_types import RoundAbandoned, RoundCommitted, RoundStarted, SentContribution
from peer.events import Event, to_json
from peer.simulated_checks import anchors_are_equal, has_settled, violations
from peer.simulated_data import markov_corpus
from peer.simulated_peer import EPOCH_SECONDS, SimulatedPeer, World, anchors_of, layout_of, simulated_identity
from peer.simulated_spec import START_SECONDS, Fault, SimulationResult, SimulationSpec, plan_churn, tiny_manifest
from peer.virtual_time import run_virtual

__all__ = ["Fault", "SimulationResult", "SimulationSpec", "run_simulation", "simulate", "tiny_manifest"]

LEAVE_SECONDS = 60.0
"""Virtual time in which everybody must have left in an orderly way."""


def run_simulation(num_peers: int, inner_steps: int, seed: int, churn: float, as_json: bool) -> int:
    """Simulate a swarm with a tiny model and print what happened. Returns 0 when every invariant held, else 1."""
    spec = SimulationSpec(num_peers, inner_steps, seed, tiny_manifest(seed))
    spec = dataclasses.replace(spec, faults=plan_churn(num_peers, spec.training_seconds, churn, seed))
    result = simulate(spec)
    print(json.dumps(dataclasses.asdict(result)) if as_json else _summary(result))
    return 1 if result.violations else 0


def simulate(
    spec: SimulationSpec, on_event: Callable[[int, Event], None] = lambda index, event: None
) -> SimulationResult:
    """Run one simulation to its end.

    Args:
        on_event: called with (peer index, event) for each event, in order.
    """
    began = time.perf_counter()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only cost time on tensors this small, and the order of sums must not vary
    try:
        with _errors_logged() as errors:
            result = run_virtual(_Simulation(spec, on_event).run(), seed=spec.seed)
    finally:
        torch.set_num_threads(num_threads)
    found = (*result.violations, *errors)
    return dataclasses.replace(result, violations=found, real_seconds=time.perf_counter() - began)


class _Trace:
    """Counts events and hashes them in order."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.staleness: Counter[int] = Counter()
        self.committed: set[tuple[int, int, tuple[str, ...]]] = set()
        self.contributors: set[PeerId] = set()
        self.abandoned: set[tuple[int, int, int]] = set()
        self._digest = hashlib.sha256()

    def add(self, event: Event) -> None:
        self.kinds[type(event).__name__] += 1
        self.note(to_json(event))
        if isinstance(event, SentContribution):
            self.staleness[event.staleness] += 1
        elif isinstance(event, RoundCommitted):
            self.committed.add((event.fragment, event.version, event.contributors))
            self.contributors.update(event.contributors)
        elif isinstance(event, RoundAbandoned):
            self.abandoned.add((event.fragment, event.version, event.attempt))

    def note(self, line: str) -> None:
        self._digest.update(line.encode() + b"\n")

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()


class _Simulation:
    def __init__(self, spec: SimulationSpec, on_event: Callable[[int, Event], None]) -> None:
        self._spec = spec
        self._on_event = on_event
        self._trace = _Trace()
        self._blamed: list[str] = []
        self._ambushes: list[Fault] = []
        self._side_tasks: list[asyncio.Task[None]] = []

    async def run(self) -> SimulationResult:
        spec = self._spec
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        world = self._world()
        self._network = world.network
        self.peers = [SimulatedPeer(world, index) for index in range(spec.num_peers)]
        loss_first = held_out_loss(world.model(), world.corpus, *self._evaluation)
        faults = asyncio.get_running_loop().create_task(self._happen(self._all_faults()))
        await asyncio.sleep(spec.training_seconds)
        while not faults.done() or (world.now() < self._settle_until and not has_settled(self.peers)):  # noqa: ASYNC110
            # The swarm is looked at from outside; nothing inside of it knows that it has settled.
            await asyncio.sleep(1.0)
        faults.result()
        await asyncio.gather(*self._side_tasks)
        virtual_seconds = world.now()
        result = self._result(world, loss_first, virtual_seconds)
        live = [peer.life for peer in self.peers if peer.life is not None]
        world.over.set()
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await asyncio.gather(*(life.ended() for life in live))
        except TimeoutError:
            self._blamed.append(f"not everybody had left {LEAVE_SECONDS:.0f} s after the end")
        for life in live:
            self._blamed += life.failures
        self._blamed += [f"a handler failed: {error!r}" for error in world.network.handler_errors]
        return dataclasses.replace(
            result,
            violations=(*result.violations, *self._blamed),
            events=dict(sorted(self._trace.kinds.items())),
            trace_hash=self._trace.hash,
        )

    @property
    def _evaluation(self) -> tuple[int, int]:
        return self._spec.manifest.data.evaluation_batches, self._spec.manifest.training.batch_size

    @property
    def _settle_until(self) -> float:
        last = max((fault.at_seconds for fault in self._spec.faults), default=0.0)
        return max(self._spec.training_seconds, last) + self._spec.settle_seconds

    def _world(self) -> World:
        spec = self._spec
        owner = simulated_identity(spec.seed, -1)
        network = MemoryNetwork(spec.seed, latency_seconds=spec.latency_seconds, stream_loss=spec.stream_loss)
        return World(
            spec,
            make_run_id(spec.manifest.name, owner.public_key),
            network,
            MemoryRecords(network, lambda: EPOCH_SECONDS + World.now(), spec.record_delay_seconds),
            markov_corpus(spec.seed, spec.manifest.model.vocab_size),
            layout_of(spec),
            self._emit,
            asyncio.Event(),
        )

    def _result(self, world: World, loss_first: float, virtual_seconds: float) -> SimulationResult:
        live = [peer for peer in self.peers if peer.life is not None]
        model = world.model()
        versions: tuple[int, ...] = ()
        loss_last = loss_first
        if live and live[0].life is not None:
            node = live[0].life.node
            load_anchors(model, world.layout, anchors_of(node))
            loss_last = held_out_loss(model, world.corpus, *self._evaluation)
            versions = node.versions()
        equal = anchors_are_equal(self.peers)
        found = list(violations(self.peers, self._trace.contributors))
        if not equal:
            found.append(f"anchors still differ {self._spec.settle_seconds:.0f} s after training")
        lives = [life for peer in self.peers for life in peer.lives]
        met = [peer.identity.peer_id for peer in self.peers if peer.lives]
        return SimulationResult(
            num_peers=self._spec.num_peers,
            num_live_peers=len(live),
            seed=self._spec.seed,
            inner_steps=sum(life.link.inner_steps for life in lives),
            tokens=sum(life.mailbox.trainer.tokens for life in lives),
            rounds_committed=len(self._trace.committed),
            rounds_failed=len(self._trace.abandoned),
            bytes_up=tuple(world.network.sent_bytes(peer_id) for peer_id in met),
            bytes_down=tuple(world.network.received_bytes(peer_id) for peer_id in met),
            staleness=dict(sorted(self._trace.staleness.items())),
            loss_first=loss_first,
            loss_last=loss_last,
            anchors_equal=equal,
            versions=versions,
            events={},
            trace_hash="",
            virtual_seconds=virtual_seconds,
            real_seconds=0.0,
            violations=tuple(found),
        )

    # ------------------------------------------------------------------------------------------------- faults

    def _all_faults(self) -> list[Fault]:
        spec = self._spec
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
            elif fault.kind == "crash":
                peer.crash()
            elif fault.kind == "restart_network" and peer.life is not None:
                self._side_tasks.append(asyncio.get_running_loop().create_task(peer.life.restart_network()))
            elif fault.kind == "stall":
                network.stall(peer_id)
            elif fault.kind == "resume":
                network.resume(peer_id)

    def _emit(self, index: int, event: Event) -> None:
        self._trace.add(event)
        self._on_event(index, event)
        if isinstance(event, RoundStarted) and event.num_contributors >= 3:
            for ambush in list(self._ambushes):
                victim = self._victim(ambush, event)
                if victim is not None:
                    self._ambushes.remove(ambush)
                    # Not from inside the victim's own call.
                    asyncio.get_running_loop().call_soon(victim.crash)

    def _victim(self, ambush: Fault, event: RoundStarted) -> SimulatedPeer | None:
        by_id = {peer.identity.peer_id: peer for peer in self.peers}
        if ambush.kind == "crash_leader":
            return by_id[event.leader]
        reporter = by_id[event.peer_id]
        assert reporter.life is not None
        reduces = reporter.life.node.exchange.fragments[event.fragment].machine.is_reducing
        return reporter if reduces and event.leader != event.peer_id else None

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self._blamed.append(f"nobody handled: {context.get('message')}: {context.get('exception')!r}")


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


def _summary(result: SimulationResult) -> str:
    up = sum(result.bytes_up) / max(1, len(result.bytes_up)) / 1e6
    down = sum(result.bytes_down) / max(1, len(result.bytes_down)) / 1e6
    late = ", ".join(f"{count} x {versions}" for versions, count in result.staleness.items())
    lines = [
        f"{result.num_peers} peers, seed {result.seed}: {result.virtual_seconds:.0f} virtual seconds "
        f"in {result.real_seconds:.1f} s",
        f"  training   {result.inner_steps} inner steps, {result.tokens} tokens",
        f"  rounds     {result.rounds_committed} committed, {result.rounds_failed} given up; "
        f"versions {' '.join(map(str, result.versions))}",
        f"  staleness  {late or 'nothing was sent'} (contributions x versions late)",
        f"  traffic    {up:.2f} MB up, {down:.2f} MB down per peer",
        f"  loss       {result.loss_first:.3f} -> {result.loss_last:.3f} nats per token, held out, on the anchor",
        f"  anchors    {'equal' if result.anchors_equal else 'DIFFERENT'} on {result.num_live_peers} live peers",
        f"  trace      {result.trace_hash}",
    ]
    if result.violations:
        lines.append(f"  {len(result.violations)} violations; `--seed {result.seed}` replays them:")
        lines += [f"    - {sentence}" for sentence in result.violations]
    else:
        lines.append("  every invariant held")
    return "\n".join(lines)
