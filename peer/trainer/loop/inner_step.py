"""One inner step of the built-in loop: gradient of some blocks, on all ranks of a peer together, then the optimizer.

Each rank reads its own share of the step's blocks, so a step is the same whatever the number of ranks: the manifest's
batch. DDP (arXiv 2006.15704) and FSDP2 (arXiv 2304.11277) average the ranks' gradients, whose shares are equal.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dht.errors import LocalFault
from peer.trainer.data.corpus import Corpus
from peer.trainer.devices.ranks import Ranks
from peer.trainer.model.optimizer import make_optimizer

_COSINE_FLOOR = 0.1


class TrainingSettings(Protocol):
    """What the inner loop reads of the manifest's training section."""

    @property
    def batch_size(self) -> int:
        """Sequences per backward pass."""
        ...

    @property
    def accumulation_steps(self) -> int:
        """Backward passes per inner step."""
        ...

    @property
    def optimizer(self) -> Literal["adamw", "muon"]: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def total_steps(self) -> int | None:
        """Inner steps of the peer's own cosine; None leaves the rate to the run's schedule after the warm-up."""
        ...

    @property
    def weight_decay(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def grad_clip(self) -> float: ...


class LanguageModel(Protocol):
    """What the trainer needs of a model besides being a module."""

    context: int

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token; both int64 [batch, context]."""
        ...


def learning_rate_at(step: int, settings: TrainingSettings, factor: float = 1.0) -> float:
    """Rate of the optimizer's inner step `step`, from 0: a new one's moments need the warm-up, a restored one's not.

    Args:
        factor: share of the peak by the run's own clock (`peer.config.schedule_section`), the same on every peer.
    """
    rate = settings.learning_rate * factor
    if step < settings.warmup_steps:
        return rate * (step + 1) / settings.warmup_steps
    if settings.total_steps is None:
        return rate
    progress = (step - settings.warmup_steps) / max(1, settings.total_steps - settings.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return rate * (_COSINE_FLOOR + (1 - _COSINE_FLOOR) * cosine)


class InnerStep:
    """Computes gradients and updates `model`, sharded already where it shall be.

    Args:
        model: a module that is also a `LanguageModel`, already on `device`.
        ranks: the processes of this peer; None: this one is alone.
    """

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        settings: TrainingSettings,
        device: torch.device,
        ranks: Ranks | None = None,
    ) -> None:
        self.optimizer = make_optimizer(model.named_parameters(), settings, fused=device.type == "cuda")
        self.language_model: LanguageModel = _as_language_model(model)
        self._corpus = corpus
        self._settings = settings
        self._device = device
        self._ranks = ranks
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._replicas: nn.parallel.DistributedDataParallel | None = None
        if ranks is not None and not ranks.is_sharded:
            devices = [device] if device.type == "cuda" else None
            self._replicas = nn.parallel.DistributedDataParallel(_Loss(model), device_ids=devices)

    def gradient(self, positions: NDArray[np.int64]) -> tuple[float, float]:
        """Gradient of the mean loss over the blocks at `positions`, clipped: (loss in nats per token, norm), over all
        ranks, each of which is given all positions."""
        settings, context = self._settings, self.language_model.context
        mine = positions if self._ranks is None else self._ranks.own_share(positions)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self._device)
        for start in range(0, len(mine), settings.batch_size):
            chosen = mine[start : start + settings.batch_size]
            inputs, targets = self._corpus.training.batch(chosen, context)
            is_last = start + settings.batch_size >= len(mine)
            loss_of = self.language_model.loss if self._replicas is None else self._replicas
            with self._synchronised(is_last):
                with self.autocast():
                    loss = loss_of(inputs.to(self._device), targets.to(self._device)) / (len(mine) / len(chosen))
                loss.backward()
            total += loss.detach()
        norm: Any = nn.utils.clip_grad_norm_(self._parameters, settings.grad_clip)
        mean_loss = float(total)
        if self._ranks is not None:
            norm = norm.full_tensor() if self._ranks.is_sharded else norm
            mean_loss = self._ranks.mean(mean_loss)
        return mean_loss, float(norm)

    def step(self, positions: NDArray[np.int64], age: int, factor: float = 1.0) -> tuple[float, float]:
        """`gradient` and, unless something of it is not finite, `update`."""
        loss, norm = self.gradient(positions)
        if math.isfinite(loss) and math.isfinite(norm):
            self.update(age, factor)
        else:
            self.optimizer.zero_grad(set_to_none=True)
        return loss, norm

    def update(self, age: int, factor: float = 1.0) -> None:
        """Let the optimizer take its step number `age`, from 0, at the rate that the run's clock leaves (`factor`).

        Weight decay is decoupled and multiplied by the rate (arXiv 1711.05101), so it follows the schedule as well.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(age, self._settings, factor)
        self.optimizer.step()

    @torch.no_grad()
    def held_out_loss(self, num_batches: int) -> float:
        """Mean loss of the live parameters over the fixed held-out batches, in nats per token.

        Of a sharded model all ranks measure it together, each on the same batches.
        """
        total = 0.0
        batches = self._corpus.held_out_batches(num_batches, self._settings.batch_size, self.language_model.context)
        for inputs, targets in batches:
            with self.autocast():
                total += float(self.language_model.loss(inputs.to(self._device), targets.to(self._device)))
        return total / num_batches

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """bfloat16 on CUDA."""
        if self._device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _synchronised(self, is_last: bool) -> contextlib.AbstractContextManager[object]:
        """Replicas exchange gradients once per step, with its last pass."""
        if self._replicas is None or is_last:
            return contextlib.nullcontext()
        no_sync: contextlib.AbstractContextManager[object] = self._replicas.no_sync()
        return no_sync


class _Loss(nn.Module):
    """DDP hooks into `forward` alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        language_model: Any = self.model
        loss: Tensor = language_model.loss(tokens, targets)
        return loss


def _as_language_model(model: nn.Module) -> LanguageModel:
    if not (callable(getattr(model, "loss", None)) and isinstance(getattr(model, "context", None), int)):
        raise LocalFault(
            f"{type(model).__name__} has no loss(tokens, targets) and context; the built-in trainer expects them; "
            "write an own loop on LocalTraining instead"
        )
    return model  # type: ignore[return-value]
