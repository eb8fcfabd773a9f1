"""One simulated volunteer: the real Node and Trainer around an in-process mailbox, driven by asyncio alone.

A life is what a process is to a volunteer: it begins with fresh memory and ends with a crash or at the end of the
simulation. The identity survives it, as the key file does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

from torch import Tensor

from averaging.fragments import FragmentLayout, build_layout
from dht.access import AccessRule
from dht.identity import Identity
from dht.memory_host import MemoryHost, MemoryNetwork
from dht.memory_store import MemoryRecords, MemoryStore
from peer.data import Corpus
from peer.doorkeeper import RunDoorkeeper
from peer.events import Event
from peer.mailbox import Mailbox
from peer.model import GPT, build_model
from peer.node import Node, NodeIdentity, NodePorts
from peer.simulated_spec import SimulationSpec
from peer.trainer import Trainer
from peer.trainer_link import TrainerLink

EPOCH_SECONDS = 1_800_000_000.0
"""Unix time at which every simulation begins."""
LOOK_SECONDS = 0.1
"""How often node and trainer look into the mailbox: a quarter of the fastest inner step."""
RESTART_SECONDS = 1.0
"""From the death of a network process to its successor."""
EVALUATE_EVERY_SYNCS = 4
"""The first peer measures the held-out loss once per so many intervals."""
SOFTWARE = "simulated"

T = TypeVar("T")


@dataclass
class World:
    """What the simulated peers of one run share."""

    spec: SimulationSpec
    run_id: str
    network: MemoryNetwork
    records: MemoryRecords
    corpus: Corpus
    layout: FragmentLayout
    emit: Callable[[int, Event], None]
    over: asyncio.Event
    """Set when the swarm has settled: everybody leaves."""

    @staticmethod
    def now() -> float:
        """Virtual seconds since the beginning."""
        return asyncio.get_running_loop().time()

    def wall_clock(self) -> float:
        """Virtual unix seconds."""
        return EPOCH_SECONDS + self.now()

    @property
    def is_training(self) -> bool:
        """Whether peers still take inner steps."""
        return self.now() < self.spec.training_seconds

    def model(self) -> GPT:
        """The run's model with its initial parameters."""
        return build_model(self.spec.manifest.model, self.spec.manifest.seed)


def layout_of(spec: SimulationSpec) -> FragmentLayout:
    """The fragments of the simulated model."""
    shapes = [(name, tuple(p.shape)) for name, p in build_model(spec.manifest.model, 0).named_parameters()]
    section = spec.manifest.averaging
    return build_layout(shapes, section.num_fragments, section.fragment_by)


