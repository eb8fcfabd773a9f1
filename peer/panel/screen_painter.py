"""Draws lines on a terminal's alternate screen with as few bytes as possible, and restores the terminal afterwards."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.text import Text

from peer.console.plain_console import PlainConsole
from peer.console.word_wrap import fitting
from peer.panel.text_lines import num_rows, without_signs

OPEN = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J\x1b[?2004h"
"""Switches to the alternate screen, without a cursor, and with marks around pasted text."""
CLOSE = "\x1b[?2004l\x1b[?25h\x1b[?1049l"
FIRST_CELL, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Painter:
    """Draws pictures; see `show`. Exceptions of the stream are raised.

    Args:
        stream: a terminal.
        environ: `NO_COLOR` disables colours, `TERM` and `COLORTERM` select them.
    """

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._stream = getattr(stream, "rich_proxied_file", stream)
        self._ink = io.StringIO()
        self._console = PlainConsole(
            file=self._ink,
            force_terminal=True,
            width=1000,
            legacy_windows=False,
            no_color=bool(environ.get("NO_COLOR")),
            _environ=environ,
        )
        self.ascii_only = not (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")
        self._shown: list[str] = []
        self._size = (0, 0)
        self.is_open = False

    def show(self, lines: Sequence[Text], footer: Text, width: int, height: int) -> None:
        """Show lines from the top, and a footer at the bottom; the last lines are left out if they do not fit."""
        rows: list[str] = []
        used = 0
        for line in lines:
            needed = num_rows([line], width)
            if used + needed > height - 1:
                break
            # After a line that ends in the last column, the cursor is still there, and clearing would delete that
            # column.
            is_full = line.cell_len > 0 and line.cell_len % width == 0
            rows.append(self._inked(line) + ("" if is_full else END_OF_LINE))
            used += needed
        is_wrapped = used > len(rows)
        rows += [END_OF_LINE] * (height - 1 - used)
        rows.append(self._inked(footer[: max(0, width - 1)]) + END_OF_LINE)
        out = "" if self.is_open else OPEN
        # A wrapped line moves the lines below it, so all lines are written again.
        is_same_shape = self.is_open and self._size == (width, height) and len(self._shown) == len(rows)
        if not is_same_shape or is_wrapped:
            if rows != self._shown or not is_same_shape:
                out += FIRST_CELL + "\r\n".join(rows) + END_OF_SCREEN
        else:
            for index, (before, row) in enumerate(zip(self._shown, rows, strict=True)):
                if before != row:
                    out += f"\x1b[{index + 1};1H{row}"
        self.is_open, self._shown, self._size = True, rows, (width, height)
        self._write(out)

    def close(self) -> None:
        """Return to the previous screen."""
        if self.is_open:
            self.is_open = False
            self._shown = []
            self._write(CLOSE)

    def say(self, lines: Sequence[str]) -> None:
        """Print plain lines that stay on the previous screen."""
        self.close()
        for line in lines:
            for part in fitting(line, self._stream).split("\n"):
                self._write(self._inked(Text(part)) + "\r\n")

    def _inked(self, line: Text) -> str:
        self._console.print(line, end="", soft_wrap=True)
        told = self._ink.getvalue()
        self._ink.seek(0)
        self._ink.truncate()
        return without_signs(told) if self.ascii_only else told

    def _write(self, text: str) -> None:
        if text:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
