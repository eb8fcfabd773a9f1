"""Tries one step of a new run's model in a limited child, before the run is signed.

Most of the library is imported with this module, before any limit, because a slow machine may take a minute.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dht.ground.errors import Incompatible
from peer.config.hf_config import checked_config
from peer.process_setup import usable_cores
from peer.trainer.hf.library_modules import library_module
from peer.trainer.hf.task_losses import ForTask

SHORT_CONTEXT = 64
"""Number of tokens for the test for causality, and the smallest context that is tried first."""
FEW_LAYERS = 2
MAX_FLOPS = 4e12
"""Limit on a tried step: a minute on two cores of a laptop. BERT-large at 512 tokens takes a quarter of it."""
_OUT_OF_MEMORY = ("allocate", "bad_alloc", "not enough memory")
_NO_VALUES = ("meta", "data-dependent")
"""Words in the errors of operations that need values, when a model has only shapes."""


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

    def tokens(self, length: int, pad_token: int | None) -> Tensor:
        """Return int64 [1, length] with the largest token, and without the padding token, which some models give no
        position.
        """
        allowed = [token for token in range(self.vocab_size - 1, -1, -1)[:1000] if token != pad_token] or [0]
        return torch.tensor(allowed)[torch.arange(length) % len(allowed)][None]


def prepare(setup: dict[str, Any]) -> Callable[[dict[str, Any], bytes], dict[str, Any]]:
    """Answer the questions of `peer.trainer.hf.trial.try_model`."""
    torch.set_num_threads(max(1, usable_cores()))
    torch.manual_seed(0)

    def answer(question: dict[str, Any], body: bytes) -> dict[str, Any]:
        is_whole = question.pop("is_whole")
        asked = _Asked(**question)
        return tried(asked, setup["memory_bytes"]) if is_whole else tried_without_values(asked)

    return answer


def tried(asked: _Asked, memory_bytes: int) -> dict[str, Any]:
    """Make a step of one sequence, with values.

    Returns:
        `context`, the longest that works, up to the requested one; `error`, why a longer one fails; and `sees_ahead`.
        Empty if the model needs too much time or memory.

    Raises:
        Incompatible: the model also fails with few tokens.
    """
    if not _is_small(asked, asked.config, memory_bytes):
        return {}
    try:
        model = asked.model("cpu")
        context, error = _longest(model, asked, "cpu")
        sees_ahead = _sees_ahead(model, asked, context)
        loss: Any = _step(model, asked, context, "cpu")
        loss.backward()
    except (MemoryError, RuntimeError) as fault:
        if _is_shortage(fault):
            return {}
        raise
    return {"context": context, "error": error, "sees_ahead": sees_ahead}


def tried_without_values(asked: _Asked) -> dict[str, Any]:
    """Try a model that is too large for `tried`: check only shapes, and test the causality of its first layers."""
    model = asked.model("meta")
    try:
        context, error = _longest(model, asked, "meta")
    except Incompatible as fault:
        if not any(word in str(fault) for word in _NO_VALUES):
            raise
        context, error = asked.context, ""
    positions = _num_positions(model.architecture)
    if positions < context:
        context, error = positions, f"it has {positions} positions"
    return {"context": context, "error": error, "sees_ahead": _few_layers_see_ahead(asked)}


def _few_layers_see_ahead(asked: _Asked) -> bool | None:
    """Return whether the first layers see later tokens; None: they cannot be built separately, or are too large."""
    if asked.task != "causal-lm":
        return False
    fields = checked_config(asked.config) | {"num_hidden_layers": FEW_LAYERS}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return _sees_ahead(asked.model("cpu", text), asked, asked.context)
    except (Incompatible, MemoryError, RuntimeError, ValueError):
        return None


def _is_small(asked: _Asked, config: str, memory_bytes: int) -> bool:
    module: Any = asked.model("meta", config).architecture
    text = module.config.get_text_config()
    num_values = sum(parameter.numel() for parameter in module.parameters())
    width, depth = (getattr(text, name, None) for name in ("hidden_size", "num_hidden_layers"))
    attention = 12 * width * depth * asked.context**2 if isinstance(width, int) and isinstance(depth, int) else 0
    # One multiplication and one addition per parameter, once forward and twice backward.
    flops = 6 * num_values * asked.context + attention
    return bool(flops <= MAX_FLOPS and 2 * 4 * num_values <= memory_bytes)  # values and gradients


def _longest(model: ForTask, asked: _Asked, device: str) -> tuple[int, str]:
    """Return (the longest context up to the requested one, why a longer one fails)."""
    error = _error(model, asked, asked.context, device)
    if not error:
        return asked.context, ""
    works, fails = min(SHORT_CONTEXT, asked.context), asked.context
    while (first := _error(model, asked, works, device)) and works > 2:
        works //= 2
    if first:
        raise Incompatible(
            f"the model fails in its first step of {asked.task} ({first}); expected a model that this task can train; "
            "choose another --task or model"
        )
    while fails - works > 1:
        middle = (works + fails) // 2
        if further := _error(model, asked, middle, device):
            fails, error = middle, further
        else:
            works = middle
    return works, error


def _error(model: ForTask, asked: _Asked, length: int, device: str) -> str:
    """Return the error of a forward pass over `length` tokens; empty: the pass computes a loss."""
    try:
        with torch.no_grad():
            loss = _step(model, asked, length, device)
    except (MemoryError, RuntimeError) as error:
        if _is_shortage(error):
            raise
        return _words(error)
    except Exception as error:  # noqa: BLE001  whatever the architecture's code ran into
        return _words(error)
    return "" if device == "meta" or math.isfinite(float(loss)) else "its loss is not a number"


def _step(model: ForTask, asked: _Asked, length: int, device: str) -> Tensor:
    architecture: Any = model.architecture
    tokens = asked.tokens(length, architecture.config.get_text_config().pad_token_id).to(device)
    model.train()
    # First without hidden tokens: a hidden token may be replaced by a token without a position.
    if model.mask_token is not None:
        architecture(input_ids=tokens)
    return model.loss(tokens, tokens)


@torch.no_grad()
def _sees_ahead(model: ForTask, asked: _Asked, context: int) -> bool:
    """Return whether a different last token changes the logits of earlier tokens."""
    if asked.task != "causal-lm":
        return False
    model.eval()
    architecture: Any = model.architecture
    tokens = asked.tokens(min(SHORT_CONTEXT, context), architecture.config.get_text_config().pad_token_id)
    other = tokens.clone()
    other[0, -1] = tokens[0, 0] if tokens[0, 0] != tokens[0, -1] else tokens[0, 1]
    logits, changed = (model(given)[0, :-1].double() for given in (tokens, other))
    return bool((logits - changed).abs().max() > 1e-5 * logits.abs().max())


def _num_positions(module: nn.Module) -> int:
    """Return the number of positions in the model's tables; without tables, a number above any context."""
    tables = [
        part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and "position" in name.rpartition(".")[2]
    ]
    return min(tables, default=2**62)


def _is_shortage(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(word in str(error) for word in _OUT_OF_MEMORY)


def _words(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
