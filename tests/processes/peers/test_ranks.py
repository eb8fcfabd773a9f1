"""Several processes as one peer: the same steps, sends and anchors as one process; deaths."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from dht.ground.errors import LocalFault
from peer.checkpoint.checkpoint import checkpoint_path, draft_path
from peer.config.hf_config import canonical_config
from peer.config.hf_model_section import DescribedModel
from peer.config.manifest import RunManifest
from peer.config.model_section import ModelSection
from peer.config.model_shapes import averaged_parts, layout_of
from peer.config.training_section import TrainingSection
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.slots import MergeKind
from peer.owner.new_run import create_run
from peer.trainer.data.corpus import open_run_corpus
from peer.trainer.devices.portion import part_of
from peer.trainer.devices.rank_orders import ALONE, OrderKind, RankLost, Ranks
from peer.trainer.devices.rank_rendezvous import RankGroup, RankSetup
from peer.trainer.devices.sharding import shard
from peer.trainer.hf.architecture import build_architecture
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.hf.run_model import build_run_model
from peer.trainer.loop.mailbox_link import TrainerLink
from peer.trainer.loop.trainer import Trainer
from tests.simulator.scenarios.spec import tiny_manifest

CPU = torch.device("cpu")
LLAMA = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
RUN = """
[training]
batch_size = 4
accumulation_steps = 2
learning_rate = 1e-2
warmup_steps = 2
[averaging]
num_fragments = 3
sync_every = 2
"""
PEER = "peer-a"


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    """What the test opened is closed when it ends."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def manifest() -> RunManifest:
    made = tiny_manifest(3, num_fragments=3, sync_every=2)
    return made.model_copy(
        update={
            "model": ModelSection(num_layers=2, d_model=12, num_heads=2, vocab_size=257, context=16),
            "training": TrainingSection(batch_size=2, accumulation_steps=2, learning_rate=1e-2, warmup_steps=2),
        }
    )


def new_run(folder: Path, described: DescribedModel, model: str) -> RunManifest:
    """A run of an architecture of transformers."""
    (folder / "run.toml").write_text(f"{RUN}[model]\n{model}\n")
    return create_run("tiny", folder / "run.toml", folder / "owner", model=described).manifest


class OnePeer:
    """Rank 0, or a lone process: a real Trainer around a mailbox whose other side the test plays."""

    def __init__(
        self,
        ends: ExitStack,
        manifest: RunManifest,
        ranks: Ranks = ALONE,
        *,
        is_sharded: bool = False,
        offloads: bool = False,
        folder: Path | None = None,
        base: Path | None = None,
    ) -> None:
        model = build_run_model(manifest, base)
        self.model = shard(model, CPU, offloads=offloads) if is_sharded else model
        parts = averaged_parts(self.model, manifest)
        self.layout = layout_of(manifest, *([(name, tuple(value.shape)) for name, value in part] for part in parts))
        self.mailbox = Mailbox.in_process(self.layout.sizes)
        self.link = TrainerLink(
            [*parts[0], *parts[1]],
            self.layout,
            self.mailbox,
            sync_every=2,
            clock=lambda: 0.0,
            pause=None,
            ranks=ranks,
            ref_device=CPU if offloads else None,
        )
        corpus = open_run_corpus(manifest, manifest.data.source, folder and folder.parent)
        ends.callback(corpus.close)
        self.trainer = Trainer(
            self.model,
            corpus,
            manifest.training,
            self.link,
            seed=manifest.seed,
            peer_id=PEER,
            checkpoints=folder,
        )
        self.works: list[torch.Tensor] = []
        self.losses: list[float] = []

    def live(self) -> list[torch.Tensor]:
        """Whole fragments of the live parameters."""
        found = []
        for fragment in self.layout.fragments:
            values = torch.empty(fragment.num_values)
            self.link.ranks.gather_live(self.link.portion, fragment, values)
            found.append(values)
        return found

    def work(self, num_steps: int) -> None:
        """Steps, after each of which the other side takes what was sent and sends something back of every kind."""
        generator = torch.Generator().manual_seed(7)
        kinds = [MergeKind.ADD, MergeKind.BLEND, MergeKind.SET, MergeKind.REBASE]
        with self.trainer.training:
            for number in range(num_steps):
                self.losses.append(self.trainer.step())
                for message in self.mailbox.outbox.take():
                    self.works.append(torch.from_numpy(message.values.copy()))
                    self.mailbox.outbox.release(message.slot)
                index = number % len(self.layout.sizes)
                change = 0.01 * torch.randn(self.layout.sizes[index], generator=generator)
                kind = kinds[number % len(kinds)]
                values = change if kind == MergeKind.ADD else self.live()[index] + change
                assert self.mailbox.inbox.try_post(kind, index, values.numpy(), version=number + 1)

    def evaluate(self) -> float:
        """On anchors that are all the same number."""
        for state in self.mailbox.states:
            state.anchor.fill(0.01)
        measured = self.trainer.evaluate()
        assert measured is not None
        return measured.loss


