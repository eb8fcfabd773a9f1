"""Fits parts into lines: parts are never cut, and are placed side by side if there is room, otherwise one below the
other.

A line is a rich `Text` without a newline. Untrusted text is made printable when it becomes a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.text import Text

from dht.ground.fields import printable
from peer.console.plain_console import PlainConsole

LABEL_WIDTH = 9
SEPARATOR = " · "
_NO_SCREEN = PlainConsole(width=80)
"""A console that rich requires to wrap text."""


def part(text: str, style: str = "") -> Text:
    """Return a printable figure or sentence."""
    return Text(printable(text), style=style, no_wrap=True, end="")


def joined(parts: Iterable[Text], separator: str = "") -> Text:
    """Join parts in one line."""
    line = Text(no_wrap=True, end="")
    for index, text in enumerate(parts):
        if index and separator:
            line.append(separator, "dim")
        line.append_text(text)
    return line


def flowed(parts: Iterable[Text], width: int) -> list[Text]:
    """Place parts in as few lines of `width` columns as possible; a part longer than a line breaks at its spaces."""
    lines: list[list[Text]] = []
    used = width + 1
    for piece in (piece for text in parts for piece in wrapped(text, width)):
        needed = piece.cell_len + cell_len(SEPARATOR)
        if used + needed > width:
            lines.append([])
            used, needed = 0, piece.cell_len
        lines[-1].append(piece)
        used += needed
    return [joined(line, SEPARATOR) for line in lines]


def wrapped(text: Text, width: int) -> list[Text]:
    """Wrap a text into lines of at most `width` columns, at spaces, and inside words that are longer."""
    if text.cell_len <= width:
        return [text]
    lines = text.wrap(_NO_SCREEN, width, overflow="fold", no_wrap=False)
    for line in lines:
        line.rstrip()
    return [line for line in lines if line.plain]


def num_rows(lines: Iterable[Text], width: int) -> int:
    """Return the number of terminal rows of lines, including wrapped ones."""
    return sum(max(1, -(-line.cell_len // width)) for line in lines)


def labelled(label: str, parts: Sequence[Text], width: int) -> list[Text]:
    """Return parts beside a label."""
    return [
        joined([part(f"{label if index == 0 else '':<{LABEL_WIDTH}}", "bold"), line])
        for index, line in enumerate(flowed(parts, width - LABEL_WIDTH))
    ]


def to_copy(label: str, text: Text, width: int) -> Text:
    """Return text to copy: beside a label if it fits, otherwise alone, possibly longer than a line. It is
    never broken.
    """
    if LABEL_WIDTH + text.cell_len > width:
        return text
    return joined([part(f"{label:<{LABEL_WIDTH}}", "bold"), text])


_ASCII = str.maketrans("≋·█░↑↓✓›…▁▂▃▄▅▆▇", "~-#.^v+>.___----")
"""Replacements of single characters, so that widths stay the same."""


def without_signs(text: str) -> str:
    """Replace signs for a terminal that only shows ASCII."""
    return text.translate(_ASCII)
