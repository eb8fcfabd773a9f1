"""Commits that could not be applied here, and when the next try is due. Pure.

The results of a committed round may be had by nobody that answers. Members at that version then show each other the
commit. Each of them would try at once, again and again, in place of going for another round. What once could not be had
may come back, with the line of its maker, so it is tried again after pauses.
"""

from __future__ import annotations

from averaging.wire.frames import commit_digest
from averaging.wire.messages import Commit

FIRST_PAUSE_SECONDS = 1.0
"""Before a commit that could not be applied is tried again; twice as long each time."""
LONGEST_PAUSE_SECONDS = 60.0
"""A commit is not tried again for this long after its first failure, twice as long each time."""
MAX_FAILED = 64
"""Of one version; each is signed by its leader."""


class FailedCommits:
    """Those of each fragment's present version."""

    def __init__(self) -> None:
        self._failed: dict[int, tuple[int, dict[bytes, tuple[float, float]]]] = {}
        """Fragment -> (version, digest of a commit -> (not before, last pause in seconds))."""

    def note(self, commit: Commit, now: float) -> None:
        version, failed = self._failed.get(commit.fragment, (-1, {}))
        if version != commit.version:
            failed = {}
        self._failed[commit.fragment] = commit.version, failed
        digest = commit_digest(commit)
        _, seconds = failed.pop(digest, (0.0, FIRST_PAUSE_SECONDS / 2))
        pause = min(2 * seconds, LONGEST_PAUSE_SECONDS)
        if len(failed) == MAX_FAILED:
            del failed[next(iter(failed))]
        failed[digest] = now + pause, pause

    def waits(self, commit: Commit, now: float) -> bool:
        """Whether it failed, and is not due again."""
        version, failed = self._failed.get(commit.fragment, (-1, {}))
        if version != commit.version or not failed:
            return False
        until, _ = failed.get(commit_digest(commit), (now, 0.0))
        return now < until
