"""The built-in model as a Llama: its configuration, and its tensors under the names of that architecture. Pure.

The built-in model computes the same as `LlamaForCausalLM` (arXiv 2302.13971): RMSNorm before each part, rotary
positions that rotate the halves of a head, SwiGLU, no biases. Only the names differ, and matrices that Llama keeps
separate are stacked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from peer.config.model_section import ModelSection
from peer.config.model_shapes import hidden_width
from peer.trainer.model.gpt import NORM_EPSILON, ROTARY_BASE

ARCHITECTURE = "LlamaForCausalLM"

_PLAIN = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
_OF_LAYER = {
    "attention_norm.weight": ("input_layernorm.weight",),
    "attention.query_key_value.weight": (
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
    ),
    "attention.out.weight": ("self_attn.o_proj.weight",),
    "feed_forward_norm.weight": ("post_attention_layernorm.weight",),
    "feed_forward.gate_and_value.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "feed_forward.out.weight": ("mlp.down_proj.weight",),
}
"""The built-in model's name -> the Llama names of the parts stacked in it."""


def llama_config(shape: ModelSection, end_token: int | None) -> dict[str, Any]:
    """Return the fields of `config.json`.

    Args:
        end_token: the token that ends and pads texts; None: unknown.
    """
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.d_model,
        "intermediate_size": hidden_width(shape.d_model),
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_heads,
        "head_dim": shape.d_model // shape.num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROTARY_BASE,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": end_token,
        "pad_token_id": end_token,
        "dtype": "float32",
    }


def llama_names(shape: ModelSection) -> dict[str, tuple[str, ...]]:
    """Return the built-in name of each parameter, in order -> the Llama names of the parts stacked in it."""
    return {ours: (theirs,) for ours, theirs in _PLAIN.items()} | {
        f"blocks.{layer}.{ours}": tuple(f"model.layers.{layer}.{name}" for name in theirs)
        for layer in range(shape.num_layers)
        for ours, theirs in _OF_LAYER.items()
    }


def llama_tensors(shape: ModelSection, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of the built-in model under Llama's names, as views without copying."""
    return {
        name: part
        for ours, names in llama_names(shape).items()
        for name, part in zip(names, tensors[ours].chunk(len(names)), strict=True)
    }


def llama_shapes(shape: ModelSection, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return shapes of the built-in model's parameters under Llama's names."""
    return {
        name: (shapes[ours][0] // len(names), *shapes[ours][1:])
        for ours, names in llama_names(shape).items()
        for name in names
    }


def built_in_tensors(shape: ModelSection, tensor: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield (built-in name, tensor) of each parameter, made of the tensors that `tensor` returns for Llama's names."""
    for ours, names in llama_names(shape).items():
        yield ours, torch.cat([tensor(name) for name in names])
