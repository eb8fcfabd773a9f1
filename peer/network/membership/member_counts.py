"""Counts over the members in view, kept up with each record that changes: what would else be counted anew. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TypeVar

from dht.records.peer_record import PeerRecord

_Key = TypeVar("_Key")

Head = tuple[int, bytes]
"""(version, first 8 bytes of the digest) of an anchor."""


class MemberTally:
    """Counts what the members in view announce. A swarm of thousands is counted every few seconds."""

    def __init__(self) -> None:
        self.levels: Counter[int] = Counter()
        """Members by the number of keys over which, as they see it, records should be split."""
        self._heads: dict[int, Counter[Head]] = {}

    def heads(self, fragment: int) -> Collection[Head]:
        """The different anchors of a fragment that members announce; joiners still look for theirs."""
        return self._heads.get(fragment, Counter()).keys()

    def replace(self, before: PeerRecord | None, after: PeerRecord | None) -> None:
        """A member's record took the place of another; None: it was not there before, or has gone."""
        if before is not None and after is not None and _announce_the_same(before, after):
            return
        for record, number in ((before, -1), (after, 1)):
            if record is None:
                continue
            _add(self.levels, record.level, number)
            for fragment, head in enumerate(_heads_of(record)):
                _add(self._heads.setdefault(fragment, Counter()), head, number)


def _announce_the_same(one: PeerRecord, other: PeerRecord) -> bool:
    """As nearly every record and the one before it do; quicker than to compare their heads."""
    are_joining = (one.state == "joining") is (other.state == "joining")
    return are_joining and (one.level, one.versions, one.digests) == (other.level, other.versions, other.digests)


def _heads_of(record: PeerRecord) -> Iterable[Head]:
    return () if record.state == "joining" else zip(record.versions, record.digests, strict=True)


def _add(counts: Counter[_Key], key: _Key, number: int) -> None:
    counts[key] += number
    if not counts[key]:
        del counts[key]
