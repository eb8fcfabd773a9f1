"""Sentences that people read: of the documents, of strings and docstrings in the code, and of the page's templates."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_WORDS = 25
"""In a sentence of a document or a docstring: more, and the beginning is gone when the end comes."""
MOST_WORDS_ON_AVERAGE = 16
"""On a page: plain English manuals have 15 to 20."""
FEWEST_SENTENCES = 20
"""On a page, before an average says anything."""
MOST_WORDS_OF_A_PART = 25
"""In a string, between full stops and semicolons: what was got; what was expected; what to do."""
FEWEST_WORDS = 4
"""A string with fewer is a label."""

HEADLESS = re.compile(r"(?:Who|Whoever|Whatever|Whom|Whose)\b[^?]*$")
"""A clause in the place of a subject: "Who leaves early loses nothing."."""
BANNED = {
    "all the same": "still, nevertheless",
    r"(?:the|an) own\b": "its own, this peer's, of your own",
    r"(?:from|of|in) own code\b": "from its owner's code, of your own code",
    r"for ever\b": "forever, always, without end",
    "whoever": "if you, a peer that",
    "whomever": "the person that",
    "one's own": "your own",
    r"in all(?=[.,;:)]|$)": "in total, together",
    r"(?:for so long(?! as\b| that\b)|so long (?:an?|the)\b)": "for this long, until then",
}
"""Turns that are German in English words, and what to write for them."""

_NOT_PROSE = re.compile(r"CREATE |ON CONFLICT|SELECT |\n\[|^\s*[\w-]+(?:\s+[\w-]+){40,}\s*$|://\S+$|<svg|<[a-z]+ ")


@dataclass(frozen=True, slots=True)
class Said:
    """Text in a file, from this line on."""

    path: Path
    line: int
    text: str
    is_docstring: bool = False


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
    """Sentences of a document with code and targets of links taken out."""
    for paragraph in paragraphs_of(text):
        plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"\[[\w./-]+\]\([^)]*\)", "PAGE", paragraph))
        plain = re.sub(r"`[^`]*`", "CODE", plain)
        plain = re.sub(r"^(?:[-*>]|\d+\.)\s+|[*\[\]]", "", plain)
        yield from re.split(r"(?<=[.!?:])\)?\s+(?=[A-Z\"(])| · ", plain)


def said_in_code(path: Path) -> Iterator[Said]:
    """Every string of a module that is more than a label, a formatted value as N; docstrings are marked."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # A bare string: of a module, class or function, or behind a constant or a field.
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        is_whole = isinstance(node, ast.JoinedStr) or id(node) not in inner
        if is_whole and isinstance(node, ast.Constant | ast.JoinedStr):
            text = _text_of(node)
            is_docstring = id(node) in docstrings
            if len(text.split()) >= FEWEST_WORDS and (is_docstring or not _NOT_PROSE.search(text)):
                yield Said(path, node.lineno, text, is_docstring)


def said_in_template(path: Path) -> Iterator[Said]:
    """The text between the tags of a template, what is filled in as N."""
    text = re.sub(r"\{#.*?#\}|<(?:style|script|svg).*?</(?:style|script|svg)>", "", path.read_text(), flags=re.DOTALL)
    text = re.sub(r"\{\{.*?\}\}", "N", re.sub(r"\{%.*?%\}|·", " ; ", text, flags=re.DOTALL), flags=re.DOTALL)
    for part in re.split(
        r"</?(?:p|li|td|th|h\d|div|dt|dd|section|title|figcaption|summary|option|button)\b[^>]*>", text
    ):
        plain = " ".join(re.sub(r"<[^>]*>", "", part).split())
        if len(plain.split()) >= FEWEST_WORDS:
            yield Said(path, 0, plain)


def _text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join("N" if isinstance(part, ast.FormattedValue) else _text_of(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def faults_of_words(sentence: str) -> list[str]:
    """Banned turns in it, and a clause in the place of its subject."""
    found = [
        f"{match[0]!r} (write: {better}): {sentence}"
        for turn, better in BANNED.items()
        if (match := re.search(rf"\b{turn}", sentence, re.IGNORECASE))
    ]
    return [*found, f"no subject: {sentence}"] if HEADLESS.match(sentence) else found


def faults_of_document(text: str, most_words: int = MOST_WORDS) -> list[str]:
    """What is wrong with the prose of a page, of whose sentences none has more than `most_words`."""
    sentences = list(sentences_of(text))
    lengths = [len(sentence.split()) for sentence in sentences if len(sentence.split()) >= FEWEST_WORDS]
    faults = [f"{len(one.split())} words: {one}" for one in sentences if len(one.split()) > most_words]
    if len(lengths) >= FEWEST_SENTENCES and sum(lengths) / len(lengths) > MOST_WORDS_ON_AVERAGE:
        faults.append(f"{sum(lengths) / len(lengths):.1f} words in a sentence on average")
    return faults + [fault for sentence in sentences for fault in faults_of_words(sentence)]


def faults_of_string(said: Said) -> list[str]:
    """What is wrong with a string of the product. A docstring is read like a document, its code lines left out."""
    faults = []
    if said.is_docstring:
        text = inspect.cleandoc(said.text).replace("``", "`")
        faults = [f"{len(one.split())} words: {one}" for one in sentences_of(text) if len(one.split()) > MOST_WORDS]
    for sentence in re.split(r"(?<=[.!?])\)?\s+(?=[A-Z\"(`])|\n\s*\n|\n\s*- ", said.text):
        one = " ".join(sentence.split())
        faults += faults_of_words(one)
        parts = re.split(r"[;:]\s", one)
        if not said.is_docstring:
            faults += [
                f"{len(part.split())} words: {part}" for part in parts if len(part.split()) > MOST_WORDS_OF_A_PART
            ]
    return [f"{said.path.name}:{said.line}: {fault}" for fault in faults]
