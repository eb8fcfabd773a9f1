"""Chains of signed commits: what leads from an anchor that is known here to one that somebody claims. Pure.

A commit names the anchor that it leaves, the commit before it, and who contributed how many tokens. Its leader and its
reducers sign it (`round_signatures.py`). So tokens are summed from commits, never taken from a claim. A commit does not
say what the anchor after it is: the next commit does, and of the newest anchor the members that have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from averaging.wire.frames import commit_digest
from averaging.wire.messages import DIGEST_BYTES, Commit


@dataclass(frozen=True, slots=True)
class Chain:
    """Commits of one fragment, each of the version after the one before, up to an anchor.

    Attributes:
        version, digest: of the anchor that the last one leads to; the digest with all its bytes.
    """

    commits: tuple[Commit, ...]
    version: int
    digest: bytes

    @property
    def tokens(self) -> int:
        return sum(commit.tokens for commit in self.commits)

    def anchors(self) -> dict[int, bytes]:
        """Version -> digest of each anchor in it, as messages have it."""
        found = {commit.version: commit.anchor_digest for commit in self.commits}
        return {**found, self.version: self.digest[:DIGEST_BYTES]}

    def fork_from(self, known: Mapping[int, bytes]) -> int | None:
        """The newest version at which this chain has the anchor that is `known`; None when there is none."""
        anchors = self.anchors()
        shared = (version for version, digest in anchors.items() if known.get(version) == digest)
        return max(shared, default=None)

    def since(self, version: int) -> Chain:
        """What leaves `version` and later ones."""
        later = tuple(commit for commit in self.commits if commit.version >= version)
        return Chain(later, self.version, self.digest)


def newest_run(commits: Sequence[Commit]) -> tuple[Commit, ...]:
    """Of commits in the order of their versions, the last ones that follow each other without a gap.

    A commit that names another one before it than the one here does not follow it. One whose leader did not know the
    one before, as after a restart, names none.
    """
    run: list[Commit] = []
    for commit in reversed(commits):
        if run and not _follows(commit, run[-1]):
            break
        run.append(commit)
    return tuple(reversed(run))


def _follows(before: Commit, after: Commit) -> bool:
    if after.version != before.version + 1:
        return False
    previous = after.previous
    return not previous or previous == commit_digest(before)
