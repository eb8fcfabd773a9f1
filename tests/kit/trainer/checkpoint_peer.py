"""One peer without a network, both sides of whose checkpoints are in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from averaging.codec.codec import make_codec
from averaging.fragment.runtime import FragmentRuntime
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.fragment_layout import build_layout
from averaging.outer.outer_settings import OuterRule
from dht.ground.compute import compute_inline
from dht.ground.host import PeerId
from peer.checkpoint.checked_files import open_new
from peer.checkpoint.checkpoint import (
    CheckpointFolder,
    CheckpointOwner,
    saved_totals,
)
from peer.config.manifest import AveragingSection
from peer.config.model_shapes import trained_parameters
from peer.events.peer_events import Event
from peer.mailbox.mailbox import Mailbox
from peer.network.node.checkpoint_keeper import CheckpointKeeper
from peer.network.node.fragment_memory import build_fragments
from peer.network.node.trainer_desk import TrainerDesk
from peer.trainer.loop.local_training import LocalTraining
from peer.trainer.loop.mailbox_link import TrainerLink
from peer.trainer.loop.trainer_checkpoint import TrainerKeeper
from peer.trainer.model.muon import Muon
from tests.kit.notaries import notary_of
from tests.kit.trainer.saved_states import facts_to
from tests.kit.trainer.trainer_link import unsent_work

ME = PeerId("12D3KooWMe")
SECTION = AveragingSection(sync_every=4, num_fragments=3)
RULE = OuterRule("carry", 0.7, 0.5)
NUM_SAMPLES, BATCH = 8192, 8
"""Samples for each unit of the order of data: to find a unit that has some takes longer than a step."""
STEPS_WHILE_SAVING = 8


class Net(torch.nn.Module):
    """Dropout needs the random state, batch norm has buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(inputs)
        return out


