"""Documents: their lines fit, an index lists all pages, and each page says for whom it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.documents import CHANGELOG, DOCUMENTS, ROOT, links_in

INDEX = ROOT / "docs" / "index.md"
MOST_COLUMNS = 120


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path != CHANGELOG], ids=lambda path: path.name)
def test_lines_fit_the_column(path: Path) -> None:
    """But for rows of tables, which cannot be wrapped."""
    long = [line for line in path.read_text(encoding="utf-8").splitlines() if len(line) > MOST_COLUMNS]
    assert not [line for line in long if not line.startswith("|")]


def test_every_page_is_in_the_index() -> None:
    listed = {(INDEX.parent / link.partition("#")[0]).resolve() for link in links_in(INDEX.read_text(encoding="utf-8"))}
    assert {path for path in DOCUMENTS if INDEX.parent in path.parents and path != INDEX} <= listed


@pytest.mark.parametrize("role", ["volunteer", "organiser", "developer", "contributor"])
def test_every_page_says_for_whom_it_is(role: str) -> None:
    """In its first paragraph, and what the reader can do after it."""
    firsts = {}
    for path in (path for path in DOCUMENTS if path.parent.name == role):
        blocks = re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8")).strip().split("\n\n")
        firsts[path.name] = " ".join(blocks[1].split())
    assert firsts
    assert not [name for name, first in firsts.items() if not first.startswith("This page is for ")]
