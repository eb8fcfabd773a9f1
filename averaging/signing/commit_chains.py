"""Chains of signed commits: they lead from an anchor known here to a claimed one. Pure.

A commit contains the digest of the anchor that it changes, the digest of the previous commit, and each contributor's
tokens. Its leader and reducers sign it (`round_signatures.py`), so tokens are summed from commits, never taken from a
claim. A commit does not contain the digest of the resulting anchor: the next commit does, and for the newest anchor,
the members that have it report the digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from averaging.wire.frames import commit_digest
from averaging.wire.messages import DIGEST_BYTES, Commit


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive commits of one fragment, up to an anchor.

    Attributes:
        version, digest: version and whole digest of the anchor to which the last commit leads.
    """

    commits: tuple[Commit, ...]
    version: int
    digest: bytes

    @property
    def tokens(self) -> int:
        return sum(commit.tokens for commit in self.commits)

    def anchors(self) -> dict[int, bytes]:
        """Return version -> digest of each anchor in the chain, in the form of messages."""
        found = {commit.version: commit.anchor_digest for commit in self.commits}
        return {**found, self.version: self.digest[:DIGEST_BYTES]}

    def fork_from(self, known: Mapping[int, bytes]) -> int | None:
        """Return the newest version whose anchor in this chain is also in `known`, or None."""
        anchors = self.anchors()
        shared = (version for version, digest in anchors.items() if known.get(version) == digest)
        return max(shared, default=None)

    def since(self, version: int) -> Chain:
        """Return the part of the chain from `version` on."""
        later = tuple(commit for commit in self.commits if commit.version >= version)
        return Chain(later, self.version, self.digest)


def newest_run(commits: Sequence[Commit]) -> tuple[Commit, ...]:
    """Return the last of these commits (sorted by version) that follow each other without a gap.

    A commit does not follow a commit with a different digest than its `previous`. `previous` is empty if the leader did
    not know the commit before, as after a restart.
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
