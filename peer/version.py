"""The version of this software, as peers tell each other.

Between two releases it names the commit, as in ``0.2.0.dev+g1234567``: a clone reads it from `.git`, an installed copy
from the file that `hatch_build.py` put beside this one.
"""

from __future__ import annotations

import functools
import os
import re

VERSION = "0.2.0.dev"
"""The next release with ``.dev`` behind it; that goes with the release itself."""
COMMIT_NAME = "built_commit"
"""File beside this one in an installed copy: the commit that it was built from."""

_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})(\.dev)?")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHOWN_DIGITS = 7
_MAX_GIT_FILE_BYTES = 1 << 24
"""Of packed-refs: 200,000 branches and tags."""


@functools.cache
def full_version() -> str:
    """`VERSION`, between releases with the commit; at most `dht.records.peer_record.MAX_SOFTWARE_LENGTH` characters."""
    package = os.path.dirname(os.path.abspath(__file__))
    commit = clone_commit(os.path.dirname(package)) or _commit_in(_text(os.path.join(package, COMMIT_NAME)))
    return f"{VERSION}+g{commit[:_SHOWN_DIGITS]}" if commit and VERSION.endswith(".dev") else VERSION


def software() -> str:
    """Name and version, for people."""
    return f"murmuration {full_version()}"


def version_order(software: str) -> tuple[int, ...]:
    """A key that sorts versions: a release comes after its ``.dev``; empty when `software` has no three numbers.

    Commits between two releases are equal.
    """
    numbers = _NUMBERS.search(software)
    return () if numbers is None else (*map(int, numbers.groups()[:3]), int(numbers[4] is None))


def is_older(software: str, minimum: str) -> bool:
    """Whether `software`, as a peer tells it, is older than `minimum`; one without three numbers is older than any."""
    return version_order(software) < version_order(minimum)


def clone_commit(root: str) -> str:
    """The commit that a clone or work tree of git is at, in hexadecimal digits; empty for any other folder.

    Reads git's files, because starting git would take longer than all else that `peer --version` does.
    """
    folder = os.path.join(root, ".git")
    if os.path.isfile(folder):  # a work tree, or a submodule
        folder = os.path.join(root, _text(folder).removeprefix("gitdir:").strip())
    head = _text(os.path.join(folder, "HEAD")).strip()
    reference = head.removeprefix("ref:").strip()
    if reference == head:
        return _commit_in(head)
    common = os.path.join(folder, _text(os.path.join(folder, "commondir")).strip())
    for home in (folder, common):
        if commit := _commit_in(_text(os.path.join(home, reference))):
            return commit
    packed = (line.split(" ") for line in _text(os.path.join(common, "packed-refs")).splitlines())
    return next((_commit_in(words[0]) for words in packed if words[1:] == [reference]), "")


def _commit_in(text: str) -> str:
    commit = text.strip()
    return commit if _COMMIT.fullmatch(commit) else ""


def _text(path: str) -> str:
    """The text of a file; empty when it is not there or is not text."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MAX_GIT_FILE_BYTES)
    except (OSError, ValueError):
        return ""
