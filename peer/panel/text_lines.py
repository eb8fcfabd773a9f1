"""Lines that fit: parts that are never cut, beside each other where there is room and below each other elsewhere.

A line is a `Text` of rich without a newline. What others said is made printable where it enters a part.
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
"""rich wraps text for a console, whichever it is."""


def part(text: str, style: str = "") -> Text:
    """A figure or a sentence, printable."""
    return Text(printable(text), style=style, no_wrap=True, end="")


def joined(parts: Iterable[Text], separator: str = "") -> Text:
    """Parts in one line."""
    line = Text(no_wrap=True, end="")
    for index, text in enumerate(parts):
        if index and separator:
            line.append(separator, "dim")
        line.append_text(text)
    return line


def flowed(parts: Iterable[Text], width: int) -> list[Text]:
    """Parts in as few lines of `width` columns as they need; a part that is longer than a line breaks at its spaces."""
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
    """A text in lines of at most `width` columns, broken at spaces, and inside words that are longer than that."""
    if text.cell_len <= width:
        return [text]
    lines = text.wrap(_NO_SCREEN, width, overflow="fold", no_wrap=False)
    for line in lines:
        line.rstrip()
    return [line for line in lines if line.plain]


def num_rows(lines: Iterable[Text], width: int) -> int:
    """Rows of a terminal that lines take, where it breaks those that are longer."""
    return sum(max(1, -(-line.cell_len // width)) for line in lines)


def labelled(label: str, parts: Sequence[Text], width: int) -> list[Text]:
    """Parts beside a label."""
    return [
        joined([part(f"{label if index == 0 else '':<{LABEL_WIDTH}}", "bold"), line])
        for index, line in enumerate(flowed(parts, width - LABEL_WIDTH))
    ]


def to_copy(label: str, text: Text, width: int) -> Text:
    """Text to copy: beside a label if it fits, else alone, and then maybe longer than a line. It has no break."""
    if LABEL_WIDTH + text.cell_len > width:
        return text
    return joined([part(f"{label:<{LABEL_WIDTH}}", "bold"), text])


_ASCII = str.maketrans("≋·█░↑↓✓›…▁▂▃▄▅▆▇", "~-#.^v+>.___----")
"""Letter by letter, so that widths stay."""


def without_signs(text: str) -> str:
    """The same for a terminal that has letters only."""
    return text.translate(_ASCII)
