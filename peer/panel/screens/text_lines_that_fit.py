"""Lines that fit: parts that are never cut, beside each other where there is room and below each other elsewhere.

A line is a `Text` of rich without a newline. What others said is made printable where it enters a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.text import Text

from dht.ground.fields import printable
from peer.console.plain_console import PlainConsole

ACCENT, GOOD, CARE, DIM = "bold cyan", "green", "yellow", "bright_black"
"""Colours of the terminal's own theme: own figures, and states."""
LABEL_WIDTH = 9
SEPARATOR = " · "
_NO_SCREEN = PlainConsole(width=80)
"""Text is wrapped for one, whichever it is."""


def part(text: str, style: str = "") -> Text:
    """One thing that is said, printable."""
    return Text(printable(text), style=style, no_wrap=True, end="")


def joined(parts: Iterable[Text], separator: str = "") -> Text:
    """Parts in one line."""
    line = Text(no_wrap=True, end="")
    for index, one in enumerate(parts):
        if index and separator:
            line.append(separator, "dim")
        line.append_text(one)
    return line


def flowed(parts: Sequence[Text], width: int, separator: str = SEPARATOR) -> list[Text]:
    """Parts in as few lines of `width` columns as they need; a part that is longer than a line breaks at its spaces."""
    lines: list[Text] = []
    row: list[Text] = []
    used = 0
    for one in parts:
        for piece in wrapped(one, width):
            needed = piece.cell_len + (cell_len(separator) if row else 0)
            if row and used + needed > width:
                lines.append(joined(row, separator))
                row, used, needed = [], 0, piece.cell_len
            row.append(piece)
            used += needed
    return [*lines, joined(row, separator)] if row else lines


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


def one_part(lines: Sequence[Text], index: int, width: int, height: int) -> list[Text]:
    """All lines, if they fit into `height` rows; else one part of them, with a line that says which and how to go on.

    Args:
        index: counts on from the first part; after the last one comes the first again.
    """
    if num_rows(lines, width) <= height:
        return list(lines)
    parts: list[list[Text]] = [[]]
    for line in lines:
        if parts[-1] and num_rows([*parts[-1], line], width) > height - 1:
            parts.append([])
        if parts[-1] or line.plain:
            parts[-1].append(line)
    index %= len(parts)
    return [*parts[index], part(f"{index + 1} of {len(parts)}; space: the next", "dim")]


def labelled(label: str, parts: Sequence[Text], width: int, right: Text | None = None) -> list[Text]:
    """Parts beside a label, and one more at the right edge if it fits, else in a line of its own."""
    lines = flowed(parts, width - LABEL_WIDTH)
    if right is not None and right.plain:
        room = width - LABEL_WIDTH - (lines[0].cell_len if lines else 0) - 2
        if lines and right.cell_len <= room:
            lines[0] = joined([lines[0], Text(" " * (room + 2 - right.cell_len)), right])
        else:
            lines += wrapped(right, width - LABEL_WIDTH)
    return [
        joined([Text(f"{label if index == 0 else '':<{LABEL_WIDTH}}", style="bold"), line])
        for index, line in enumerate(lines)
    ]


def to_copy(label: str, text: Text, width: int) -> Text:
    """What people copy: beside a label if it fits, else alone, and then maybe longer than a line. It has no break."""
    if LABEL_WIDTH + text.cell_len > width:
        return text
    return joined([part(f"{label:<{LABEL_WIDTH}}", "bold"), text])


def ends(left: Text, right: Text, width: int) -> list[Text]:
    """One text at the left edge and one at the right, or below each other."""
    room = width - left.cell_len - right.cell_len
    if not right.plain:
        return wrapped(left, width)
    if room >= 2:
        return [joined([left, Text(" " * room), right])]
    return [*wrapped(left, width), *wrapped(right, width)]


def beside(left: Sequence[Text], right: Sequence[Text], left_width: int, gap: int) -> list[Text]:
    """Two columns; lines of the left one are at most `left_width` wide."""
    lines = []
    for one, other in zip_longest(left, right, fillvalue=Text()):
        pad = Text(" " * (left_width - one.cell_len + gap) if other.plain else "")
        lines.append(joined([one, pad, other]))
    return lines


_ASCII = str.maketrans("≋·█░↑↓▲▼✓…│⠋⠙⠹⠸⠼⠴", "~-#.^v+-*.||/-\\|/")
"""Letter by letter, so that widths stay."""


def without_signs(text: str) -> str:
    """The same for a terminal that has letters only."""
    return text.translate(_ASCII)
