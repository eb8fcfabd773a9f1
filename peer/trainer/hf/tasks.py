"""What the inner loop asks of a model, for an architecture of transformers: the loss of a batch under its task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dht.errors import Incompatible

JOINED = ("causal-lm", "masked-lm")
"""Tasks for which a run's data has batches: what `peer join` trains. An own loop trains any."""

HIDDEN_SHARE = 0.15
"""Of the tokens, under masked-lm: four in five of them masked, one in ten another token (arXiv 1810.04805)."""


class ForTask(nn.Module):
    """An architecture and the loss of its task; its parameters go by the architecture's own names (`bare_name`).

    Args:
        context: tokens per sequence.
        mask_token: of masked-lm; None: of other tasks.
    """

    def __init__(self, architecture: nn.Module, task: str, context: int, mask_token: int | None = None) -> None:
        super().__init__()
        check_joined(task)
        self._architecture = architecture
        self.context = context
        self.task = task
        self.mask_token = mask_token

    @property
    def architecture(self) -> nn.Module:
        """The module of transformers."""
        return self._architecture

    @property
    def blocks(self) -> nn.ModuleList | None:
        """The layers, one after the other, for whatever is done layer by layer; None: it has no list of them."""
        lists = [module for module in self._architecture.modules() if isinstance(module, nn.ModuleList)]
        return max(lists, key=len, default=None)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens: int64 [batch, length <= context] -> logits [batch, length, vocab_size], or with targets `loss`."""
        if targets is not None and self.mask_token is not None:
            tokens, targets = self._hidden(tokens, self.mask_token)
        found: Any = self._architecture(input_ids=tokens)
        logits: Tensor = found.logits
        if targets is None:
            return logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        balance = getattr(found, "aux_loss", None)
        if self.training and isinstance(balance, Tensor):
            config: Any = self._architecture.config
            loss = loss + config.router_aux_loss_coef * balance
        return loss

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token, computed in float32; both int64 [batch, context].

        Of masked-lm it is that of hidden tokens among `tokens`; `targets` are not looked at.

        Experts' balance, where the config asks for it (`output_router_logits`), is added with the config's weight.
        """
        # By way of `forward`, which gathers what is divided over processes.
        loss: Tensor = self(tokens, targets)
        return loss

    def _hidden(self, tokens: Tensor, mask_token: int) -> tuple[Tensor, Tensor]:
        """(tokens with some hidden, the hidden ones and -100 elsewhere); when measuring, always the same of a batch."""
        seed = None if self.training else int(tokens.sum())
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        kind = torch.rand(tokens.shape, generator=generator).to(tokens.device)
        other = torch.randint(0, mask_token, tokens.shape, generator=generator).to(tokens.device)
        is_hidden = kind < HIDDEN_SHARE
        # A short batch may have none; its loss would be no number.
        is_hidden[:, 0] |= ~is_hidden.any(dim=1)
        shown = torch.where(
            kind < 0.8 * HIDDEN_SHARE, mask_token, torch.where(kind < 0.9 * HIDDEN_SHARE, other, tokens)
        )
        return shown, torch.where(is_hidden, tokens, -100)


def check_joined(task: str) -> None:
    """Whether `peer join` trains a task.

    Raises:
        Incompatible: a run's data has no labels for it.
    """
    if task not in JOINED:
        raise Incompatible(
            f"the run's task is {task!r}, and a run's data has no labels for it; expected {' or '.join(JOINED)}; train "
            "it in an own loop with murmuration.join"
        )
