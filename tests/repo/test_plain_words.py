"""Documents are in plain words: sentences that are not too long and have a subject, lines that fit, an index of all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.documents import CHANGELOG, DOCUMENTS, README, ROOT, links_in

INDEX = ROOT / "docs" / "index.md"
MOST_COLUMNS = 120
MOST_WORDS = 40
MOST_README_LINES = 150
HEADLESS = re.compile(r"^(Who|Whoever|Whatever|Whom)\b.*\.$")
"""A clause in the place of a subject: "Who leaves early loses nothing."."""


def paragraphs_of(text: str) -> Iterator[str]:
    """Prose, items and table cells, each as one line; no code blocks, headings or comments."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    [^\n]*$", "", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=[-|>#]|\d+\. )", text):
        if block.startswith("|"):
            yield from (cell.strip() for cell in re.split(r"(?<!\\)\|", block) if cell.strip())
        elif not block.lstrip().startswith("#"):
            yield " ".join(block.split())


def sentences_of(text: str) -> Iterator[str]:
    """Sentences with code and targets of links taken out."""
    for paragraph in paragraphs_of(text):
        plain = re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", paragraph))
        plain = re.sub(r"^(?:[-*>]|\d+\.)\s+|[*\[\]]", "", plain)
        yield from re.split(r"(?<=[.!?:])\)?\s+(?=[A-Z\"(])", plain)


def faults_of_style(text: str) -> list[str]:
    faults = []
    for sentence in sentences_of(text):
        if len(sentence.split()) > MOST_WORDS:
            faults.append(f"{len(sentence.split())} words: {sentence}")
        if HEADLESS.match(sentence):
            faults.append(f"no subject: {sentence}")
    return faults


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_in_plain_words(path: Path) -> None:
    assert not faults_of_style(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "Who leaves loses nothing.",
        "Go. Whoever leads\nwaits.",
        "- *Alone.* Who trains alone commits alone.",
        f"It is {'very ' * MOST_WORDS}long.",
        f"| `flag` | it is {'very ' * MOST_WORDS}long |",
    ],
)
def test_faults_of_style_are_noticed(text: str) -> None:
    assert faults_of_style(text)


@pytest.mark.parametrize("text", ["Who are you?", f"One. {'Two words. ' * MOST_WORDS}", f"```\n{'word ' * 50}\n```"])
def test_plain_words_are_no_fault(text: str) -> None:
    assert not faults_of_style(text)


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path != CHANGELOG], ids=lambda path: path.name)
def test_lines_fit_the_column(path: Path) -> None:
    """But for rows of tables, which cannot be wrapped."""
    long = [line for line in path.read_text(encoding="utf-8").splitlines() if len(line) > MOST_COLUMNS]
    assert not [line for line in long if not line.startswith("|")]


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MOST_README_LINES


def test_every_page_is_in_the_index() -> None:
    listed = {(INDEX.parent / link.partition("#")[0]).resolve() for link in links_in(INDEX.read_text(encoding="utf-8"))}
    assert {path for path in DOCUMENTS if INDEX.parent in path.parents and path != INDEX} <= listed
