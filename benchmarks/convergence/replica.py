"""The simulated replicas of this benchmark: parameters, inner optimizers and data.

The gradients of all replicas come from one batched pass (`torch.func.vmap` over their parameters). For a small model
spends most of its time in the overhead of single operations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from averaging.arrays import F32
from benchmarks.convergence.arms import Arm, Task, replace_model
from peer.trainer.loop.inner_step import GRAD_CLIP, learning_rate_at
from peer.trainer.model.gpt import GPT, build_model
from peer.trainer.model.inner_optimizer import BETAS, make_optimizer


def block_positions(
    seed: int, peer_id: str, inner_step: int, batch_size: int, num_tokens: int, context: int
) -> NDArray[np.int64]:
    """Where the blocks of an inner step begin: int64 [batch_size], drawn with replacement by seed, peer and step.

    Philox (Salmon et al., SC 2011) gives the same raw stream in every version of numpy.
    """
    key = int.from_bytes(hashlib.sha256(f"{seed}|{peer_id}".encode()).digest()[:16], "little")
    raw = np.random.Philox(key=key, counter=inner_step << 64).random_raw(batch_size)
    return np.asarray(raw % np.uint64(num_tokens - context), np.int64)


class Replica:
    """Parameters and gradients as flat vectors, an optimizer, data, and the start of the local work (`ref`).

    The optimizer is that of a real peer (`peer.trainer.model.inner_optimizer`), AdamW or Muon.
    """

    def __init__(self, index: int, arm: Arm, task: Task, model: GPT, live: Tensor, gradient: Tensor) -> None:
        self.index = index
        self._task = task
        self._rate_scale = arm.inner_lr_scale
        self._pull = arm.pull / arm.sync_every
        self.model = model
        self.live = live
        self._gradient = gradient
        parameters = list(model.parameters())
        for parameter, inside in zip(parameters, places_of(parameters), strict=True):
            live[inside] = parameter.detach().reshape(-1)
            parameter.data = live[inside].view_as(parameter)
            parameter.grad = gradient[inside].view_as(parameter)
        self.ref = live.clone()
        self._optimizer = make_optimizer(
            model.named_parameters(),
            replace_model(task.training, optimizer=arm.optimizer),
            fused=True,
            betas=(BETAS[0], arm.beta2),
        )

    def update(self, step: int) -> None:
        """The rest of inner step `step`, counted from 0, with the gradient as it is."""
        settings = self._task.training
        norm = float(self._gradient.norm())
        if norm > GRAD_CLIP:
            self._gradient.mul_(GRAD_CLIP / norm)
        rate = self._rate_scale * learning_rate_at(step, settings, self._task.rate_share(step))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        if self._pull:
            self.live.lerp_(self.ref, self._pull)

    def add(self, inside: slice, change: F32) -> None:
        """As `TrainerLink` does with ADD: local work stays what it is."""
        added = torch.from_numpy(change)
        self.live[inside].add_(added)
        self.ref[inside].add_(added)


class Replicas(Sequence[Replica]):
    """`num_replicas` replicas with the same initial parameters, each with the data of `num_shares` peers.

    Attributes:
        live: their parameters, float32 [num_replicas, num_parameters].
        peer_ids: whose data they read, in their order.
    """

    def __init__(self, num_replicas: int, arm: Arm, task: Task, seed: int, num_shares: int = 1) -> None:
        models = [build_model(task.model, seed) for _ in range(num_replicas)]
        parameters = dict(models[0].named_parameters())
        num_parameters = sum(parameter.numel() for parameter in parameters.values())
        self.live = torch.zeros(num_replicas, num_parameters)
        self._gradient = torch.zeros_like(self.live)
        self._replicas = [
            Replica(index, arm, task, model, self.live[index], self._gradient[index])
            for index, model in enumerate(models)
        ]
        self._task = task
        self._seed = seed
        self.peer_ids = [f"peer-{index}" for index in range(num_replicas * num_shares)]
        places = places_of(list(parameters.values()))
        self._stacked = {
            f"model.{name}": _part(self.live, inside, parameters[name].shape).requires_grad_()
            for name, inside in zip(parameters, places, strict=True)
        }
        self._gradients = [
            _part(self._gradient, inside, parameters[name].shape)
            for name, inside in zip(parameters, places, strict=True)
        ]
        self._losses = _batched_losses(models[0])

    def __len__(self) -> int:
        return len(self._replicas)

    def __getitem__(self, index: int) -> Replica:  # type: ignore[override]
        return self._replicas[index]

    def step(self, step: int, who: Callable[[int], bool] = lambda _index: True) -> None:
        """Inner step `step`, counted from 0, of the replicas `who` says; a gradient that is not finite leaves NaN."""
        settings, context = self._task.training, self._task.model.context
        stream = self._task.corpus.training
        positions = [
            block_positions(self._seed, peer_id, step, settings.batch_size, stream.num_tokens, context)
            for peer_id in self.peer_ids
        ]
        inputs, targets = stream.batch(np.concatenate(positions), context)
        if len(self) == 1:
            self._gradient.zero_()
            self[0].model.loss(inputs, targets).backward()  # type: ignore[no-untyped-call]
        else:
            shape = (len(self), -1, context)
            with sdpa_kernel(SDPBackend.MATH):  # the others have no batching rule
                losses = self._losses(self._stacked, inputs.view(shape), targets.view(shape))
            found = torch.autograd.grad(losses.sum(), list(self._stacked.values()))
            for gradient, part in zip(self._gradients, found, strict=True):
                gradient.copy_(part)
        for replica in self:
            if who(replica.index):
                replica.update(step)


class _Loss(nn.Module):
    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.model.loss(inputs, targets)


def _batched_losses(model: GPT) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """(parameters [M, ...] by name, inputs, targets: int64 [M, batch, context]) -> losses [M]."""
    module = _Loss(model)

    def loss(parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(module, parameters, (inputs, targets))
        return found

    return torch.func.vmap(loss)


def places_of(parameters: Sequence[nn.Parameter]) -> list[slice]:
    """Where each parameter lies in the flat vector of all."""
    ends = np.cumsum([0, *(parameter.numel() for parameter in parameters)]).tolist()
    return [slice(start, end) for start, end in pairwise(ends)]


def _part(rows: Tensor, inside: slice, shape: torch.Size) -> Tensor:
    """One parameter of all replicas, [M, *shape], in the memory of `rows` [M, num_parameters]."""
    return rows[:, inside].unflatten(1, shape).detach()
