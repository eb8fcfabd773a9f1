"""The text in a manifest that describes a model of the Hugging Face library: what it may hold, in which form. Pure.

It is the architecture's own `config.json` in canonical JSON. A manifest may come from a stranger, so the text is
checked before any library sees it. It can name an architecture and its sizes, and nothing that leads elsewhere. A
config file can otherwise name code to run (`auto_map`), a kernel to fetch and load (`attn_implementation`), or weights
of another place (`backbone` with `use_pretrained_backbone`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dht.fields import refuse_constant

TASKS = ("causal-lm", "masked-lm", "sequence-classification", "image-classification")
"""What a model of the library is trained for; each has its own head."""

MAX_CONFIG_BYTES = 8 * 1024
"""Configs take 600 to 1,500 bytes; with this one and all other fields a manifest stays below its 12 KiB."""
MAX_CONFIG_DEPTH = 6
"""Of sections in sections; composed architectures have three."""
MAX_REPEATED = 1024
"""Layers, experts and other parts of one kind: the largest published models have a few hundred."""

LEADS_ELSEWHERE = (
    *("auto_map", "custom_pipelines", "trust_remote_code", "base_model_name_or_path", "name_or_path"),
    *("_name_or_path", "_commit_hash", "backbone", "quantization_config", "use_kernels"),
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
)
"""Fields that name code, kernels or weights of another place; also how a volunteer's own machine computes."""
NOT_OF_THE_MODEL = ("architectures", "transformers_version", "torch_dtype", "label2id")
"""Fields that say nothing more, left out when a run is made; `torch_dtype` is an older name of `dtype`."""

_LABELS = ("id2label", "label2id")
_REPEATED = ("layer", "block", "depth", "stage", "expert")


def canonical_config(fields: Mapping[str, Any]) -> str:
    """The text for a manifest: sorted keys, no spaces, without what says nothing about the model.

    Raises:
        ValueError: something in it leads elsewhere, or it is too long; the message names it.
    """
    kept = {name: value for name, value in fields.items() if name not in NOT_OF_THE_MODEL}
    # Written by the library into every config of a file, and empty or false there.
    kept = {name: value for name, value in kept.items() if name not in LEADS_ELSEWHERE or value}
    if "dtype" not in kept and isinstance(fields.get("torch_dtype"), str):
        kept["dtype"] = fields["torch_dtype"]
    text = _text(kept)
    if "id2label" in kept and (len(text.encode()) > MAX_CONFIG_BYTES or _are_plain(kept["id2label"])):
        kept["num_labels"] = len(kept.pop("id2label"))
        text = _text(kept)
    checked_config(text)
    return text


def checked_config(text: str) -> dict[str, Any]:
    """The fields of a config text, which may come from a stranger.

    Raises:
        ValueError: too long, no JSON object in canonical form, no `model_type`, something in it leads elsewhere, or a
            number of layers that no machine could build.
    """
    if len(text.encode()) > MAX_CONFIG_BYTES:
        raise ValueError(
            f"the model's config takes {len(text.encode())} bytes; expected at most {MAX_CONFIG_BYTES}; remove what "
            "says nothing about the architecture, such as names of labels"
        )
    try:
        fields = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the model's config is no JSON ({type(error).__name__}); expected a JSON object") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str) or not fields["model_type"]:
        raise ValueError("the model's config has no \"model_type\"; expected the architecture's own config.json")
    for path, value in _entries(fields, 0):
        _check_entry(path, value)
    if _text(fields) != text:
        raise ValueError("the model's config is not in canonical form; expected sorted keys and no spaces")
    return fields


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _are_plain(labels: Any) -> bool:
    """Whether labels are the ones that the library makes up."""
    return isinstance(labels, dict) and all(label == f"LABEL_{number}" for number, label in labels.items())


def _entries(value: Any, depth: int, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if depth > MAX_CONFIG_DEPTH:
        raise ValueError(f"the model's config has more than {MAX_CONFIG_DEPTH} sections in each other")
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
            f"the model's config has {'.'.join(path)!r}, which names code, kernels or weights of another place; "
            "expected an architecture and its sizes alone; remove it"
        )
    if isinstance(value, str) and not set(path) & set(_LABELS) and any(sign in value for sign in "/\\"):
        raise ValueError(
            f"the model's config has {'.'.join(path)!r} = {value[:60]!r}, which looks like a path or an address; "
            "expected an architecture and its sizes alone; remove it"
        )
    counts = any(part in name for part in _REPEATED)
    if counts and isinstance(value, int) and not isinstance(value, bool) and value > MAX_REPEATED:
        raise ValueError(f"the model's config has {'.'.join(path)!r} = {value}; expected at most {MAX_REPEATED}")
