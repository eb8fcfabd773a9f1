"""What the inner loop asks of a model, for an architecture of transformers: the loss of a batch under its task."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from dht.errors import Incompatible

JOINED = ("causal-lm",)
"""Tasks for which a run's data has batches: what `peer join` trains. An own loop trains any."""


class ForTask(nn.Module):
    """An architecture and the loss of its task; its parameters go by the architecture's own names (`bare_name`).

    Args:
        context: tokens per sequence.
    """

    def __init__(self, architecture: nn.Module, task: str, context: int) -> None:
        super().__init__()
        check_joined(task)
        self._architecture = architecture
        self.context = context
        self.task = task

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

        Experts' balance, where the config asks for it (`output_router_logits`), is added with the config's weight.
        """
        # By way of `forward`, which gathers what is divided over processes.
        loss: Tensor = self(tokens, targets)
        return loss


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