@contextmanager
def some_ranks(
    manifest: RunManifest,
    folder: Path,
    *,
    is_sharded: bool,
    offloads: bool = False,
    size: int = 2,
    base: Path | None = None,
) -> Iterator[tuple[Ranks, RankGroup]]:
    """Rank 0 in this process, the others in real ones."""
    group = RankGroup(size, None)
    is_orderly = False
    try:
        setup = RankSetup(
            manifest=manifest.to_bytes().hex(),
            data=manifest.data.source,
            is_own_data=False,
            base="" if base is None else str(base),
            base_bits="full",
            device="cpu",
            threads=1,
            is_sharded=is_sharded,
            offloads=offloads,
            checkpoints=str(folder),
        )
        ranks = group.meet(setup, CPU)
        yield ranks, group
        if group.died is None:
            ranks.order(OrderKind.END)
        is_orderly = True
    finally:
        group.end(is_orderly=is_orderly)
        assert all(child.poll() is not None for child in group._children)


def keep(peer: OnePeer, folder: Path) -> list[torch.Tensor]:
    """Write checkpoint 1 as the trainer does when it is asked; the live parameters in it."""
    draft_path(folder, 1).mkdir()
    peer.mailbox.network.wanted_moment = 1
    keeper = peer.trainer.training._keeper
    assert keeper is not None
    keeper.after_step()
    assert keeper._writer is not None
    keeper._writer.join()
    assert peer.mailbox.trainer.moment_written == 1
    draft_path(folder, 1).rename(checkpoint_path(folder, 1))
    return peer.live()


def optimizer_values(peer: OnePeer) -> list[torch.Tensor]:
    """What this process holds of the optimizer's state, flat."""
    states = peer.trainer._inner.optimizer.state.values()
    return [part_of(value).local.clone() for state in states for value in state.values() if value.dim()]


@pytest.mark.parametrize("is_sharded", [False, True], ids=["replicated", "sharded"])
def test_two_processes_are_one_peer(ends: ExitStack, manifest: RunManifest, tmp_path: Path, is_sharded: bool) -> None:
    alone = OnePeer(ends, manifest)
    alone.work(9)
    with some_ranks(manifest, tmp_path, is_sharded=is_sharded) as (ranks, group):
        pair = OnePeer(ends, manifest, ranks, is_sharded=is_sharded, folder=tmp_path)
        start = pair.live()
        for one, other in zip(start, OnePeer(ends, manifest).live(), strict=True):
            assert torch.equal(one, other)
        pair.work(9)
        # Sums of gradients in another order, nothing else; AdamW's first steps magnify that.
        torch.testing.assert_close(pair.losses, alone.losses, rtol=2e-4, atol=0)
        assert len(pair.works) == len(alone.works) > 4
        for one, other in zip(pair.works, alone.works, strict=True):
            torch.testing.assert_close(one, other, rtol=0.02, atol=2e-4)
        for one, other in zip(pair.live(), alone.live(), strict=True):
            torch.testing.assert_close(one, other, rtol=0.02, atol=2e-4)
        assert pair.mailbox.trainer.tokens == alone.mailbox.trainer.tokens == 9 * 4 * 16
        before = pair.live()
        assert pair.evaluate() == pytest.approx(alone.evaluate(), rel=1e-5)
        assert all(torch.equal(one, other) for one, other in zip(before, pair.live(), strict=True))
        # What both wrote together either takes up again, and so does a lone process.
        saved, optimizer = keep(pair, tmp_path), optimizer_values(pair)
        pair.work(2)
        assert not torch.equal(pair.live()[0], saved[0])
        third = OnePeer(ends, manifest, folder=tmp_path)
        for peer in (pair, third):
            keeper = peer.trainer.training._keeper
            assert keeper is not None
            assert keeper.restore(1) is not None
            assert all(torch.equal(one, other) for one, other in zip(peer.live(), saved, strict=True))
        assert all(torch.equal(one, other) for one, other in zip(optimizer_values(pair), optimizer, strict=True))
        # The pair has read since; the next step of both is on the same blocks.
        third.trainer.training._order = copy.deepcopy(pair.trainer.training._order)
        torch.testing.assert_close(pair.trainer.step(), third.trainer.step(), rtol=2e-4, atol=0)
        held = sum(part_of(value).local.numel() for value in pair.model.parameters())
        everything = sum(pair.layout.sizes)
        assert held < 0.6 * everything if is_sharded else held == everything
        if is_sharded:
            assert_a_death_is_one_sentence(pair, group)


