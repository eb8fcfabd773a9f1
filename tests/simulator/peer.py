"""One simulated volunteer: the real Node and Trainer around an in-process mailbox, driven by asyncio alone.

A life is what a process is to a volunteer. It begins with fresh memory and ends with a goodbye, a crash, or at the end
of the simulation. The identity survives it, as the key file does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from averaging.arrays import F32
from averaging.signing.round_signatures import Notary, Scope
from dht.admission.handshake_frames import AccessRule
from dht.ground.compute import compute_inline
from dht.ground.host import PeerId
from dht.identity.keys import Identity, verify
from peer.config.averaging_rules import codec_of, limits_of, sent_bytes_of
from peer.events.peer_events import Event
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import NUM_SLOTS
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.node.node import Node
from peer.network.node.node_inputs import NodeIdentity, NodePorts
from tests.simulator.adversaries.insiders import node_type_of, round_parts_of, turn_hostile
from tests.simulator.adversaries.liars import LIES_IN_FRAMES, lying_host
from tests.simulator.books.books import Books
from tests.simulator.books.ledger import Ledger
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.network.store import MemoryRecords, MemoryStore
from tests.simulator.scenarios.spec import SimulationSpec
from tests.simulator.tampering import tampered
from tests.simulator.virtual_sleep import Process
from tests.simulator.workload import GptWorkload, QuadraticWorkload, Workload

EPOCH_SECONDS = 1_800_000_000.0
"""Unix time at which every simulation begins."""
LOOK_SECONDS = 0.1
"""How often a trainer that cannot go on looks into the mailbox."""
FLUSH_SECONDS = 0.5
"""How often a trainer that has finished does so until the swarm has settled."""
REST_SECONDS = 2.5
"""A node that hears nothing from its trainer looks into the mailbox this often."""
RESTART_SECONDS = 1.0
"""From the death of a network process to its successor."""
SOFTWARE = "simulated"


@dataclass
class World:
    """What the simulated peers of one run share."""

    spec: SimulationSpec
    run_id: str
    network: MemoryNetwork
    records: MemoryRecords
    workload: Workload
    emit: Callable[[int, Event], None]
    over: asyncio.Event
    """Set when the swarm has settled: everybody leaves."""
    books: Books | None = None
    """Checks every event of every round, if anything does."""
    entry: Callable[[Identity], tuple[RunHandshakePolicy, bytes]] | None = None
    """A peer's membership and the owner's changes; None: everybody is a member of the manifest as it is."""

    @staticmethod
    def now() -> float:
        """Virtual seconds since the beginning."""
        return asyncio.get_running_loop().time()

    def wall_clock(self) -> float:
        """Virtual unix seconds."""
        return EPOCH_SECONDS + self.now()

    def hostile_peers(self) -> Iterator[PeerId]:
        """Those that do the others harm: all of them know each other."""
        for index in range(self.spec.num_peers):
            if self.spec.profile(index).lie is not None:
                yield simulated_identity(self.spec.seed, index).peer_id

    @property
    def is_training(self) -> bool:
        """Whether peers still take inner steps."""
        return self.now() < self.spec.training_seconds


def workload_of(spec: SimulationSpec) -> Workload:
    """What the peers of a simulation learn."""
    is_gpt = spec.workload.kind == "gpt"
    return GptWorkload(spec.manifest) if is_gpt else QuadraticWorkload(spec.manifest, spec.workload)


class Life:
    """One process: trainer, mailbox and network side, until it ends or is killed."""

    node: Node
    running: asyncio.Task[None]
    """The network process, or what starts it again."""

    def __init__(self, world: World, identity: Identity, index: int, number: int) -> None:
        self.profile = world.spec.profile(index)
        self.process = Process()
        self.randomness = random.Random(f"{world.spec.seed} life {index} {number}")
        sizes = world.workload.layout.sizes
        self.mailbox = Mailbox.in_process(sizes, sent_bytes_of(world.spec.manifest, sizes))
        self.work = world.workload.begin(identity.peer_id, self.mailbox, world.now)
        self._ledgers: dict[int, Ledger] = {}
        self._world = world
        self._identity = identity
        self.index = index
        self._is_dead = False
        self._is_leaving = False
        self.is_restarting = False
        """Whether the network process was killed, and its successor does not run yet."""
        self._trainer_acted = asyncio.Event()
        self._harming: asyncio.Task[None] | None = None
        self._training = self._spawn(self._train(), "trainer")
        self.process.context.run(self._start_network)

    @property
    def is_live(self) -> bool:
        """Whether both processes run; so does a life whose network process is started again."""
        return not self._is_dead and not self.running.done()

    @property
    def is_leaving(self) -> bool:
        """Whether it was asked to leave and has not gone yet."""
        return self._is_leaving and self.is_live

    @property
    def failures(self) -> list[str]:
        """What ended one of the two processes, or a hostile peer's harm, although nobody killed it."""
        found = []
        for task in (self._training, self.running, self._harming):
            if task is not None and task.done() and not task.cancelled() and (error := task.exception()) is not None:
                found.append(f"peer {self.index}: the {task.get_name()} ended: {type(error).__name__}: {error}")
        return found

    def kill(self) -> None:
        """Both processes end at once and say nothing."""
        self._is_dead = True
        self.process.wake()
        self._world.network.crash(self._identity.peer_id)
        self._training.cancel()
        self.running.cancel()

    def leave(self) -> None:
        """The trainer ends after its current inner step, and the peer says goodbye."""
        self._is_leaving = True

    def restart_network(self) -> None:
        """The network process is killed and started again on the same mailbox; the trainer goes on."""
        self._world.network.crash(self._identity.peer_id)
        self.running.cancel()
        self.is_restarting = True
        # The life goes on meanwhile: nobody starts a second one, and a crash ends this one with its restart.
        self.running = self._spawn(self._start_network_after(self.running), "restart of the network process")

    async def ended(self) -> None:
        """Wait until both processes have ended; what ended them is in `failures`."""
        while not (self._training.done() and self.running.done()):
            await asyncio.gather(self._training, self.running, return_exceptions=True)

    async def _start_network_after(self, killed: asyncio.Task[None]) -> None:
        await asyncio.gather(killed, return_exceptions=True)
        await asyncio.sleep(RESTART_SECONDS)
        self._start_network()

    def _start_network(self) -> None:
        world, spec = self._world, self._world.spec
        me = self._identity.peer_id
        host = self._host()
        rule = AccessRule(world.run_id, spec.manifest.hash, SOFTWARE, spec.manifest.rules)
        handshake_policy, owner_public_key = RunHandshakePolicy(rule, me, "trainer"), bytes(32)
        if world.entry is not None:
            handshake_policy, owner_public_key = world.entry(self._identity)
        session = self.randomness.getrandbits(62)
        friends = frozenset(world.hostile_peers() if self.profile.lie is not None else ())
        who = NodeIdentity(
            self._identity, world.run_id, session, "trainer", "simulated", "", SOFTWARE, site=self.profile.line.site
        )
        ports = NodePorts(
            host,
            MemoryStore(world.records, host),
            handshake_policy,
            lambda: world.wall_clock() + self.profile.clock_skew_seconds,
            world.now,
            self._compute if spec.compute_seconds else compute_inline,
            self._emit,
            random.Random(session),
            poll_seconds=LOOK_SECONDS,
            rest=self._rest,
            verified=world.records.verified,
            owner_public_key=owner_public_key,
            parts=round_parts_of(self.profile.lie, friends, self.randomness),
        )
        node_type = node_type_of(self.profile.lie)
        if spec.tampering is not None and node_type is Node:
            node_type = tampered(spec.tampering, self.randomness)
        self.node = node_type(who, spec.manifest, ports, self.mailbox)
        if world.books is not None:
            world.books.follow(self.index, self.node, self._ledgers)
        self.is_restarting = False
        self.running = self._spawn(self._run_node(self.node, host), "network process")
        if self.profile.lie is not None:
            harm = turn_hostile(self.node, host, self.profile.lie, friends, self.randomness)
            if harm is not None:
                harming = self._harming = self._spawn(harm, "harm")
                self.running.add_done_callback(lambda _: harming.cancel())

    def _host(self) -> MemoryHost:
        world, profile, me = self._world, self.profile, self._identity.peer_id
        if profile.lie is None or profile.lie.kind not in LIES_IN_FRAMES:
            return MemoryHost(world.network, me, line=profile.line)
        codec = codec_of(world.spec.manifest)
        limits = limits_of(self.mailbox.sizes, codec)
        scope = Scope(world.run_id, world.spec.manifest.hash)
        notary = Notary(scope, self._identity.sign, verify, world.records.verified)
        seed = self.randomness.getrandbits(32)
        return lying_host(world.network, me, profile.line, profile.lie, codec, limits, notary, seed)

    async def _compute(self, work: Callable[[], Any]) -> Any:
        """A thread that is busy before and after: other events come in between."""
        longest = self._world.spec.compute_seconds
        await asyncio.sleep(self.randomness.uniform(0.0, longest))
        result = work()
        await asyncio.sleep(self.randomness.choice((0.0, self.randomness.uniform(0.0, longest))))
        return result

    async def _rest(self, _poll_seconds: float) -> None:
        """Until the trainer has posted or taken something, instead of looking many times a second."""
        self._trainer_acted.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                await self._trainer_acted.wait()

    async def _run_node(self, node: Node, host: MemoryHost) -> None:
        await node.run()
        await host.close()

    async def _train(self) -> None:
        world, link = self._world, self.work.link
        while not link.try_post_initial():  # noqa: ASYNC110 (the mailbox has no events, on purpose)
            await asyncio.sleep(LOOK_SECONDS)
        while not link.try_ready():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        with self.work.session():
            while world.is_training and not self._is_leaving:
                while link.is_blocked and world.is_training:
                    await asyncio.sleep(LOOK_SECONDS)
                    self._touch(link.poll)
                await asyncio.sleep(self.profile.step_seconds * self.randomness.uniform(0.9, 1.1))
                self._touch(self.work.step)
            while not world.over.is_set() and not self._is_leaving:
                # The last work reaches the swarm too; from here on nothing changes but by rounds.
                self._touch(link.flush)
                await asyncio.sleep(FLUSH_SECONDS)
        self._trainer_acted.set()

    def _touch(self, act: Callable[[], object]) -> None:
        """Let the trainer act, and wake the node when it has something to do about it."""
        inbox, outbox = self.mailbox.inbox, self.mailbox.outbox
        before = inbox.num_free()
        act()
        if outbox.num_free() < NUM_SLOTS or inbox.num_free() > before:
            self._trainer_acted.set()

    def _emit(self, event: Event) -> None:
        if not self._is_dead:
            self._world.emit(self.index, event)

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        context = self.process.context.copy()
        return asyncio.get_running_loop().create_task(coroutine, name=name, context=context)


