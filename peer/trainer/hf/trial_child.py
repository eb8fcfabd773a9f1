"""Tries a new run's model in a limited child, before the run is signed.

Most of the library is imported with this module, before any limit: a slow machine may take a minute for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dht.ground.errors import Incompatible
from peer.config.hf_config import checked_config
from peer.limited_child.parent_link import ParentLink
from peer.process_setup import usable_cores
from peer.trainer.hf.library_modules import library_module
from peer.trainer.hf.task_losses import ForTask

SHORT_CONTEXT = 64
"""Tokens at which a look into the future shows."""
FEW_LAYERS = 2
_NO_VALUES = ("meta", "data-dependent")
"""In the errors of operations that need values, where a model has shapes alone."""


@dataclass(frozen=True, slots=True)
class _Asked:
    config: str
    task: str
    context: int
    vocab_size: int
    mask_token: int | None

    def model(self, device: str, config: str | None = None) -> ForTask:
        module = library_module(config or self.config, self.task, torch.device(device)).float()
        return ForTask(module, self.task, self.context, self.mask_token, vocab_size=self.vocab_size)

    def tokens(self, architecture: Any, length: int) -> Tensor:
        """int64 [1, length], the largest token among them, and none that fills up texts: positions leave that out."""
        pad_token = architecture.config.get_text_config().pad_token_id
        allowed = [token for token in range(self.vocab_size - 1, -1, -1)[:1000] if token != pad_token] or [0]
        return torch.tensor(allowed)[torch.arange(length) % len(allowed)][None]


def prepare(setup: dict[str, Any], parent: ParentLink) -> Callable[[dict[str, Any], bytes], dict[str, Any]]:
    """Answer the question of `peer.trainer.hf.trial.try_model`."""
    torch.set_num_threads(max(1, usable_cores()))
    torch.manual_seed(0)
    return lambda question, body: tried(_Asked(**question))


def tried(asked: _Asked) -> dict[str, Any]:
    """Pass tokens through a model without values, and a few through its first layers with values.

    Returns:
        `context`, the longest for which it has positions, up to the one that is asked for; and `sees_ahead`, None where
        its first layers cannot be tried.

    Raises:
        Incompatible: the model fails.
    """
    model = asked.model("meta")
    context = min(asked.context, _num_positions(model.architecture))
    error = "it has no positions" if context < 1 else _error(model, asked, context)
    if error:
        raise Incompatible(
            f"the model fails in its first step of {asked.task} ({error}); expected one that can be trained so; choose "
            "another --task or model"
        )
    return {"context": context, "sees_ahead": _sees_ahead(asked, context)}


def _error(model: ForTask, asked: _Asked, length: int) -> str:
    """What a step over so many tokens ends with; empty: a loss, or it needs values."""
    tokens = asked.tokens(model.architecture, length).to("meta")
    try:
        with torch.no_grad():
            model.loss(tokens, tokens)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  whatever the architecture's code ran into
        words = (" ".join(str(error).split()) or type(error).__name__)[:200]
        return "" if any(word in words for word in _NO_VALUES) else words
    return ""


@torch.no_grad()
def _sees_ahead(asked: _Asked, context: int) -> bool | None:
    """Whether another last token changes what the first layers say before it; None: they cannot be tried alone."""
    if asked.task != "causal-lm":
        return False
    fields = checked_config(asked.config) | {"num_hidden_layers": FEW_LAYERS}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        model = asked.model("cpu", text).eval()
        tokens = asked.tokens(model.architecture, min(SHORT_CONTEXT, context))
        other = tokens.clone()
        other[0, -1] = tokens[0, 0] if tokens[0, 0] != tokens[0, -1] else tokens[0, 1]
        logits, changed = (model(given)[0, :-1].double() for given in (tokens, other))
    except (Incompatible, MemoryError, RuntimeError, ValueError):
        return None
    return bool((logits - changed).abs().max() > 1e-5 * logits.abs().max())


def _num_positions(module: nn.Module) -> int:
    """How many positions its tables have; without any, more than any context."""
    tables = [
        part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and "position" in name.rpartition(".")[2]
    ]
    return min(tables, default=2**62)
