"""The version of this software, as peers report it to each other.

Between two releases, the version includes the commit, as in ``0.2.0.dev+g1234567``. A clone reads the commit from
`.git`, an installed copy from the file that `hatch_build.py` wrote beside this module.
"""

from __future__ import annotations

import functools
import os
import re

VERSION = "0.2.0.dev"
"""The next release with the suffix ``.dev``, which the release itself drops."""
COMMIT_NAME = "built_commit"
"""Name of the file beside this module, in an installed copy, with the commit from which the copy was built."""

_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})(\.dev)?")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHOWN_DIGITS = 7
_MAX_GIT_FILE_BYTES = 1 << 24
"""Limit for git's files; packed-refs with 200,000 branches and tags fits."""


@functools.cache
def full_version() -> str:
    """Return `VERSION`, between releases with the commit; at most `MAX_SOFTWARE_LENGTH` characters (`peer_record`)."""
    package = os.path.dirname(os.path.abspath(__file__))
    commit = clone_commit(os.path.dirname(package)) or _commit_in(_text(os.path.join(package, COMMIT_NAME)))
    return f"{VERSION}+g{commit[:_SHOWN_DIGITS]}" if commit and VERSION.endswith(".dev") else VERSION


def software() -> str:
    """Return name and version for people."""
    return f"murmuration {full_version()}"


def version_order(software: str) -> tuple[int, ...]:
    """Return a sort key: a release comes after its ``.dev``; empty if `software` does not contain three numbers.

    Commits between two releases are equal.
    """
    numbers = _NUMBERS.search(software)
    return () if numbers is None else (*map(int, numbers.groups()[:3]), int(numbers[4] is None))


def is_older(software: str, minimum: str) -> bool:
    """Return whether `software`, as a peer reports it, is older than `minimum`; without three numbers, it always is."""
    return version_order(software) < version_order(minimum)


def clone_commit(root: str) -> str:
    """Return the current commit of a git clone or work tree in hexadecimal digits; empty for any other folder.

    Reads git's files, because starting git would take longer than the rest of `peer --version`.
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
    """Return the text of a file; empty if the file is missing or not text."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MAX_GIT_FILE_BYTES)
    except (OSError, ValueError):
        return ""
