"""What the inner loop asks of a model, for an architecture of transformers: the loss of a batch under its task."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dht.ground.errors import Incompatible

CACHES = ("past_key_values", "cache")
"""What the library calls keys and values of tokens that were seen, by its version."""

BALANCE_WEIGHTS = ("router_aux_loss_coef", "aux_loss_coef")
"""What the library's mixtures of experts call it."""

HIDDEN_SHARE = 0.15
"""Of the tokens, under masked-lm (arXiv 1810.04805)."""
MASKED_SHARE, OTHER_BELOW = 0.8, 0.9
"""Of the hidden tokens, four in five become the mask and one in ten becomes any other token."""


def balance_weight(architecture: nn.Module) -> float:
    """The weight of the loss that spreads tokens over a mixture's experts, where the library keeps it.

    Raises:
        Incompatible: it has another name.
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
    """An architecture and the loss of its task; its parameters go by the architecture's own names (`bare_name`).

    Args:
        context: tokens per sequence.
        mask_token: of masked-lm; None: of other tasks.
        vocab_size: of the model; masked-lm draws other tokens from it.
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
        """The layers, one after the other, for whatever is done layer by layer; None: it has no list of them."""
        lists = [module for module in self._architecture.modules() if isinstance(module, nn.ModuleList)]
        return max(lists, key=len, default=None)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens: int64 [batch, length <= context] -> logits [batch, length, vocab_size], or with targets `loss`."""
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
        """Logits [batch, vocab_size] behind `tokens` (int64 [batch, length]), which follow what `past` has seen.

        Args:
            past: what the call before returned; None: nothing has been seen.

        Returns:
            the logits, and the library's cache of keys and values; None: the architecture has none, and the next call
            needs all tokens.
        """
        known = signature(self._architecture.forward).parameters
        name = next((each for each in CACHES if each in known), None)
        if name is None:
            return self(tokens)[:, -1], None
        found: Any = self._architecture(input_ids=tokens, use_cache=True, **{name: past})
        return found.logits[:, -1], getattr(found, name, None)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token, computed in float32; both int64 [batch, context].

        Of masked-lm it is that of hidden tokens among `tokens`; `targets` are not looked at.

        Experts' balance, where the config asks for it (`output_router_logits`), is added with the config's weight.
        """
        # By way of `forward`, which gathers what is divided over processes.
        loss: Tensor = self(tokens, targets)
        return loss


def hide_tokens(tokens: Tensor, mask_token: int, vocab_size: int, seeds: Sequence[int] | None) -> tuple[Tensor, Tensor]:
    """(tokens with some hidden, the hidden ones and -100 elsewhere), both int64 [batch, length] as `tokens`.

    As many are hidden in every sequence, at least one, as BERT does it. So the mean over a batch is that over its
    parts, however a machine cuts it.

    Args:
        seeds: one for each sequence, which then always hides the same tokens; None: torch's own generator draws.
    """
    batch, length = tokens.shape
    generators: list[torch.Generator | None] = [None] * batch
    if seeds is not None:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    # On the CPU, in one type: every machine draws alike.
    draws = [torch.rand(2, length, generator=generator, dtype=torch.float32) for generator in generators]
    others = [torch.randint(0, vocab_size - 1, (length,), generator=generator) for generator in generators]
    order, kind = torch.stack(draws, dim=1).to(tokens.device)
    other = torch.stack(others).to(tokens.device)
    other = other + (other >= mask_token)
    rank = order.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    is_hidden = rank < max(1, round(HIDDEN_SHARE * length))
    replaced = torch.where(kind < MASKED_SHARE, mask_token, torch.where(kind < OTHER_BELOW, other, tokens))
    return torch.where(is_hidden, replaced, tokens), torch.where(is_hidden, tokens, -100)
