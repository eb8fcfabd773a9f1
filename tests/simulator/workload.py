"""What simulated peers learn: a quadratic, equal to the bit on every machine, or the built-in GPT on a small language.

The quadratic is `f(x) = mean(c (x - t)^2) / 2` over n values. t is 1 or -1, and the curvatures c are 1, 1/4, 1/16 and
1/64 in turn. The x begin at 0, and gradients come with uniform noise. A step is four elementwise operations on float32,
each rounded once, and the noise is made of whole numbers. There is no sum, no library function and no fused operation
whose last bit differs between machines.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from averaging.arrays import F32
from averaging.outer.fragment_layout import FragmentLayout, build_layout
from dht.ground.host import PeerId
from peer.config.data_source import EVALUATION_BATCHES
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_layout
from peer.mailbox.mailbox import Mailbox
from peer.trainer.data.context_blocks import TokenStream
from peer.trainer.data.corpus import Corpus
from peer.trainer.loop.mailbox_link import TrainerLink
from peer.trainer.loop.trainer import Trainer
from peer.trainer.model.evaluation import fill_tensors, validation_loss
from peer.trainer.model.gpt import build_model
from tests.simulator.scenarios.spec import WorkloadSection

NOISE_POOL_VALUES = 65_521
"""Beyond the model's size: each step reads the pool from another offset, so that steps do not repeat their noise."""
NUM_TOKENS = 40_000
NUM_SUCCESSORS = 3
"""Each token is followed by one of so many others, the first of them in two cases of three: about 0.8 nats."""
CURVATURES = (1.0, 0.25, 0.0625, 0.015625)


@dataclass(frozen=True, slots=True)
class LocalWork:
    """One life's training.

    Attributes:
        link: to its mailbox.
        parameters: live ones by name, flat float32 views of what is trained.
        session: inner steps are taken inside; on leaving, the trainer says that none will follow.
        step: one inner step; what is due is sent and what came is merged.
    """

    link: TrainerLink
    parameters: Mapping[str, F32]
    session: Callable[[], AbstractContextManager[object]]
    step: Callable[[], object]


class GptWorkload:
    """The model of the manifest on text of a Markov chain; loss in nats per token."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest = manifest
        self._corpus = markov_corpus(manifest.seed, manifest.model.vocab_size)
        self.layout = seed_layout(manifest)

    def begin(self, peer_id: PeerId, mailbox: Mailbox, clock: Callable[[], float]) -> LocalWork:
        """A new life of a peer, with the initial parameters."""
        manifest = self._manifest
        model = build_model(manifest.model, manifest.seed)
        trained = dict(model.named_parameters())
        link = _link_of(trained, manifest, self.layout, mailbox, clock)
        trainer = Trainer(
            model,
            self._corpus,
            manifest.training,
            link,
            seed=manifest.seed,
            peer_id=peer_id,
        )
        parameters = {name: tensor.detach().view(-1).numpy() for name, tensor in trained.items()}
        return LocalWork(link, parameters, lambda: trainer.training, trainer.step)

    def loss(self, anchors: Mapping[int, F32] | None) -> float:
        """Validation loss of anchors (fragment -> float32 [num_values]); None: of the initial parameters."""
        model = build_model(self._manifest.model, self._manifest.seed)
        if anchors is not None:
            fill_tensors(dict(model.named_parameters()), self.layout, anchors)
        return validation_loss(model, self._corpus, EVALUATION_BATCHES, self._manifest.training.batch_size)


class QuadraticWorkload:
    """See the module docstring."""

    def __init__(self, manifest: RunManifest, chosen: WorkloadSection) -> None:
        num_values, learning_rate, noise = chosen.num_values, chosen.learning_rate, chosen.noise
        section = manifest.averaging
        self.layout = build_layout([("x", (num_values,))], section.num_fragments, "balanced")
        self._manifest = manifest
        self._num_values = num_values
        self._tokens_per_step = chosen.tokens_per_step
        generator = np.random.Generator(np.random.PCG64(manifest.seed))
        signs = 2.0 * generator.integers(0, 2, num_values) - 1.0
        self._target: F32 = signs.astype(np.float32)
        self._curvature = np.resize(np.array(CURVATURES), num_values)
        self._rates: F32 = (learning_rate * self._curvature).astype(np.float32)
        whole = generator.integers(-(2**20), 2**20, num_values + NOISE_POOL_VALUES)
        self._noise: F32 = (learning_rate * noise * 2.0**-20 * whole).astype(np.float32)

    def begin(self, peer_id: PeerId, mailbox: Mailbox, clock: Callable[[], float]) -> LocalWork:
        """See `GptWorkload.begin`."""
        live: F32 = np.zeros(self._num_values, dtype=np.float32)
        link = _link_of({"x": torch.from_numpy(live)}, self._manifest, self.layout, mailbox, clock)
        offsets, move = random.Random(f"{self._manifest.seed} noise {peer_id} {clock()}"), np.empty_like(live)

        def step() -> None:
            offset = offsets.randrange(NOISE_POOL_VALUES)
            np.subtract(live, self._target, out=move)
            np.multiply(move, self._rates, out=move)
            np.add(move, self._noise[offset : offset + live.size], out=move)
            np.subtract(live, move, out=live)
            link.after_inner_step(self._tokens_per_step)

        return LocalWork(link, {"x": live}, lambda: _until_flushed(link), step)

    def loss(self, anchors: Mapping[int, F32] | None) -> float:
        """See `GptWorkload.loss`."""
        place = 0
        total = 0.0
        for fragment in self.layout.fragments:
            there = slice(place, place + fragment.num_values)
            off = self._target[there].astype(np.float64)
            if anchors is not None:
                off -= anchors[fragment.index]
            total += float(np.dot(self._curvature[there], off * off))
            place = there.stop
        return total / (2 * self._num_values)


Workload = GptWorkload | QuadraticWorkload
"""What the peers of one simulation learn together."""


@contextmanager
def _until_flushed(link: TrainerLink) -> Iterator[None]:
    yield
    link.flush()
    link.finish()


@contextmanager
def one_thread() -> Iterator[None]:
    """Train with one thread inside: more only cost time on tensors this small, and the order of sums must not vary."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _link_of(
    parameters: Mapping[str, Tensor],
    manifest: RunManifest,
    layout: FragmentLayout,
    mailbox: Mailbox,
    clock: Callable[[], float],
) -> TrainerLink:
    return TrainerLink(
        parameters.items(),
        layout,
        mailbox,
        sync_every=manifest.averaging.sync_every,
        mode=manifest.averaging.mode,
        clock=clock,
        pause=None,
    )


def markov_corpus(seed: int, vocab_size: int) -> Corpus:
    """Text of a first-order Markov chain; the last tenth is held out."""
    generator = np.random.Generator(np.random.PCG64(seed))
    successors = generator.integers(0, vocab_size, (vocab_size, NUM_SUCCESSORS))
    choices = generator.choice(NUM_SUCCESSORS, NUM_TOKENS, p=(0.7, 0.2, 0.1))
    jumps = generator.random(NUM_TOKENS) < 0.02  # out of short cycles
    anywhere = generator.integers(0, vocab_size, NUM_TOKENS)
    tokens = np.empty(NUM_TOKENS, np.uint16)
    token = 0
    for position in range(NUM_TOKENS):
        token = int(anywhere[position] if jumps[position] else successors[token, choices[position]])
        tokens[position] = token
    cut = NUM_TOKENS - NUM_TOKENS // 10
    return Corpus(
        TokenStream([("training", tokens[:cut])], vocab_size), TokenStream([("held out", tokens[cut:])], vocab_size)
    )
