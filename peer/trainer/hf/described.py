"""What `peer init --model` writes about a model: a folder with a `config.json`, or such a file alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dht.errors import UsageFault
from dht.fields import refuse_constant
from dht.regular_files import read_regular
from peer.config.hf_config import TASKS, DescribedModel, canonical_config
from peer.trainer.hf.architecture import config_of, tasks_of
from peer.trainer.hf.run_model import architecture_shapes

CONFIG_NAME = "config.json"
MAX_CONFIG_FILE_BYTES = 1 << 20
"""A config with a thousand names of labels takes 60 kB; a model given by mistake is not read to its end."""


def describe_model(path: Path, task: str | None = None) -> DescribedModel:
    """The model that a config describes, as a manifest has it.

    Args:
        path: a folder with a config.json, or a config file.
        task: one of `TASKS`; None: the one that the file's `architectures` name, or the first that fits.

    Raises:
        UsageFault: no such file, no config, something in it leads elsewhere, or transformers is not installed.
        Incompatible: transformers does not know the architecture, or has no such head for it.
    """
    fields = _read(path / CONFIG_NAME if path.is_dir() else path)
    try:
        given = canonical_config(fields)
    except ValueError as error:
        raise UsageFault(f"{path}: {error}.") from error
    # The library's defaults may change with its version: all values are written down.
    config = config_of(given)
    found = {name: value for name, value in config.to_diff_dict().items() if name != "use_cache"}
    try:
        text = canonical_config(found)
    except ValueError as error:
        raise UsageFault(f"{path}: {error}.") from error
    chosen = _task(task, config.model_type, fields.get("architectures"))
    shapes = architecture_shapes(text, chosen)
    section: Any = config.get_text_config()
    return DescribedModel(
        config=text,
        task=chosen,
        shapes=tuple(shapes),
        vocab_size=getattr(section, "vocab_size", None),
        max_context=getattr(section, "max_position_embeddings", None),
    )


def _task(asked: str | None, model_type: str, architectures: object) -> str:
    fitting = tasks_of(model_type)
    if asked is not None:
        if asked not in TASKS:
            raise UsageFault(f"--task is {asked!r}; expected one of {', '.join(TASKS)}.")
        return asked
    heads = {
        "ForCausalLM": "causal-lm",
        "LMHeadModel": "causal-lm",
        "ForMaskedLM": "masked-lm",
        "ForSequenceClassification": "sequence-classification",
        "ForImageClassification": "image-classification",
    }
    named = [architectures[0]] if isinstance(architectures, list) and architectures else []
    for head, task in heads.items():
        if named and str(named[0]).endswith(head) and task in fitting:
            return task
    if not fitting:
        raise UsageFault(
            f"the architecture {model_type!r} has no head for {', '.join(TASKS)}; expected one of these tasks; choose "
            "another model."
        )
    return fitting[0]


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(read_regular(path, MAX_CONFIG_FILE_BYTES).decode(), parse_constant=refuse_constant)
    except OSError as error:
        raise UsageFault(
            f"{path}: {error.strerror or error}; expected a folder with a {CONFIG_NAME} of a Hugging Face model, or "
            "such a file; check --model."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageFault(
            f"{path} is no JSON ({error}); expected the {CONFIG_NAME} of a Hugging Face model; check --model."
        ) from error
    if not isinstance(fields, dict):
        raise UsageFault(
            f"{path} is no JSON object; expected the {CONFIG_NAME} of a Hugging Face model; check --model."
        )
    return fields
