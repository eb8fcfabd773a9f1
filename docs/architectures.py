"""Writes docs/reference/architectures.md: the library's architectures, each with its default config.

    python -m docs.architectures            writes the page; takes some minutes
    python -m docs.architectures TYPE ...   prints the rows of these model types

Each architecture goes the way of `peer init --model config.json --task TASK`, with a config.json that holds nothing but
its model_type. Not part of `make docs`, which is quick; a nightly test compares the page with the code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from dht.ground.errors import LocalFault
from dht.ground.quantities import count_text
from docs.generate import ROOT, prose, table
from peer.trainer.hf.library_modules import tasks_of
from peer.trainer.hf.manifest_from_config import describe_model

PAGE = ROOT / "docs" / "reference" / "architectures.md"
TASKS = ("causal-lm", "masked-lm")
HEAD = ("model_type", *TASKS)
NONE = "-"
"""The library has no such head."""


def model_types() -> list[str]:
    """Return the library's model types that have a head for one of `TASKS`, in alphabetical order."""
    from transformers.models.auto import modeling_auto

    tables = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    return sorted({model_type for names in tables for model_type in names})


def row(model_type: str) -> tuple[str, ...]:
    """Return the cells of one architecture: its size where it can be built, or else why not."""
    fitting = tasks_of(model_type)
    return (f"`{model_type}`", *(_cell(model_type, task) if task in fitting else NONE for task in TASKS))


def _cell(model_type: str, task: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": model_type}))
        try:
            described = describe_model(path, task)
            described.section(1, {})
        except (LocalFault, ValueError) as error:
            return str(error).replace(f"{path}", "config.json").replace("\n", " ")
    num_values = sum(_size(shape) for _, shape in described.shapes)
    return f"builds ({count_text(num_values)})"


def _size(shape: Sequence[int]) -> int:
    num_values = 1
    for size in shape:
        num_values *= size
    return num_values


def page(rows: Sequence[tuple[str, ...]]) -> str:
    """Return the text of the page."""
    built = sum(any(cell.startswith("builds") for cell in cells) for cells in rows)
    text = (
        f"transformers {version('transformers')} has {len(rows)} architectures with a head for `causal-lm` or "
        f"`masked-lm`. From a config.json that holds nothing but `model_type`, `peer init --model` builds {built} of "
        "them: the cell has the number of parameters of that default config. In the other cells stands its sentence. "
        "Each module was built without values. `peer init` then tries a step at the full context, and may still refuse "
        "an architecture that sees the token which it shall predict, or cannot be trained; this table does not try it."
    )
    note = "<!-- Made by `python -m docs.architectures`: change that, not this page. -->"
    return "\n\n".join(["# Architectures", note, prose(text), table(HEAD, rows)]) + "\n"


def main(arguments: Sequence[str]) -> int:
    rows = []
    for model_type in arguments or model_types():
        rows.append(row(model_type))
        print(*rows[-1], sep=" | ", flush=True)
    if not arguments:
        PAGE.write_text(page(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
