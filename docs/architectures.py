"""Writes docs/reference/architectures.md: the library's architectures, grouped by what becomes of their default config.

    python -m docs.architectures            writes the page; takes half an hour
    python -m docs.architectures TYPE ...   prints the cells of these model types

Each architecture passes through the code of `peer init --model config.json --task TASK`, with a config.json that
contains only its model_type. `make docs` does not run this module. A nightly test compares the page with the code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from dht.ground.errors import LocalFault
from docs.generate import ROOT, prose, table
from peer.config.hf_config import TASKS
from peer.trainer.hf.library_modules import tasks_of
from peer.trainer.hf.manifest_from_config import describe_model

PAGE = ROOT / "docs" / "reference" / "architectures.md"
BUILDS, NO_HEAD = "builds", "-"
_TYPE = "TYPE"
"""Stands for the model type in the sentence of several architectures."""


def model_types() -> list[str]:
    """Return the library's model types that have a head for one of `TASKS`, in alphabetical order."""
    from transformers.models.auto import modeling_auto

    tables = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    return sorted({model_type for names in tables for model_type in names})


def cells_of(model_type: str) -> tuple[str, ...]:
    """Return for each of `TASKS` that the architecture builds, that the library has no such head, or the error."""
    fitting = tasks_of(model_type)
    return tuple(_cell(model_type, task) if task in fitting else NO_HEAD for task in TASKS)


def _cell(model_type: str, task: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": model_type}))
        try:
            describe_model(path, task).section(1, {})
        except (LocalFault, ValueError) as error:
            sentence = str(error).replace(str(path), "config.json").replace(f"'{model_type}'", _TYPE)
            return " ".join(sentence.split())
    return BUILDS


def page(cells: Mapping[str, tuple[str, ...]]) -> str:
    """Return the text of the page, from the cells of each model type."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for model_type in sorted(cells):
        groups.setdefault(cells[model_type], []).append(f"`{model_type}`")
    built = sum(BUILDS in of_type for of_type in cells.values())
    text = (
        f"transformers {version('transformers')} has {len(cells)} architectures with a head for `causal-lm` or "
        f"`masked-lm`. From a config.json that contains only `model_type`, `peer init --model` builds {built} of them. "
        f"For the others, the table shows its error ({_TYPE} is the model type). A dash means that the library has no "
        "such head. Every module was built without values. `peer init` then tries a step at the full context, and may "
        "still refuse an architecture, for example because it reads the token that it should predict."
    )
    note = "<!-- Made by `python -m docs.architectures`: change that, not this page. -->"
    lines = sorted(((*of_group, ", ".join(types)) for of_group, types in groups.items()), key=lambda line: line[:-1])
    return "\n\n".join(["# Architectures", note, prose(text), table((*TASKS, "architectures"), lines)]) + "\n"


def cells_of_the_page() -> dict[str, tuple[str, ...]]:
    """Return the cells of each model type, as the page has them."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.endswith("` |"):
            *cells, types = (cell.strip() for cell in line.strip("|").split(" | "))
            found |= {model_type.strip("`"): tuple(cells) for model_type in types.split(", ")}
    return found


def main(arguments: Sequence[str]) -> int:
    cells = {}
    for model_type in arguments or model_types():
        cells[model_type] = cells_of(model_type)
        print(model_type, *cells[model_type], sep=" | ", flush=True)
    if not arguments:
        PAGE.write_text(page(cells), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
