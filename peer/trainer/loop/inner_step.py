"""One inner step of the built-in loop: the gradient of some blocks on all ranks of a peer, then the optimizer.

Each rank reads its own share of the step's blocks, so a step is the manifest's batch whatever the number of ranks. DDP
(arXiv 2006.15704) and FSDP2 (arXiv 2304.11277) average the ranks' gradients, whose shares are equal. The number of
backward passes does not change the step either: each pass is weighted by its share of the step's tokens.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dht.ground.errors import LocalFault
from peer.config.training_section import TrainingSection
from peer.trainer.computing.backward_passes import CompiledLoss, MicroBatch, MixedPrecision
from peer.trainer.computing.compute_choices import ComputeChoices, Tell
from peer.trainer.data.corpus import Corpus
from peer.trainer.devices.rank_orders import ALONE, Ranks
from peer.trainer.devices.sharding import own_share
from peer.trainer.model.inner_optimizer import has_fused, make_optimizer

GRAD_CLIP = 1.0
"""Largest global norm of a gradient (arXiv 1211.5063); the value that published runs of language models use."""
IGNORED = -100
"""A target that losses ignore, as in torch's cross-entropy."""


class LanguageModel(Protocol):
    """The interface that the trainer needs in addition to `nn.Module`."""

    context: int

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats over targets other than `IGNORED`; both int64 [batch, context].

        Calling the module with both arguments must return the same, because DDP hooks only into `forward`.
        """


def learning_rate_at(step: int, settings: TrainingSection, factor: float = 1.0) -> float:
    """Return the learning rate of the optimizer's inner step `step`, from 0.

    A new optimizer's moments need the warm-up, a restored one's do not.

    Args:
        factor: share of the peak by the run's clock (`peer.config.learning_rate_schedule`), the same on every peer.
    """
    rate = settings.learning_rate * factor
    return rate * (step + 1) / settings.warmup_steps if step < settings.warmup_steps else rate


class InnerStep:
    """Computes gradients and updates `model`, which is already sharded if sharding was requested.

    Args:
        model: a module that is also a `LanguageModel`, already on `device`.
        ranks: the processes of this peer.
        choices: choices of the machine's owner beyond those applied by `prepare_module`; None: the defaults.
        tell: receives news about computing.

    Raises:
        UsageFault: this model or this machine does not support a choice.
    """

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        settings: TrainingSection,
        device: torch.device,
        ranks: Ranks = ALONE,
        choices: ComputeChoices | None = None,
        tell: Tell | None = None,
    ) -> None:
        choices, tell = choices or ComputeChoices(), tell or Tell()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = make_optimizer(
            model.named_parameters(), settings, fused=has_fused(trained), bits=choices.optimizer_bits
        )
        self.language_model: LanguageModel = _as_language_model(model)
        self._corpus = corpus
        self._settings = settings
        self._device = device
        self._ranks = ranks
        self._parameters = trained
        self._precision = MixedPrecision(choices.precision, device, trained, is_sharded=ranks.is_sharded)
        self._micro_batch = MicroBatch(
            choices.micro_batch or settings.batch_size, may_halve=ranks.is_alone, tell=tell.smaller
        )
        self._replicas: nn.parallel.DistributedDataParallel | None = None
        if ranks.size > 1 and not ranks.is_sharded:
            devices = [device] if device.type == "cuda" else None
            self._replicas = nn.parallel.DistributedDataParallel(model, device_ids=devices)
        self._compiled: CompiledLoss | None = None
        if choices.compile:
            self._compiled = CompiledLoss(self._replicas or self.language_model.loss, tell)

    def gradient(self, positions: NDArray[np.int64]) -> tuple[float, float]:
        """Compute the clipped gradient of the mean loss over the blocks at `positions`, on all ranks.

        Each rank gets all positions. Returns (loss in nats per token, gradient norm) over all ranks.
        """
        mine = own_share(positions, self._ranks.rank, self._ranks.size)
        loss = self._micro_batch.fitting(partial(self._accumulate, mine), self._forget)
        self._precision.unscale(self.optimizer)
        norm: Any = nn.utils.clip_grad_norm_(self._parameters, GRAD_CLIP)
        norm = norm.full_tensor() if self._ranks.is_sharded else norm
        # Read both in one transfer, because the device idles while the host waits for a number.
        kind = torch.promote_types(loss.dtype, norm.dtype)
        share, length = torch.stack([loss.to(kind), norm.to(loss.device, kind)]).tolist()
        return self._ranks.mean(share), length

    def _accumulate(self, positions: NDArray[np.int64]) -> Tensor:
        """Add up the gradients of this rank's passes; return its share of the mean loss, on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = self._micro_batch.parts(positions)
        batches = [self._corpus.training.batch(part, self.language_model.context) for part in parts]
        counts = [_num_counted(targets) for _, targets in batches]
        whole = self._ranks.mean(float(sum(counts)))
        loss_of = self._compiled or self._replicas or self.language_model.loss
        total = torch.zeros((), device=self._device)
        for number, ((inputs, targets), count) in enumerate(zip(batches, counts, strict=True), 1):
            if not count and whole and self._ranks.is_alone:
                continue
            with self._synchronised(number == len(batches)):
                with self._precision.autocast():
                    loss = loss_of(inputs.to(self._device), targets.to(self._device)) * (count / max(1.0, whole))
                torch.autograd.backward(self._precision.scaled(loss))
            total += loss.detach()
        return total

    def _forget(self) -> None:
        """Free the memory of a step that ran out of memory."""
        self.optimizer.zero_grad(set_to_none=True)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def step(self, positions: NDArray[np.int64], age: int, factor: float = 1.0) -> tuple[float, float]:
        """Compute the `gradient`; call `update` if loss and norm are finite."""
        loss, norm = self.gradient(positions)
        if math.isfinite(loss) and math.isfinite(norm):
            self.update(age, factor)
        else:
            self.optimizer.zero_grad(set_to_none=True)
        return loss, norm

    def update(self, age: int, factor: float = 1.0) -> None:
        """Make the optimizer's step number `age`, from 0, with the learning rate factor of the run's clock.

        Weight decay is decoupled and multiplied by the rate (arXiv 1711.05101), so it also follows the schedule.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(age, self._settings, factor)
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, num_batches: int) -> float:
        """Return the mean loss of the live parameters over the fixed held-out batches, in nats per token.

        All ranks of a sharded model measure together, each on the same batches.
        """
        total = 0.0
        batches = self._corpus.held_out_batches(num_batches, self._settings.batch_size, self.language_model.context)
        for inputs, targets in batches:
            total += self._micro_batch.fitting(partial(self._measure, inputs, targets), self._forget)
        return total / num_batches

    def _measure(self, inputs: Tensor, targets: Tensor) -> float:
        whole, total, size = max(1, _num_counted(targets)), 0.0, self._micro_batch.size
        for some, following in zip(torch.split(inputs, size), torch.split(targets, size), strict=True):
            with self._precision.autocast():
                loss = self.language_model.loss(some.to(self._device), following.to(self._device))
            total += float(loss) * (_num_counted(following) / whole)
        return total

    def _synchronised(self, is_last: bool) -> contextlib.AbstractContextManager[object]:
        """Exchange the replicas' gradients once per step, in its last pass."""
        if self._replicas is None or is_last:
            return contextlib.nullcontext()
        no_sync: contextlib.AbstractContextManager[object] = self._replicas.no_sync()
        return no_sync


def _num_counted(targets: Tensor) -> int:
    return int((targets != IGNORED).sum())


def _as_language_model(model: nn.Module) -> LanguageModel:
    if not (callable(getattr(model, "loss", None)) and isinstance(getattr(model, "context", None), int)):
        raise LocalFault(
            f"{type(model).__name__} lacks loss(tokens, targets) or context; expected both for the built-in trainer; "
            "write your own loop with LocalTraining instead"
        )
    return model  # type: ignore[return-value]
