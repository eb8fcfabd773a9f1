"""Adapts an architecture of transformers to the inner loop: computes the loss of a batch for its task."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dht.ground.errors import Incompatible

CACHES = ("past_key_values", "cache")
"""The library's names of the cache of keys and values, which depend on its version."""

BALANCE_WEIGHTS = ("router_aux_loss_coef", "aux_loss_coef")
"""The names of this weight in the library's mixtures of experts."""

HIDDEN_SHARE = 0.15
"""Share of the tokens that masked-lm hides (arXiv 1810.04805)."""
MASKED_SHARE, OTHER_BELOW = 0.8, 0.9
"""Of the hidden tokens, 80% become the mask, and 10% become a random token."""


def balance_weight(architecture: nn.Module) -> float:
    """Return the weight of the loss that balances tokens over a mixture's experts, from where the library stores it.

    Raises:
        Incompatible: the weight has an unknown name.
    """
    config: Any = architecture.config
    for holder in (architecture, config.get_text_config(), config):
        for name in BALANCE_WEIGHTS:
            if isinstance(weight := getattr(holder, name, None), float | int):
                return float(weight)
    raise Incompatible(
        f"the architecture {config.model_type!r} balances its experts with a weight of an unknown name; expected "
        f"{' or '.join(BALANCE_WEIGHTS)}; set output_router_logits to false in the config"
    )


class ForTask(nn.Module):
    """An architecture with the loss of its task; parameters have the architecture's own names (`bare_name`).

    Args:
        context: tokens per sequence.
        mask_token: the mask token for masked-lm; None for other tasks.
        vocab_size: vocabulary of the model; masked-lm draws random tokens from it.
    """

    def __init__(
        self,
        architecture: nn.Module,
        task: str,
        context: int,
        mask_token: int | None = None,
        *,
        vocab_size: int,
    ) -> None:
        super().__init__()
        self._architecture = architecture
        self.context = context
        self.task = task
        self.mask_token = mask_token
        self._vocab_size = vocab_size

    @property
    def architecture(self) -> nn.Module:
        """The module of transformers."""
        return self._architecture

    @property
    def blocks(self) -> nn.ModuleList | None:
        """The layers in order, for operations on each layer; None: the architecture has no list of layers."""
        lists = [module for module in self._architecture.modules() if isinstance(module, nn.ModuleList)]
        return max(lists, key=len, default=None)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Map tokens (int64 [batch, length <= context]) to logits [batch, length, vocab_size], or with targets to
        `loss`.
        """
        if targets is not None and self.mask_token is not None:
            seeds = None if self.training else tokens.sum(dim=1).tolist()
            tokens, targets = hide_tokens(tokens, self.mask_token, self._vocab_size, seeds)
        found: Any = self._architecture(input_ids=tokens)
        logits: Tensor = found.logits
        if targets is None:
            return logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        balance = getattr(found, "aux_loss", None)
        if self.training and isinstance(balance, Tensor):
            loss = loss + balance_weight(self._architecture) * balance
        return loss

    def continued(self, tokens: Tensor, past: Any) -> tuple[Tensor, Any]:
        """Return the logits [batch, vocab_size] after `tokens` (int64 [batch, length]), which follow those cached in
        `past`.

        Args:
            past: the cache that the previous call returned; None: there was no previous call.

        Returns:
            the logits, and the library's cache of keys and values; None: the architecture has no cache, and the next
            call needs all tokens.
        """
        known = signature(self._architecture.forward).parameters
        name = next((each for each in CACHES if each in known), None)
        if name is None:
            return self(tokens)[:, -1], None
        found: Any = self._architecture(input_ids=tokens, use_cache=True, **{name: past})
        return found.logits[:, -1], getattr(found, name, None)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token, computed in float32; both int64 [batch, context].

        For masked-lm it is the loss of the hidden tokens in `tokens`, and `targets` are ignored. If the config requests
        it (`output_router_logits`), the balance loss of experts is added with the config's weight.
        """
        # Calls `forward`, which gathers sharded parameters.
        loss: Tensor = self(tokens, targets)
        return loss


def hide_tokens(tokens: Tensor, mask_token: int, vocab_size: int, seeds: Sequence[int] | None) -> tuple[Tensor, Tensor]:
    """Return (tokens with some hidden, the hidden ones and -100 elsewhere), both int64 [batch, length] like `tokens`.

    Every sequence has the same number of hidden tokens, at least one, chosen as in BERT. So the mean over a batch
    equals the mean over its parts, however a machine divides it.

    Args:
        seeds: a seed for each sequence, which fixes its hidden tokens; None: torch's default generator draws.
    """
    batch, length = tokens.shape
    generators: list[torch.Generator | None] = [None] * batch
    if seeds is not None:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    # Drawn on the CPU in one type, so that every machine draws the same numbers.
    draws = [torch.rand(2, length, generator=generator, dtype=torch.float32) for generator in generators]
    others = [torch.randint(0, vocab_size - 1, (length,), generator=generator) for generator in generators]
    order, kind = torch.stack(draws, dim=1).to(tokens.device)
    other = torch.stack(others).to(tokens.device)
    other = other + (other >= mask_token)
    rank = order.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    is_hidden = rank < max(1, round(HIDDEN_SHARE * length))
    replaced = torch.where(kind < MASKED_SHARE, mask_token, torch.where(kind < OTHER_BELOW, other, tokens))
    return torch.where(is_hidden, replaced, tokens), torch.where(is_hidden, tokens, -100)
