"""Content and form of the text in a manifest that describes a model of the Hugging Face library. Pure.

The text is the architecture's own `config.json` in canonical JSON. A manifest may come from a stranger, so the text is
checked before a library reads it. The text may contain an architecture and its sizes, but no reference to other places.
Without this check, a config could name code to run (`auto_map`), a kernel to download and load (`attn_implementation`)
or external weights (`backbone` with `use_pretrained_backbone`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dht.ground.fields import refuse_constant

TASKS = ("causal-lm", "masked-lm")
"""Training tasks of a model of the library; each task has its own head."""

MAX_CONFIG_BYTES = 8 * 1024
"""Typical configs take 600 to 1,500 bytes. With this limit, a manifest with all other fields stays below 12 KiB."""
MAX_CONFIG_DEPTH = 6
"""Maximum depth of nested sections; composed architectures have three levels."""
LEADS_ELSEWHERE = (
    *("auto_map", "custom_pipelines", "trust_remote_code", "base_model_name_or_path", "name_or_path"),
    *("_name_or_path", "_commit_hash", "backbone", "quantization_config", "use_kernels"),
    "transformers_weights",
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
)
"""Fields that name external code, kernels or weights, or that choose how a volunteer's machine computes."""
NOT_OF_THE_MODEL = (
    *("architectures", "transformers_version", "torch_dtype", "id2label", "label2id", "num_labels"),
    *("_name_or_path", "name_or_path", "_commit_hash"),
)
"""Unused fields, which are removed from each section when a run is created: the origin of a config, values that follow
from other fields, the labels of a classifier, and `torch_dtype`, an older name of `dtype`."""

_FLOAT_TAG = "__float__"
_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
"""The library writes these values as `{"__float__": "Infinity"}`, because JSON has no such numbers."""


def canonical_config(fields: Mapping[str, Any]) -> str:
    """Return the text for a manifest: sorted keys, no spaces, and only fields that describe the model.

    Raises:
        ValueError: the config is too long, or a field refers to another place; the message names the field.
    """
    try:
        text = _text(_of_the_model(_decoded(dict(fields))))
    except RecursionError as error:
        raise ValueError(f"the model's config has more than {MAX_CONFIG_DEPTH} nested sections") from error
    checked_config(text)
    return text


def checked_config(text: str) -> dict[str, Any]:
    """Return the fields of a config text, which may come from a stranger.

    This function does not check the size of the model; a limited child process measures it
    (`peer.memory.architecture_sizes`).

    Raises:
        ValueError: the text is too long, is not a JSON object in canonical form, lacks `model_type`, or has a field
            that refers to another place.
    """
    if len(text.encode()) > MAX_CONFIG_BYTES:
        raise ValueError(
            f"the model's config takes {len(text.encode())} bytes; expected at most {MAX_CONFIG_BYTES}; remove fields "
            "that do not describe the architecture"
        )
    try:
        fields = _decoded(json.loads(text, parse_constant=refuse_constant))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the model's config is not JSON ({type(error).__name__}); expected a JSON object") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str) or not fields["model_type"]:
        raise ValueError("the model's config has no \"model_type\"; expected the architecture's own config.json")
    for path, value in _entries(fields, 0):
        _check_entry(path, value)
    if _text(fields) != text:
        raise ValueError("the model's config is not in canonical form; expected sorted keys and no spaces")
    return fields


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(_encoded(fields), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _of_the_model(value: Any) -> Any:
    """Return a section, including nested sections, with only the fields that describe the model."""
    if isinstance(value, list):
        return [_of_the_model(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    # The library writes some of the forbidden fields into every config file, with an empty or false value.
    kept = {
        name: _of_the_model(entry)
        for name, entry in value.items()
        if name not in NOT_OF_THE_MODEL and (name not in LEADS_ELSEWHERE or entry)
    }
    if "dtype" not in kept and isinstance(value.get("torch_dtype"), str):
        kept["dtype"] = value["torch_dtype"]
    return kept


def _encoded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT_TAG: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {name: _encoded(entry) for name, entry in value.items()}
    return [_encoded(entry) for entry in value] if isinstance(value, list | tuple) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        tag = value.get(_FLOAT_TAG)
        if len(value) == 1 and isinstance(tag, str) and tag in _FLOATS:
            return _FLOATS[tag]
        return {name: _decoded(entry) for name, entry in value.items()}
    return [_decoded(entry) for entry in value] if isinstance(value, list | tuple) else value


def _entries(value: Any, depth: int, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if depth > MAX_CONFIG_DEPTH:
        raise ValueError(f"the model's config has more than {MAX_CONFIG_DEPTH} nested sections")
    if isinstance(value, dict):
        for name, entry in value.items():
            yield (*path, name), entry
            yield from _entries(entry, depth + 1, (*path, name))
    elif isinstance(value, list):
        for entry in value:
            yield path, entry
            yield from _entries(entry, depth + 1, path)


def _check_entry(path: tuple[str, ...], value: Any) -> None:
    name = path[-1]
    if name in LEADS_ELSEWHERE or (name == "use_pretrained_backbone" and value):
        raise ValueError(
            f"the model's config has {'.'.join(path)!r}, which refers to external code, kernels or weights; "
            "expected only an architecture and its sizes; remove it"
        )
    if isinstance(value, str) and any(sign in value for sign in "/\\"):
        raise ValueError(
            f"the model's config has {'.'.join(path)!r} = {value[:60]!r}, which looks like a path or an address; "
            "expected only an architecture and its sizes; remove it"
        )
