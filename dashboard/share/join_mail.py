"""The way in, as a visitor takes it along: a mail to oneself, and where to read the software first. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

_REPOSITORY: Final = re.compile(r"\bgit\+(https?://[^\s'\"@#]+)")


def mail_to_oneself(lines: Sequence[str], run: str, page: str) -> str:
    """A mailto: address without a recipient (RFC 6068), for those who read the page on a phone.

    Args:
        lines: of a shell, which install and join.
        run: its name.
        page: where the run is shown to everybody; empty: not known.
    """
    begin = "On a computer with Linux, macOS or WSL, paste these lines into a terminal:"
    text = "\r\n".join([begin, "", *lines, *(["", f"More: {page}"] if page else [])])
    return f"mailto:?subject={quote(f'Join {run}', safe='')}&body={quote(text, safe='')}"


def repository_of(install: str) -> str:
    """The web address of the repository that `pip` is told to take the software from; empty: the line names none."""
    found = _REPOSITORY.search(install)
    return found[1] if found else ""