class SimulatedPeer:
    """A volunteer with one identity, one line, one speed, and one life after the other."""

    def __init__(self, world: World, index: int) -> None:
        self.index = index
        self.identity = simulated_identity(world.spec.seed, index)
        self.lives: list[Life] = []
        self.profile = world.spec.profile(index)
        self._world = world
        self._waiting: asyncio.Task[None] | None = None

    @property
    def life(self) -> Life | None:
        """The current one, if the peer runs."""
        return self.lives[-1] if self.lives and self.lives[-1].is_live else None

    def start(self) -> None:
        """Begin a new life, unless one is under way; after a goodbye that is not over yet, as soon as it is."""
        if self.life is not None and self.life.is_leaving:
            self._waiting = asyncio.get_running_loop().create_task(self._start_after(self.life))
        elif self.life is None:
            number = len(self.lives)
            self.lives.append(Life(self._world, self.identity, self.index, number))

    async def _start_after(self, life: Life) -> None:
        await life.ended()
        self.start()


def simulated_identity(seed: int, index: int) -> Identity:
    """The key of simulated peer `index`: a function of the seed, never of the system's randomness."""
    return Identity.from_seed(sha256(f"murmuration simulation {seed} {index}".encode()).digest())


def anchors_of(node: Node) -> dict[int, F32]:
    """Fragment -> its anchor as a node holds it now, float32 [num_values]."""
    return {fragment.index: fragment.state.anchor for fragment in node.exchange.fragments}
