"""Reads keys of a terminal, one at a time and without waiting. Without termios or a terminal there are no keys."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from typing import Any, TextIO

from peer.panel.key_bindings import PASTED

try:
    import termios
    import tty
except ImportError:  # Windows
    termios = tty = None  # type: ignore[assignment]

MAX_BYTES = 256
"""Bytes read at once: typing within a tenth of a second, or a paste."""


class Keys:
    """Reads keys as they are pressed, from `open` until `close`; Ctrl+C and Ctrl+Z stay signals.

    A background job has no keys, because accessing the terminal would stop it.

    Args:
        stream: standard input; None: there are no keys.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._fd = _terminal_of(stream)
        self._before: list[Any] | None = None
        self._rest = b""

    @property
    def are_there(self) -> bool:
        """Whether keys are being read now."""
        return self._before is not None

    @property
    def is_in_front(self) -> bool:
        """Whether this process may use the terminal now; True without a terminal."""
        if self._fd is None:
            return True
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError as error:
            # Not this session's terminal, so background access does not stop the process.
            return error.errno == errno.ENOTTY

    def open(self) -> None:
        """Read each key at once and without echo. Does nothing if that is impossible."""
        if self._fd is None or self._before is not None or not self.is_in_front:
            return
        with contextlib.suppress(OSError, termios.error):
            before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSANOW)
            self._before = before

    def close(self) -> None:
        """Restore the terminal; may be called repeatedly and from any thread."""
        before, self._before = self._before, None
        if before is not None and self._fd is not None and self.is_in_front:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, before)

    def pressed(self) -> list[str]:
        """Return keys since the last call: characters, "enter", "escape", "backspace", a paste; no arrow keys."""
        if self._before is None or self._fd is None or not self.is_in_front:
            return []
        try:
            if not select.select([self._fd], [], [], 0)[0]:
                return []
            data = os.read(self._fd, MAX_BYTES)
        except (OSError, ValueError):
            return []
        if not data:
            self.close()  # the terminal is gone
            return []
        data = self._rest + data
        begun = data.rfind(PASTE_BEGINS)
        self._rest = b""
        if begun >= 0 and PASTE_ENDS not in data[begun:]:
            pasted = data[begun + len(PASTE_BEGINS) :]
            if len(pasted) > MAX_BYTES:
                pasted = pasted[:1] + pasted[-len(PASTE_ENDS) :]  # its end mark may be split; the rest is not needed
            data, self._rest = data[:begun], PASTE_BEGINS + pasted
        return keys_in(data)


PASTE_BEGINS, PASTE_ENDS = b"\x1b[200~", b"\x1b[201~"
"""The marks that a terminal puts around pasted text on request."""

_NAMES = {"\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\x08": "backspace"}


def keys_in(data: bytes) -> list[str]:
    """Return the pressed keys. Pure."""
    text = data.decode("utf-8", "ignore")
    keys, index = [], 0
    while index < len(text):
        character = text[index]
        index += 1
        if text.startswith(PASTE_BEGINS.decode(), index - 1):
            pasted, _, text = text[index - 1 + len(PASTE_BEGINS) :].partition(PASTE_ENDS.decode())
            keys.append(PASTED + "".join(one for one in pasted if one.isprintable()))
            index = 0
            continue
        if character == "\x1b" and text[index : index + 1] in ("[", "O"):
            index += 1
            while index < len(text) and not text[index].isalpha() and text[index] != "~":
                index += 1
            index += 1
            continue
        if (key := _NAMES.get(character, character)) and (len(key) > 1 or key.isprintable()):
            keys.append(key)
    return keys


def _terminal_of(stream: TextIO | None) -> int | None:
    if stream is None or termios is None:
        return None
    try:
        return stream.fileno() if stream.isatty() else None
    except (OSError, ValueError):
        return None