INPUTS = torch.randn(NUM_SAMPLES, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randn(NUM_SAMPLES, 2, generator=torch.Generator().manual_seed(2))


class Peer:
    """One peer without a network: trainer, mailbox, fragments, desk and both keepers in one process."""

    def __init__(
        self,
        folder: Path,
        make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        section: AveragingSection = SECTION,
        open_file: Callable[[Path], BinaryIO] = open_new,
        **options: Any,
    ) -> None:
        self.module = Net()
        self.optimizer = make_optimizer(self.module.parameters(), lr=0.01)
        trained = trained_parameters(self.module)
        self.layout = build_layout([(name, tuple(value.shape)) for name, value in trained], section.num_fragments)
        codec = make_codec("int4", 16)
        sent_bytes = [codec.encoded_num_bytes(size) for size in self.layout.sizes]
        self.mailbox = Mailbox.in_process(self.layout.sizes, sent_bytes)
        self.owner = CheckpointOwner("own.aaaaaaaaaaaaaaaaaaaa", ME, b"m" * 32, self.layout.digest, self.layout.sizes)
        totals = saved_totals(folder, self.owner.run_id, ME)
        self.mailbox.trainer.tokens = totals.tokens
        self.link = TrainerLink(
            trained,
            self.layout,
            self.mailbox,
            sync_every=section.sync_every,
            mode=section.mode,
            clock=lambda: 0.0,
            pause=None,
            start_inner_step=totals.inner_steps,
        )
        self.training = LocalTraining(
            self.module,
            self.optimizer,
            self.link,
            seed=1,
            peer_id=ME,
            checkpoints=folder,
            state=options.get("state"),
        )
        assert self.training._keeper is not None
        self.trainer_keeper: TrainerKeeper = self.training._keeper
        self.trainer_keeper._open_file = open_file
        rule = OuterRule(section.mode, 0.7, 0.5)
        self.fragments: list[FragmentRuntime] = build_fragments(
            ME, self.owner.run_id, section, rule, make_codec("int4", 16), self.mailbox, notary_of(ME)
        )
        self.desk = TrainerDesk(self.mailbox, self.fragments, section, self.take, compute_inline, 0.001)
        self.seen: list[Event] = []
        self.folder = CheckpointFolder(folder, self.owner, 60.0, open_file=options.get("network_open", open_new))
        self.keeper = CheckpointKeeper(
            self.folder, self.fragments, self.mailbox, self.desk, compute_inline, facts_to(self.seen)
        )
        self.reads: list[list[int]] = []
        self.training.__enter__()

    async def take(self, index: int, fill: Callable[[FragmentState], None]) -> None:
        fill(self.fragments[index].state)

    def begin(self) -> None:
        """The initial parameters are the anchors; earlier sessions have left their totals."""
        self.mailbox.network.rounds_contributed, self.mailbox.network.run_tokens = 5, 700
        for fragment, (live, _) in zip(self.fragments, self._flat(), strict=True):
            fragment.state.anchor[:] = live
            fragment.state.refresh_digest()
            fragment.restart()
        self.desk.is_open = True

    def step(self) -> None:
        positions = self.training.next_positions(BATCH, 0, NUM_SAMPLES)
        self.reads.append(positions.tolist())
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.module(INPUTS[positions]), TARGETS[positions])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    async def steps(self, count: int) -> None:
        """The network side takes what is sent, sometimes late, and never encodes it: codecs are not the matter here."""
        for number in range(count):
            self.step()
            if number % 3 == 1:
                await self.desk.take_work()
            await asyncio.sleep(0)

    async def leave(self) -> None:
        """The loop is over; its last checkpoint is written."""
        self.training.__exit__(None, None, None)
        saving = asyncio.create_task(self.keeper.save(is_last=True))
        while not saving.done():
            self.training.idle()
            await asyncio.sleep(0.005)
        await saving

    async def save(self, *, is_last: bool = False) -> None:
        """Save while training goes on: always the same number of steps, so that the outbox has the same work."""
        saving = asyncio.create_task(self.keeper.save(is_last=is_last))
        for _ in range(STEPS_WHILE_SAVING):
            self.step()
            await asyncio.sleep(0)
        while not saving.done():
            self.training.idle()
            await asyncio.sleep(0.005)
        await saving

    def _flat(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(live parameters, L) of each fragment."""
        found = []
        for fragment in self.layout.fragments:
            values = torch.empty(fragment.num_values)
            self.link.ranks.gather_live(self.link.portion, fragment, values)
            found.append((values, unsent_work(self.link, fragment.index)))
        return found

    def sums(self) -> list[torch.Tensor]:
        """A - r - L - x per fragment, less what lies in the outbox: zero when nothing was lost or counted twice."""
        found = []
        for fragment, (live, unsent) in zip(self.fragments, self._flat(), strict=True):
            posted = self.link._unabsorbed(fragment.index)
            shown = torch.from_numpy(fragment.state.shown())
            found.append(shown - unsent - live - sum(posted, torch.zeros_like(live)))
        return found


@dataclass(frozen=True)
class Picture:
    """What training goes on from."""

    parameters: bytes
    optimizer: bytes
    buffers: bytes
    randomness: tuple[object, ...]
    counts: tuple[object, ...]


def picture_of(peer: Peer) -> Picture:
    tensors: dict[str, torch.Tensor] = {}
    state = peer.optimizer.state_dict()["state"]
    for index, values in sorted(state.items()):
        tensors |= {f"{index}.{key}": value for key, value in values.items() if isinstance(value, torch.Tensor)}
    counters = peer.mailbox.trainer
    return Picture(
        b"".join(value.detach().numpy().tobytes() for value in peer.module.parameters()),
        b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors)),
        b"".join(value.numpy().tobytes() for value in peer.module.buffers()),
        (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()),
        (counters.inner_steps, counters.tokens, str(peer.link.accounts())),
    )


def resumed(folder: Path, **options: Any) -> Peer:
    """A new process: fresh module, optimizer and random states, everything else from the disk."""
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    peer = Peer(folder, **options)
    saved, complaints = peer.folder.newest()
    assert saved is not None, complaints
    assert saved.has_trainer
    for fragment in peer.fragments:
        saved.restore(fragment.index, fragment.state)
    assert peer.trainer_keeper.restore(saved.number) is not None
    return peer


def run(work: Any) -> Any:
    return asyncio.run(work)


def saved_pair(folder: Path, **options: Any) -> Peer:
    async def scene() -> Peer:
        peer = Peer(folder, **options)
        peer.begin()
        await peer.steps(5)
        await peer.save()
        return peer

    peer: Peer = run(scene())
    return peer


def muon_for_all(parameters: Iterable[torch.nn.Parameter], lr: float) -> Muon:
    both = list(parameters)
    return Muon([p for p in both if p.dim() == 2], [p for p in both if p.dim() != 2], lr=lr)
