"""The documents: their sections, tables, links and code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from averaging.wire.frames import KINDS
from peer.config.manifest import RunManifest
from peer.config.validation_sentences import section_of

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
MESSAGES: tuple[type[Any], ...] = tuple(KINDS.values())
HIDDEN_FOLDERS = ("node_modules", "build", "dist", "runs")
ALL_DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in HIDDEN_FOLDERS for part in path.relative_to(ROOT).parts)
)
LOG = ROOT / "benchmarks" / "log"
DOCUMENTS = [path for path in ALL_DOCUMENTS if LOG not in path.parents]
"""All but the entries of the log, which say what was true on their day and are not edited."""


def section(text: str, title: str) -> str:
    """What stands under the heading `title`, up to the next heading of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert found, f"there is no heading {title!r}"
    rest = text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def rows(text: str) -> list[list[str]]:
    """Cells of all table rows that begin with a name in backticks."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names_in(text: str) -> list[str]:
    """The names in backticks at the beginning of each table row."""
    return [name for cells in rows(text) for name in re.findall(r"`([^`]+)`", cells[0])]


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def links_in(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def manifest_fields(model: type[BaseModel] = RunManifest, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, field in model.model_fields.items():
        if (inner := section_of(field.annotation)) is not None:
            yield from manifest_fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", "required" if field.is_required() else field.default
