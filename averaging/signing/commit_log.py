"""A peer's memory of one fragment's lineage: signed commits and digests of anchors, within limits. Pure.

All commits are stored as frames: for collectors of proofs, for checkpoints, and to weigh forks. The newest are also
stored as objects, for rounds and for members that are behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from averaging.wire.frames import encode
from averaging.wire.messages import DIGEST_BYTES, HISTORY_COMMITS, KEPT_COMMITS, Commit

MAX_LOGGED_COMMITS = 512
"""For each fragment: with a round per second, more than eight minutes for a collector that asks every few seconds."""
MAX_LOGGED_BYTES = 1024 * 1024
"""For each fragment; a commit of eight members takes 2 kB. The last `KEPT_COMMITS` stay whatever their size."""
MAX_PAGE_BYTES = 1024 * 1024
"""Bytes of frames in one answer. A reader that wants more asks again from the next version on."""


class _Kept(NamedTuple):
    frame: bytes
    anchor_digest: bytes
    """Digest of the anchor that the commit changes."""
    tokens: int


@dataclass
class CommitLog:
    """Commits of one fragment, oldest first, each signed by its leader and reducers.

    Attributes:
        newest: the last `KEPT_COMMITS`, by version.
        digests: whole digests of the anchors of recent versions.
        num_bytes: bytes of all frames.
    """

    newest: dict[int, Commit] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    num_bytes: int = 0
    _kept: dict[int, _Kept] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, commit: Commit) -> None:
        """Store an applied commit, which is newer than all stored ones."""
        before, frame = self._kept.get(commit.version), encode(commit)
        self.num_bytes += len(frame) - (len(before.frame) if before is not None else 0)
        self._kept[commit.version] = _Kept(frame, commit.anchor_digest, commit.tokens)
        self.newest[commit.version] = commit
        for version in sorted(self.newest)[:-KEPT_COMMITS]:
            del self.newest[version]
        while len(self._kept) > MAX_LOGGED_COMMITS or (
            self.num_bytes > MAX_LOGGED_BYTES and len(self._kept) > KEPT_COMMITS
        ):
            self.num_bytes -= len(self._kept.pop(next(iter(self._kept))).frame)

    def replace(self, commits: Iterable[Commit]) -> None:
        """Replace all commits, which may belong to another lineage, with these."""
        self._kept.clear()
        self.newest.clear()
        self.num_bytes = 0
        for commit in sorted(commits, key=lambda commit: commit.version):
            self.add(commit)

    def note_anchor(self, version: int, digest: bytes) -> None:
        """Store the digest of the newest anchor, that of `version`. Drop the digests of old versions."""
        self.digests[version] = digest
        for old in [old for old in self.digests if not version - HISTORY_COMMITS <= old <= version]:
            del self.digests[old]

    def anchors(self) -> dict[int, bytes]:
        """Return version -> digest (in the form of messages) of each remembered anchor of this lineage."""
        left = {version: kept.anchor_digest for version, kept in self._kept.items()}
        return left | {version: digest[:DIGEST_BYTES] for version, digest in self.digests.items()}

    def had(self, version: int, digest: bytes) -> bool:
        """Return whether the anchor of that version had a digest that begins with `digest`, as far as remembered."""
        if version in self.digests:
            return self.digests[version].startswith(digest)
        return version in self._kept and self._kept[version].anchor_digest.startswith(digest)

    def tokens_since(self, first: int, end: int) -> int | None:
        """Return the tokens in the commits of versions `first` to `end` - 1; None if one of them is missing."""
        versions = range(first, end)
        if end - first > len(self._kept) or not all(version in self._kept for version in versions):
            return None
        return sum(self._kept[version].tokens for version in versions)

    @property
    def tokens(self) -> int:
        return sum(kept.tokens for kept in self._kept.values())

    def frames_to(self, version: int) -> tuple[bytes, ...]:
        """Return the frames that lead to `version` without a gap, oldest first; none if the newest commit is of another
        version.
        """
        found: list[bytes] = []
        for number in range(version - 1, -1, -1):
            if (kept := self._kept.get(number)) is None:
                break
            found.append(kept.frame)
        return tuple(reversed(found))

    def page(self, from_version: int) -> list[bytes]:
        """Return the oldest frames of `from_version` and later versions, as many as fit one answer."""
        found: list[bytes] = []
        num_bytes = 0
        for version, kept in self._kept.items():
            if version < from_version:
                continue
            num_bytes += len(kept.frame)
            if found and num_bytes > MAX_PAGE_BYTES:
                break
            found.append(kept.frame)
        return found
