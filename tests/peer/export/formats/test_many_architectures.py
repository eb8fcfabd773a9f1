"""Architectures that people train: an anchor comes home as a folder that the library loads, with equal logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.config.manifest import RunManifest
from peer.export.formats.model_folder import write_folder
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.hf.run_model import build_run_architecture
from tests.kit.late_library import late_library
from tests.kit.trainer.exported_models import NOW, anchors_of_module, changed

transformers = late_library("transformers")

TEXT = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
NARROW = {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32}
CAUSAL: dict[str, dict[str, Any]] = {
    "llama": {**TEXT, **NARROW},
    "llama, tied": {**TEXT, **NARROW, "tie_word_embeddings": True},
    "qwen2": {**TEXT, "num_key_value_heads": 1},
    "qwen3": {**TEXT, **NARROW},
    "mistral": {**TEXT, **NARROW},
    "mixtral": {**TEXT, **NARROW, "num_local_experts": 2},
    "gemma": {**TEXT, **NARROW},
    "gemma2": {**TEXT, **NARROW},
    "gemma3_text": {**TEXT, **NARROW},
    "phi3": {**TEXT, "num_key_value_heads": 1, "pad_token_id": 0, "eos_token_id": 0, "bos_token_id": 0},
    "olmo2": {**TEXT, "num_key_value_heads": 1, "pad_token_id": 0, "eos_token_id": 0},
    "gpt2": {"vocab_size": 300, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "gpt_neox": TEXT,
    "opt": {**TEXT, "ffn_dim": 24, "word_embed_proj_dim": 16, "max_position_embeddings": 32},
    "mamba": {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("masked-lm", TEXT),
    "modernbert": ("masked-lm", {**TEXT, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}),
    "roberta": ("masked-lm", TEXT),
}
CLASSES = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
}
CASES = [
    *((name.partition(",")[0], "causal-lm", fields) for name, fields in CAUSAL.items()),
    *((name, task, fields) for name, (task, fields) in OTHERS.items()),
]


@pytest.mark.parametrize(
    ("model_type", "task", "fields"), CASES, ids=[*CAUSAL, *(f"{name}, {task}" for name, (task, _) in OTHERS.items())]
)
def test_an_anchor_comes_home_with_equal_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, task: str, fields: dict[str, Any]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **fields}))
    section = describe_model(tmp_path / "config.json", task).section(2, {})
    averaging = {"num_fragments": 2}
    manifest = RunManifest.from_fields({"name": "tiny", "model": section, "averaging": averaging})
    module: Any = changed(build_run_architecture(manifest).float()).eval()
    write_folder(anchors_of_module(module, manifest), tmp_path / "model", NOW, replace=False)
    loaded = getattr(transformers, CLASSES[task]).from_pretrained(tmp_path / "model").eval()
    kept = module.state_dict()
    assert loaded.state_dict().keys() == kept.keys()
    assert all(torch.equal(value, kept[name]) for name, value in loaded.state_dict().items())
    tokens = (torch.arange(24) * 7 % 256)[None]
    with torch.no_grad():
        expected = module(input_ids=tokens).logits
        # Memory that lies otherwise may sum otherwise.
        assert torch.allclose(loaded(input_ids=tokens).logits, expected, rtol=0, atol=1e-6)
    assert float(expected.std()) > 0
    if task == "causal-lm":
        assert _is_tied(loaded) == _is_tied(module)


def _is_tied(model: Any) -> bool:
    tied: bool = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    return tied
