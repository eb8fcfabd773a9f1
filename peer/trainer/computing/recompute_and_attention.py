"""Settings of a model's modules: activation checkpointing and the kind of attention."""

from __future__ import annotations

from typing import Any

from torch import nn

from dht.ground.errors import UsageFault
from peer.config.peer_config import Attention
from peer.trainer.computing.compute_choices import ComputeChoices
from peer.trainer.model.gpt import GPT

_KINDS: dict[Attention, str] = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}
"""The names that transformers uses."""


def prepare_module(model: nn.Module, choices: ComputeChoices) -> None:
    """Apply `choices` to `model`, before the model is sharded or moved to its device.

    Raises:
        UsageFault: the model does not support a choice, or a required library is not installed.
    """
    if choices.attention is not None:
        _set_attention(model, choices.attention)
    if choices.checkpoint_activations:
        _recompute_activations(model)


def _architecture(model: nn.Module) -> Any:
    """Return the transformers module in `model`; None if there is none."""
    return getattr(model, "architecture", None)


def _set_attention(model: nn.Module, kind: Attention) -> None:
    architecture = _architecture(model)
    if not hasattr(architecture, "set_attn_implementation"):
        if kind != "sdpa":
            raise UsageFault(
                f"--attention {kind} was given, but {type(model).__name__} has only sdpa; expected a run with an "
                "architecture of transformers; omit --attention."
            )
        return
    try:
        architecture.set_attn_implementation(_KINDS[kind])
        found = architecture.config._attn_implementation
    except (ImportError, ValueError) as error:
        raise _no_attention(kind, " ".join(str(error).split())[:300]) from error
    if found != _KINDS[kind]:
        raise _no_attention(kind, f"this architecture keeps {found}")


def _no_attention(kind: Attention, reason: str) -> UsageFault:
    return UsageFault(
        f"--attention {kind} is not available ({reason}); expected a kind that this architecture and this machine "
        "support; omit --attention, or install the missing library."
    )


def _recompute_activations(model: nn.Module) -> None:
    architecture = _architecture(model)
    if isinstance(model, GPT):
        model.recompute_activations()
    elif getattr(architecture, "supports_gradient_checkpointing", False):
        # transformers 5.2x and later use a different name.
        newer = getattr(architecture, "activation_checkpointing_enable", None)
        (newer or architecture.gradient_checkpointing_enable)({"use_reentrant": False})
    else:
        raise UsageFault(
            f"--checkpoint-activations was given, but {type(architecture or model).__name__} cannot recompute its "
            "activations; expected an architecture that can; omit --checkpoint-activations."
        )
