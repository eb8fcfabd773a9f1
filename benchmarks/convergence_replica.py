"""One simulated replica of `convergence.py`: parameters, an inner optimizer and data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.convergence_arms import Arm, Task
from benchmarks.muon import Muon
from peer.data import block_positions
from peer.model import GPT, build_model
from peer.trainer import learning_rate_at


class Replica:
    """Parameters and gradients as flat vectors, an optimizer, data, and the start of the local work (`ref`).

    Muon (`arm.optimizer`) takes the matrices inside the blocks; embedding and norms stay with AdamW.
    """

    def __init__(self, index: int, arm: Arm, task: Task, seed: int, num_shares: int = 1) -> None:
        self.index = index
        self._task = task
        self._seed = seed
        self._rate_scale = arm.inner_lr_scale
        self._pull = arm.pull / arm.sync_every
        self._peer_ids = [f"peer-{index + share}" for share in range(num_shares)]
        self.model: GPT = build_model(task.model, seed)
        parameters = list(self.model.parameters())
        self.live = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self._gradient = torch.zeros_like(self.live)
        start = 0
        for parameter in parameters:
            inside = slice(start, start + parameter.numel())
            parameter.data = self.live[inside].view_as(parameter)
            parameter.grad = self._gradient[inside].view_as(parameter)
            start += parameter.numel()
        self.ref = self.live.clone()
        settings = task.training
        matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
        self._muon: Muon | None = None
        if arm.optimizer == "muon":
            embedding = self.model.embedding.weight
            self._muon = Muon(
                (matrix for matrix in matrices if matrix is not embedding), weight_decay=settings.weight_decay
            )
            matrices = [embedding]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": matrices},
                {"params": [parameter for parameter in parameters if parameter.dim() < 2], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, step: int) -> None:
        """Inner step `step`, counted from 0; a gradient that is not finite leaves NaN for the swarm to find."""
        settings, context = self._task.training, self._task.model.context
        stream = self._task.corpus.training
        positions = [
            block_positions(self._seed, peer_id, step, settings.batch_size, stream.num_tokens, context)
            for peer_id in self._peer_ids
        ]
        inputs, targets = stream.batch(np.concatenate(positions), context)
        self._gradient.zero_()
        self.model.loss(inputs, targets).backward()  # type: ignore[no-untyped-call]
        norm = float(self._gradient.norm())
        if norm > settings.grad_clip:
            self._gradient.mul_(settings.grad_clip / norm)
        rate = self._rate_scale * learning_rate_at(step, settings)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        if self._muon is not None:
            self._muon.step(rate)
        if self._pull:
            self.live.lerp_(self.ref, self._pull)

    def add(self, inside: slice, change: Tensor) -> None:
        """As `TrainerLink` does with ADD: local work stays what it is."""
        self.live[inside].add_(change)
        self.ref[inside].add_(change)
