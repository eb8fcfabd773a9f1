"""The text that describes a model in a manifest: sizes of an architecture, and nothing that leads elsewhere."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from peer.config.hf_config import MAX_CONFIG_BYTES, canonical_config, checked_config
from peer.config.manifest import RunManifest

LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 256}
OF_HF = {"num_parameters": 100, "layout_digest": "ab" * 32}


def hf_manifest(**model: Any) -> RunManifest:
    fields = {**OF_HF, "config": canonical_config(LLAMA), **model}
    return RunManifest.from_fields({"name": "tiny", "model": fields})


def test_a_config_file_becomes_one_canonical_text() -> None:
    written = {**LLAMA, "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "_name_or_path": ""}
    text = canonical_config(dict(reversed(list(written.items()))))
    assert json.loads(text) == {**LLAMA, "dtype": "bfloat16"}
    assert text == canonical_config(json.loads(text))
    assert checked_config(text)["model_type"] == "llama"


def test_labels_are_left_out() -> None:
    labels = {str(number): f"a kind of thing, number {number}" for number in range(1000)}
    assert canonical_config({**LLAMA, "id2label": labels, "num_labels": 1000}) == canonical_config(LLAMA)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"auto_map": {"AutoModel": "evil--code.Model"}}, "auto_map"),
        ({"text_config": {"auto_map": {"AutoConfig": "x"}}}, "text_config.auto_map"),
        ({"_attn_implementation": "flash"}, "_attn_implementation"),
        ({"attn_implementation": "kernels-community/attention"}, "attn_implementation"),
        ({"base_model_name_or_path": "org/name"}, "base_model_name_or_path"),
        ({"layers": [{"parts": [{"auto_map": "x"}]}]}, "layers.parts.auto_map"),
        ({"backbone": "resnet50"}, "backbone"),
        ({"backbone_config": {"use_pretrained_backbone": True}}, "use_pretrained_backbone"),
        ({"hidden_act": "../act"}, "hidden_act"),
        ({"note": "x" * MAX_CONFIG_BYTES}, "bytes"),
        ({"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": 1}}}}}}}}, "nested sections"),
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
    assert not {"num_layers", "d_model", "num_heads"} & set(json.loads(manifest.to_bytes())["model"])
    with pytest.raises(ValueError, match="num_layers"):
        hf_manifest(num_layers=3)


def test_fields_belong_to_their_kind() -> None:
    with pytest.raises(ValueError, match="mask_token are given without config"):
        hf_manifest(config=None, mask_token=1)
    with pytest.raises(ValueError, match="expected both num_parameters and layout_digest"):
        RunManifest.from_fields({"name": "tiny", "model": {"config": canonical_config(LLAMA)}})


FROM_ELSEWHERE = {"_name_or_path": "org/name", "_commit_hash": "ab" * 20, "architectures": ["X"]}
"""Every config of an older library has them, some in each section, and nothing reads them."""


def test_where_a_config_came_from_is_dropped_at_every_depth_and_refused_in_a_manifest() -> None:
    inner = {"width": 3, "torch_dtype": "float16", "name_or_path": "a/b", **FROM_ELSEWHERE}
    written = {**LLAMA, **FROM_ELSEWHERE, "section": {**inner, "parts": [inner, {"_name_or_path": ""}]}}
    kept = {"width": 3, "dtype": "float16"}
    assert json.loads(canonical_config(written)) == {**LLAMA, "section": {**kept, "parts": [kept, {}]}}
    for more in ({"_name_or_path": ""}, {"section": {"_name_or_path": "x"}}, {"parts": [{"_commit_hash": "x"}]}):
        with pytest.raises(ValueError, match="refers to external code, kernels or weights"):
            hf_manifest(config=json.dumps({**LLAMA, **more}, sort_keys=True, separators=(",", ":")))


@pytest.mark.parametrize(("value", "tag"), [(math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN")])
def test_numbers_without_a_form_in_json_are_written_as_the_library_does(value: float, tag: str) -> None:
    tagged = {"__float__": tag}
    text = canonical_config({**LLAMA, "limits": [0.0, value], "section": {"most": tagged}})
    assert json.loads(text) == {**LLAMA, "limits": [0.0, tagged], "section": {"most": tagged}}
    limit, most = checked_config(text)["limits"][1], checked_config(text)["section"]["most"]
    assert str(limit) == str(most) == str(value)
    hf_manifest(config=text)
    bare = text.replace(json.dumps({"__float__": tag}, separators=(",", ":")), tag)
    with pytest.raises(ValueError, match="not JSON"):
        hf_manifest(config=bare)


def test_sections_without_end_are_a_sentence() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="nested sections"):
        canonical_config({**LLAMA, "deep": deep})