class Life:
    """One process: trainer, mailbox and network side, until it ends or is killed."""

    def __init__(self, world: World, identity: Identity, index: int, number: int, step_seconds: float) -> None:
        manifest = world.spec.manifest
        self.randomness = random.Random(f"{world.spec.seed} life {index} {number}")
        self.mailbox = Mailbox.in_process(world.layout.sizes)
        self.model = world.model()
        self.link = TrainerLink(
            self.model.named_parameters(),
            world.layout,
            self.mailbox,
            sync_every=manifest.averaging.sync_every,
            mode=manifest.averaging.mode,
            clock=world.now,
            pause=None,
        )
        self.trainer = Trainer(
            self.model,
            world.corpus,
            manifest.training,
            self.link,
            seed=manifest.seed,
            peer_id=identity.peer_id,
            evaluation_batches=manifest.data.evaluation_batches,
        )
        self._world = world
        self._identity = identity
        self._index = index
        self._step_seconds = step_seconds
        self._is_dead = False
        self._training = self._spawn(self._train(), "trainer")
        self._start_network()

    @property
    def is_live(self) -> bool:
        """Whether both processes run."""
        return not self._is_dead and not self.running.done()

    @property
    def failures(self) -> list[str]:
        """What ended one of the two processes although nobody killed it."""
        found = []
        for task in (self._training, self.running):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                found.append(f"peer {self._index}: the {task.get_name()} ended: {type(error).__name__}: {error}")
        return found

    def kill(self) -> None:
        """Both processes end at once and say nothing."""
        self._is_dead = True
        self._world.network.crash(self._identity.peer_id)
        self._training.cancel()
        self.running.cancel()

    async def restart_network(self) -> None:
        """The network process is killed and started again on the same mailbox; the trainer goes on."""
        if not self.is_live:
            return
        self._world.network.crash(self._identity.peer_id)
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await asyncio.sleep(RESTART_SECONDS)
        if not self._is_dead:
            self._start_network()

    async def ended(self) -> None:
        """Wait until both processes have ended; what ended them is in `failures`."""
        await asyncio.gather(self._training, self.running, return_exceptions=True)

    def _start_network(self) -> None:
        world, spec = self._world, self._world.spec
        me = self._identity.peer_id
        low, high = spec.upload_bits_per_second
        upload = random.Random(f"{spec.seed} line {self._index}").uniform(low, high)
        host = MemoryHost(world.network, me, upload_bits_per_second=upload, download_bits_per_second=5 * upload)
        rule = AccessRule(world.run_id, spec.manifest.hash, SOFTWARE)
        session = self.randomness.getrandbits(62)
        who = NodeIdentity(self._identity, world.run_id, session, "trainer", "simulated", "", SOFTWARE)
        ports = NodePorts(
            host,
            MemoryStore(world.records, host),
            RunDoorkeeper(rule, me, "trainer"),
            world.wall_clock,
            world.now,
            _inline,
            self._emit,
            random.Random(session),
            poll_seconds=LOOK_SECONDS,
        )
        self.node = Node(who, spec.manifest, ports, self.mailbox)
        self.running = self._spawn(self._run_node(self.node, host), "network process")

    async def _run_node(self, node: Node, host: MemoryHost) -> None:
        await node.run()
        await host.close()

    async def _train(self) -> None:
        world, link = self._world, self.link
        while not link.try_post_initial():  # noqa: ASYNC110 (the mailbox has no events, on purpose)
            await asyncio.sleep(LOOK_SECONDS)
        while not link.try_ready():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        evaluate_every = EVALUATE_EVERY_SYNCS * world.spec.manifest.averaging.sync_every if self._index == 0 else 0
        with self.trainer.training:
            while world.is_training:
                while link.is_blocked and world.is_training:
                    await asyncio.sleep(LOOK_SECONDS)
                    link.poll()
                await asyncio.sleep(self._step_seconds * self.randomness.uniform(0.9, 1.1))
                self.trainer.step()
                if evaluate_every and link.inner_steps % evaluate_every == 0:
                    self.trainer.evaluate()
            while not world.over.is_set():
                # The last work reaches the swarm too; from here on nothing changes but by rounds.
                link.flush()
                await asyncio.sleep(LOOK_SECONDS)

    def _emit(self, event: Event) -> None:
        if not self._is_dead:
            self._world.emit(self._index, event)

    @staticmethod
    def _spawn(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)


class SimulatedPeer:
    """A volunteer with one identity, one line, one speed, and one life after the other."""

    def __init__(self, world: World, index: int) -> None:
        self.index = index
        self.identity = simulated_identity(world.spec.seed, index)
        self.lives: list[Life] = []
        randomness = random.Random(f"{world.spec.seed} speed {index}")
        self.step_seconds = randomness.uniform(*world.spec.step_seconds)
        self._world = world

    @property
    def life(self) -> Life | None:
        """The current one, if the peer runs."""
        return self.lives[-1] if self.lives and self.lives[-1].is_live else None

    def start(self) -> None:
        """Begin a new life, unless one is under way."""
        if self.life is None:
            number = len(self.lives)
            self.lives.append(Life(self._world, self.identity, self.index, number, self.step_seconds))

    def crash(self) -> None:
        """kill -9."""
        if self.life is not None:
            self.life.kill()


def simulated_identity(seed: int, index: int) -> Identity:
    """The key of simulated peer `index`: a function of the seed, never of the system's randomness."""
    return Identity.from_seed(sha256(f"murmuration simulation {seed} {index}".encode()).digest())


def anchors_of(node: Node) -> dict[int, Tensor]:
    """Fragment -> its anchor, as a node holds it now."""
    return {fragment.index: fragment.state.anchor for fragment in node.exchange.fragments}


async def _inline(work: Callable[[], T], /) -> T:
    return work()
