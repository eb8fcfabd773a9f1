"""The text that describes a model in a manifest: sizes of an architecture, and nothing that leads elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peer.config.hf_config import MAX_CONFIG_BYTES, canonical_config, checked_config
from peer.config.manifest import RunManifest

LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 256}
OF_HF = {"kind": "hf", "task": "causal-lm", "num_parameters": 100, "layout_digest": "ab" * 32}


def hf_manifest(**model: Any) -> RunManifest:
    fields = {**OF_HF, "config": canonical_config(LLAMA), **model}
    return RunManifest.from_fields({"name": "tiny", "model": fields, "averaging": {"fragment_by": "balanced"}})


def test_a_config_file_becomes_one_canonical_text() -> None:
    written = {**LLAMA, "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "_name_or_path": ""}
    text = canonical_config(dict(reversed(list(written.items()))))
    assert json.loads(text) == {**LLAMA, "dtype": "bfloat16"}
    assert text == canonical_config(json.loads(text))
    assert checked_config(text)["model_type"] == "llama"


def test_labels_that_are_too_many_become_their_number() -> None:
    labels = {str(number): f"a kind of thing, number {number}" for number in range(1000)}
    assert json.loads(canonical_config({**LLAMA, "id2label": labels}))["num_labels"] == 1000
    few = {"0": "cat", "1": "dog / wolf"}
    assert json.loads(canonical_config({**LLAMA, "id2label": few}))["id2label"] == few


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"auto_map": {"AutoModel": "evil--code.Model"}}, "auto_map"),
        ({"text_config": {"auto_map": {"AutoConfig": "x"}}}, "text_config.auto_map"),
        ({"_attn_implementation": "flash"}, "_attn_implementation"),
        ({"attn_implementation": "kernels-community/attention"}, "attn_implementation"),
        ({"_name_or_path": "org/name"}, "_name_or_path"),
        ({"backbone": "resnet50"}, "backbone"),
        ({"backbone_config": {"use_pretrained_backbone": True}}, "use_pretrained_backbone"),
        ({"hidden_act": "../act"}, "hidden_act"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"depths": [2, 10**6]}, "depths"),
        ({"note": "x" * MAX_CONFIG_BYTES}, "bytes"),
        ({"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": 1}}}}}}}}, "sections in each other"),
    ],
)
def test_what_leads_elsewhere_is_named(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        canonical_config({**LLAMA, **more})
    text = json.dumps({**LLAMA, **more}, sort_keys=True, separators=(",", ":"))
    with pytest.raises(ValueError, match="config"):
        hf_manifest(config=text)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"model_type":3}', '{"model_type": "llama"}', "[" * 5000])
def test_no_config_is_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="config"):
        hf_manifest(config=text)


def test_a_manifest_says_nothing_of_the_built_in_model() -> None:
    manifest = hf_manifest()
    assert RunManifest.from_bytes(manifest.to_bytes()) == manifest
    assert not {"num_layers", "d_model", "num_heads", "tied_head"} & set(json.loads(manifest.to_bytes())["model"])
    with pytest.raises(ValueError, match="num_layers"):
        hf_manifest(num_layers=3)


def test_fields_belong_to_their_kind() -> None:
    with pytest.raises(ValueError, match="task and config"):
        hf_manifest(config=None)
    with pytest.raises(ValueError, match="config are for kind 'hf'"):
        RunManifest.from_fields({"name": "tiny", "model": {"config": canonical_config(LLAMA)}})
    with pytest.raises(ValueError, match="fragment_by"):
        RunManifest.from_fields({"name": "tiny", "model": {**OF_HF, "config": canonical_config(LLAMA)}})


def test_older_manifests_keep_their_bytes() -> None:
    fields = json.loads(RunManifest(name="tiny").to_bytes())["model"]
    assert set(fields) == {
        *("kind", "num_layers", "d_model", "num_heads", "vocab_size", "context", "tied_head"),
        *("num_parameters", "layout_digest"),
    }
