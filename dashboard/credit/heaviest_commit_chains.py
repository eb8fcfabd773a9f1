"""`Counting`: all signed commits known to this dashboard, and which of them count. Pure.

The rule is that of `averaging.signing.commit_credit`, which `peer receipts verify` uses too: for each fragment, the
heaviest chain of commits counts. The result does not depend on the order or time of commits. A late commit may change
the counted chain, which gives bookings that remove and bookings that add.

Commits are never forgotten, so they are packed: about 1.5 kB for a round of sixteen members.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from averaging.signing.commit_credit import Lineage, Link, MachineShare
from dashboard.credit.credited_members import CommitCredit
from dht.ground.host import PeerId

Outcome = Literal["new", "known", "crowded"]
"""`crowded`: the commit's version has too many heavier ones."""


@dataclass(slots=True, eq=False)
class StoredReceipt:
    """A stored signed commit.

    Attributes:
        num: its number in the file.
        at: unix seconds at which it counts.
    """

    num: int
    fragment: int
    version: int
    digest: bytes
    leader: PeerId
    at: float
    payload_bytes: int
    data_parallel_bytes: int
    packed: bytes


@dataclass(frozen=True, slots=True)
class Booking:
    """A receipt that begins to count (`sign` 1) or stops (-1), with its machines."""

    receipt: StoredReceipt
    shares: tuple[MachineShare, ...]
    sign: int


@dataclass
class Counting:
    """Known commits, and those that count."""

    versions: dict[int, set[int]] = field(default_factory=dict)
    """Versions with a known commit, for each fragment."""
    rounds: set[int] = field(default_factory=set)
    """Numbers of the receipts that count."""
    _lineages: dict[int, Lineage] = field(default_factory=dict)
    _receipts: dict[bytes, StoredReceipt] = field(default_factory=dict)
    """By the digest of the commit."""
    _counted: set[bytes] = field(default_factory=set)
    _released: list[int] = field(default_factory=list)
    _bookings: list[Booking] = field(default_factory=list)
    _unsettled: set[int] = field(default_factory=set)
    _ids: list[PeerId] = field(default_factory=list)
    _index: dict[str, int] = field(default_factory=dict)

    def put(self, credit: CommitCredit, at: float, num: int) -> Outcome:
        """Add a checked commit; `settle` returns the changes."""
        lineage = self._lineages.setdefault(credit.fragment, Lineage())
        if self.is_known(credit.digest):
            return "known"
        let_go = lineage.put(Link.of(credit))
        if let_go == credit.digest:
            return "crowded"
        if let_go is not None:
            self._released.append(self._receipts[let_go].num)
            if let_go in self._counted:
                self._book(let_go, -1)
            del self._receipts[let_go]
        self._receipts[credit.digest] = StoredReceipt(
            num,
            credit.fragment,
            credit.version,
            credit.digest,
            self._ids[self._index_of(credit.leader)],
            at,
            credit.payload_bytes,
            credit.data_parallel_bytes,
            self._pack(credit.shares),
        )
        self.versions.setdefault(credit.fragment, set()).add(credit.version)
        self._unsettled.add(credit.fragment)
        return "new"

    def settle(self) -> list[Booking]:
        """Apply the rule to the added commits. Return the changes, removals first."""
        for fragment in sorted(self._unsettled):
            dropped, taken = self._lineages[fragment].settle()
            for digest in dropped:
                if digest in self._counted:
                    self._book(digest, -1)
            for digest in taken:
                self._book(digest, 1)
        self._unsettled.clear()
        bookings, self._bookings = self._bookings, []
        return bookings

    @property
    def num_rounds(self) -> int:
        """Number of rounds that count."""
        return len(self._counted)

    def is_known(self, digest: bytes) -> bool:
        """Return whether a receipt of this commit is stored."""
        return digest in self._receipts

    def is_counted(self, digest: bytes) -> bool:
        """Return whether this commit counts."""
        return digest in self._counted

    def is_elsewhere(self, credit: CommitCredit) -> bool:
        """Return whether this commit follows an unknown one although others of that version are known: a fork."""
        lineage = self._lineages.get(credit.fragment)
        return lineage is not None and lineage.is_elsewhere(credit.version, credit.previous)

    def released(self) -> list[int]:
        """Return the numbers of the receipts dropped for lack of room since the last call."""
        nums, self._released = self._released, []
        return nums

    def _book(self, digest: bytes, sign: int) -> None:
        receipt = self._receipts[digest]
        self._bookings.append(Booking(receipt, tuple(self._shares(receipt)), sign))
        (self.rounds.add if sign > 0 else self.rounds.discard)(receipt.num)
        (self._counted.add if sign > 0 else self._counted.discard)(digest)

    def _pack(self, shares: Iterable[MachineShare]) -> bytes:
        rows = [_ROW.pack(self._index_of(peer_id), milli, is_witnessed) for peer_id, milli, is_witnessed in shares]
        return b"".join(rows)

    def _index_of(self, peer_id: PeerId) -> int:
        """Return the index of an id; each id is stored once."""
        if peer_id not in self._index:
            self._index[peer_id] = len(self._ids)
            self._ids.append(peer_id)
        return self._index[peer_id]

    def _shares(self, receipt: StoredReceipt) -> Iterator[MachineShare]:
        for number, milli_tokens, is_witnessed in _ROW.iter_unpack(receipt.packed):
            yield MachineShare(self._ids[number], milli_tokens, is_witnessed)


_ROW = struct.Struct("<IQ?")