def assert_a_death_is_one_sentence(pair: OnePeer, group: RankGroup) -> None:
    group._children[0].send_signal(signal.SIGTERM)  # a terminal's signals are rank 0's to answer
    pair.work(1)
    os.kill(group._children[0].pid, signal.SIGKILL)
    with pytest.raises((RuntimeError, LocalFault)) as caught:
        pair.work(50)
    explained = group.explain(caught.value)
    assert isinstance(explained, RankLost)
    assert "process 1 of this peer was ended by SIGKILL" in str(explained)
    assert "start again" in str(explained)
    with pytest.raises(RankLost):
        group.check()


def test_one_device_may_be_sharded_too(ends: ExitStack, manifest: RunManifest, tmp_path: Path) -> None:
    alone = OnePeer(ends, manifest)
    alone.work(3)
    with some_ranks(manifest, tmp_path, is_sharded=True, size=1) as (ranks, _):
        single = OnePeer(ends, manifest, ranks, is_sharded=True)
        single.work(3)
        for one, other in zip(single.live(), alone.live(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_an_adapter_is_trained_beside_a_base_cut_into_rows(ends: ExitStack, tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "checkpoints"
    torch.manual_seed(0)
    module: Any = build_architecture(canonical_config({**LLAMA, "tie_word_embeddings": False}), "causal-lm")
    module.save_pretrained(base)
    described = describe_model(base, None, (4, ("q_proj", "down_proj")))
    run = new_run(tmp_path, described, "context = 16")
    folder.mkdir()
    alone = OnePeer(ends, run, base=base)
    alone.work(4)
    with some_ranks(run, folder, is_sharded=True, offloads=True, base=base) as (ranks, _):
        pair = OnePeer(ends, run, ranks, is_sharded=True, offloads=True, folder=folder, base=base)
        frozen = [one for one in pair.model.parameters() if not one.requires_grad]
        assert {one.dtype for one in frozen} == {torch.bfloat16}
        assert sum(part_of(one).local.numel() for one in frozen) <= 0.6 * sum(one.numel() for one in frozen)
        pair.work(4)
        torch.testing.assert_close(pair.losses, alone.losses, rtol=1e-3, atol=0)
        for one, other in zip(pair.works, alone.works, strict=True):
            # In bfloat16 the sum of a gradient near zero may have the other sign, of which AdamW makes a whole step.
            assert torch.isclose(one, other, rtol=0.05, atol=5e-4).float().mean() > 0.99
        assert pair.evaluate() == pytest.approx(alone.evaluate(), rel=1e-3)
        saved = keep(pair, folder)
    third = OnePeer(ends, run, folder=folder, base=base)
    keeper = third.trainer.training._keeper
    assert keeper is not None
    assert keeper.restore(1) is not None
    assert all(torch.equal(one, other) for one, other in zip(third.live(), saved, strict=True))
