"""Counts over the members in view, kept up with each record that changes: what would else be counted anew. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeVar

from dht.records.signed_records import PeerRecord

_Key = TypeVar("_Key")

Head = tuple[int, bytes]
"""(version, first 8 bytes of the digest) of an anchor."""


class MemberTally:
    """How many of the members in view say what. A swarm of thousands is asked about every few seconds."""

    def __init__(self) -> None:
        self.levels: Counter[int] = Counter()
        """By how many keys the records should be split, as the members see it -> how many of them."""
        self._heads: dict[int, Counter[Head]] = {}

    def heads(self, fragment: int) -> Collection[Head]:
        """The different anchors of a fragment that members announce; joiners still look for theirs."""
        return self._heads.get(fragment, Counter()).keys()

    def replace(self, before: PeerRecord | None, after: PeerRecord | None) -> None:
        """A member's record took the place of another; None: it was not there before, or has gone."""
        level_before = None if before is None else before.level
        level_after = None if after is None else after.level
        if level_before != level_after:
            _move(self.levels, level_before, level_after)
        if before is not None and after is not None and _announce_the_same(before, after):
            return
        heads_before, heads_after = _heads_of(before), _heads_of(after)
        for fragment in range(max(len(heads_before), len(heads_after))):
            old = heads_before[fragment] if fragment < len(heads_before) else None
            new = heads_after[fragment] if fragment < len(heads_after) else None
            if old != new:
                _move(self._heads.setdefault(fragment, Counter()), old, new)


def _announce_the_same(one: PeerRecord, other: PeerRecord) -> bool:
    """As nearly every record and the one before it do; quicker than to compare their heads."""
    are_joining = (one.state == "joining") is (other.state == "joining")
    return are_joining and one.versions == other.versions and one.digests == other.digests


def _heads_of(record: PeerRecord | None) -> tuple[Head, ...]:
    if record is None or record.state == "joining":
        return ()
    return tuple(zip(record.versions, record.digests, strict=True))


def _move(counts: Counter[_Key], old: _Key | None, new: _Key | None) -> None:
    if old is not None:
        counts[old] -= 1
        if not counts[old]:
            del counts[old]
    if new is not None:
        counts[new] += 1
