"""The built-in model as a Llama: its configuration and its tensors under the names of that architecture. Pure.

It computes what `LlamaForCausalLM` computes (arXiv 2302.13971): RMSNorm before each part, rotary positions that turn
the halves of a head, SwiGLU, no biases. Only the names differ, and two pairs of matrices lie in one here.
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
"""Our name -> the names of the parts that lie in it one below the other."""


def llama_config(shape: ModelSection, end_token: int | None) -> dict[str, Any]:
    """The fields of `config.json`.

    Args:
        end_token: ends and pads texts; None: the run does not say which one does.
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
    """Our name of each parameter, in order -> those of its parts, which lie one below the other."""
    return {ours: (theirs,) for ours, theirs in _PLAIN.items()} | {
        f"blocks.{layer}.{ours}": tuple(f"model.layers.{layer}.{name}" for name in theirs)
        for layer in range(shape.num_layers)
        for ours, theirs in _OF_LAYER.items()
    }


def llama_tensors(shape: ModelSection, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the built-in model under a Llama's names; they are views, nothing is copied."""
    return {
        name: part
        for ours, names in llama_names(shape).items()
        for name, part in zip(names, tensors[ours].chunk(len(names)), strict=True)
    }


def llama_shapes(shape: ModelSection, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Shapes of the built-in model's parameters under a Llama's names."""
    return {
        name: (shapes[ours][0] // len(names), *shapes[ours][1:])
        for ours, names in llama_names(shape).items()
        for name in names
    }


def built_in_tensors(shape: ModelSection, tensor: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of each parameter, made of what `tensor` gives for a Llama's names."""
    for ours, names in llama_names(shape).items():
        yield ours, torch.cat([tensor(name) for name in names])
