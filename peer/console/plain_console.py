"""The console for tables and panels of untrusted text: it cleans every cell, and ignores markup."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from dht.ground.fields import printable
from peer.console.plain_output import LAYOUT
from peer.console.word_wrap import wrapped

PIPE_COLUMNS = 4096
"""Columns of a pipe or a file, which has no width: lines are not cut or broken."""


def console_of_output(**options: Any) -> PlainConsole:
    """Make the console of standard output: as wide as the terminal, or unlimited in a pipe or file. Options
    are rich's.
    """
    is_terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
    return PlainConsole(**options) if is_terminal else PlainConsole(width=PIPE_COLUMNS, **options)


class PlainConsole(Console):
    """rich's console without markup and emoji codes. Its output is printable except for its own colours."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def print(self, *objects: Any, **options: Any) -> None:
        """Print like rich; outside a terminal, remove the trailing blanks of a table's lines."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        text = re.sub(r"[ \t]+\n", "\n", captured.get())
        super().print(Text(text), end="", no_wrap=True, overflow="ignore", crop=False)

    def tell(self, sentence: str, **options: Any) -> None:
        """Print a sentence in lines that break between words, but not in a command. Options as for `print`."""
        for line in wrapped(sentence, self.width):
            self.print(line, soft_wrap=True, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, LAYOUT), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        # Cleaned before the width of a cell is measured.
        return super().render_str(printable(text, LAYOUT), **options)
