"""Documents and what the product says are in plain words: sentences that are not too long and have a subject.

Lines fit, and an index lists all pages. `tests/repo/prose.py` has the limits and the turns that are not for us.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.documents import CHANGELOG, DOCUMENTS, README, ROOT, links_in
from tests.repo.prose import (
    BANNED,
    MOST_WORDS,
    MOST_WORDS_OF_A_PART,
    Said,
    faults_of_document,
    faults_of_string,
    said_in_code,
    said_in_template,
)
from tests.repo.room_table import PACKAGES

INDEX = ROOT / "docs" / "index.md"
MOST_COLUMNS = 120
MOST_README_LINES = 150
MOST_WORDS_OF_CHANGES = 40
"""A line of the changelog names everything that one change brought."""
TEMPLATES = sorted((ROOT / "dashboard" / "page" / "templates").rglob("*.html"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_in_plain_words(path: Path) -> None:
    most_words = MOST_WORDS_OF_CHANGES if path == CHANGELOG else MOST_WORDS
    assert not faults_of_document(path.read_text(encoding="utf-8"), most_words)


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks"])
def test_what_the_product_says_is_in_plain_words(package: str) -> None:
    """Sentences of commands, events, errors and pages, and docstrings."""
    said = [one for path in sorted((ROOT / package).rglob("*.py")) for one in said_in_code(path)]
    assert len(said) > 10
    assert not [fault for one in said for fault in faults_of_string(one)]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_are_in_plain_words(path: Path) -> None:
    assert not [fault for one in said_in_template(path) for fault in faults_of_string(one)]


@pytest.mark.parametrize(
    "text",
    [
        "Who leaves loses nothing.",
        "Go. Whoever leads\nwaits.",
        "- *Alone.* Who trains alone commits alone.",
        f"It is {'very ' * MOST_WORDS}long.",
        f"| `flag` | it is {'very ' * MOST_WORDS}long |",
        "It waits for ever.",
        "They are ten in all.",
        "It counts more than the own one.",
        "A module from own code has none.",
        "So long a revoked key may still come in.",
        f"{'This sentence has just exactly seventeen words and so is one too many for a page. ' * 1}"
        f"{'The sentence that stands here has a few more words than any page of ours may have on average. ' * 30}",
    ],
)
def test_faults_of_style_are_noticed(text: str) -> None:
    assert faults_of_document(text)


@pytest.mark.parametrize(
    "text",
    [
        "Who are you?",
        f"One. {'Two words. ' * MOST_WORDS}",
        f"```\n{'word ' * 50}\n```",
        "As in all commits, so long as it lasts.",
        "He waits so long that it ends.",
    ],
)
def test_plain_words_are_no_fault(text: str) -> None:
    assert not faults_of_document(text)


def test_faults_in_strings_are_noticed(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    long = "very " * MOST_WORDS_OF_A_PART
    lines = (
        '"""Whom it credits in a round."""',
        f'x = f"{{1}} it is {long} long; expected less"',
        'y = "Who joins now goes on"',
        'z = "it works all the same; try again"',
        'fine = "it is short; expected more words; write some"',
    )
    module.write_text("\n".join(lines))
    faults = [fault for said in said_in_code(module) for fault in faults_of_string(said)]
    assert [fault.split(":")[1] for fault in sorted(faults)] == ["1", "2", "3", "4"]
    template = tmp_path / "page.html"
    template.write_text("<p>{{ name }} goes on <b>for ever</b> here</p><p>It is fine so</p>")
    assert len([fault for said in said_in_template(template) for fault in faults_of_string(said)]) == 1


@pytest.mark.parametrize(
    ("docstring", "num_faults"),
    [
        (f"It is short.\n\nIt is {'very ' * MOST_WORDS}long.", 1),
        (f"It is {'very ' * 15}long; it is {'very ' * 15}long.", 1),
        (f"- `one`: it is {'very ' * MOST_WORDS}long", 1),
        (f"It is ``{'very ' * MOST_WORDS}`` short.", 0),
        (f"It is short:\n\n    for word in range(10): {'word + ' * MOST_WORDS}0\n\nThat is all.", 0),
        ("It is short.\n\nArgs:\n" + "\n".join(f"    name_{n}: it is short" for n in range(MOST_WORDS)), 0),
    ],
)
def test_sentences_of_docstrings_are_short(docstring: str, num_faults: int) -> None:
    assert len(faults_of_string(Said(Path("module.py"), 1, docstring, is_docstring=True))) == num_faults


def test_each_banned_turn_has_something_better() -> None:
    assert all(BANNED.values())


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


@pytest.mark.parametrize("role", ["volunteer", "organiser", "developer", "contributor"])
def test_every_page_says_for_whom_it_is(role: str) -> None:
    """In its first paragraph, and what the reader can do after it."""
    firsts = {}
    for path in (path for path in DOCUMENTS if path.parent.name == role):
        blocks = re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8")).strip().split("\n\n")
        firsts[path.name] = " ".join(blocks[1].split())
    assert firsts
    assert not [name for name, first in firsts.items() if not first.startswith("This page is for ")]
