"""A config cannot ask for work that its parameters do not show."""

from __future__ import annotations

from typing import Any

import pytest

from dht.ground.errors import Incompatible
from peer.config.hf_config import canonical_config
from peer.trainer.hf import sizes_child
from peer.trainer.hf.sizes_child import architecture_parts

SIZES = {"vocab_size": 128, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
ALBERT = {"model_type": "albert", **SIZES, "embedding_size": 16}
FUNNEL = {"model_type": "funnel", "vocab_size": 128, "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64}
PERCEIVER = {"model_type": "perceiver", "vocab_size": 128, "d_model": 32, "d_latents": 32, "num_latents": 4}
PERCEIVER |= {"num_self_attends_per_block": 1, "num_self_attention_heads": 2, "num_cross_attention_heads": 2}
HEADS = {"num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 2}
DORY = {"model_type": "dory", **SIZES, **HEADS, "num_hidden_layers": 3, "n_input_layers": 1, "n_output_layers": 1}
HRM = {"model_type": "hrm_text", **SIZES, **HEADS}
LOOP = {"model_type": "inkling2_loop_text", **SIZES, **HEADS, "num_hidden_layers": 3, "n_layers_per_attn_res_block": 1}
LOOP |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "loop_layer_index_start": 1, "loop_layer_index_end": 2}
LOOP |= {"swa_num_attention_heads": 2, "swa_num_key_value_heads": 1, "swa_head_dim": 16, "moe_intermediate_size": 32}
LOOP |= {"unpadded_vocab_size": 128}


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({**ALBERT, "num_hidden_layers": 100}, "masked-lm"),
        ({**ALBERT, "num_hidden_layers": 50, "num_hidden_groups": 2}, "masked-lm"),
        ({**FUNNEL, "block_sizes": [1, 1], "block_repeats": [1, 10**9]}, "masked-lm"),
        ({**PERCEIVER, "num_blocks": 100}, "masked-lm"),
        ({**DORY, "n_recurrent_loops": 100}, "causal-lm"),
        ({**HRM, "H_cycles": 100}, "causal-lm"),
        ({**LOOP, "loop_num_passes": 100}, "causal-lm"),
    ],
)
def test_a_config_that_repeats_its_parameters_without_end_is_refused(
    config: dict[str, Any], task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes_child, "MAX_USES", 4)
    with pytest.raises(Incompatible, match="uses its parameters more than 4 times in each forward pass"):
        architecture_parts(canonical_config(config), task)


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({**ALBERT, "num_hidden_layers": 24}, "masked-lm"),
        (HRM, "causal-lm"),
        ({"model_type": "mixtral", **SIZES, **HEADS}, "causal-lm"),
    ],
)
def test_a_config_with_a_few_repeats_is_measured(config: dict[str, Any], task: str) -> None:
    assert architecture_parts(canonical_config(config), task)["parameters"]


def test_what_the_tokens_take_counts_as_memory() -> None:
    """Longformer fills every text up to its window."""
    config = {"model_type": "longformer", **SIZES, "num_hidden_layers": 1, "attention_window": 10**8}
    assert architecture_parts(canonical_config(config), "masked-lm")["peak_bytes"] > 10**10
