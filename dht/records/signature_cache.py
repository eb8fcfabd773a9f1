"""Cache of valid signatures and records, so that no signature is checked twice. Pure."""

from __future__ import annotations

from typing import TypeVar

from dht.ground.bounds import Newest

T = TypeVar("T")


class VerifiedRecords:
    """Records with valid signatures, and digests of other signed statements. The oldest is dropped first.

    Checking a signature takes 0.3 ms, and a view reads the same records every few seconds. The owner passes one
    instance to each decode. Checks that depend on the reader or the time are repeated.
    """

    def __init__(self, max_entries: int = 4096) -> None:
        self._digests: Newest[bytes, None] = Newest(max_entries)
        self._records: Newest[bytes, object] = Newest(max_entries)

    def seen(self, digest: bytes) -> bool:
        """Return whether `digest` is known, and mark it as recently used."""
        if digest not in self._digests:
            return False
        self._digests.move_to_end(digest)
        return True

    def add(self, digest: bytes) -> None:
        self._digests[digest] = None

    def record(self, data: bytes, kind: type[T]) -> T | None:
        """Return the record previously decoded from these bytes, if its signature was valid then."""
        found = self._records.get(data)
        return found if isinstance(found, kind) else None

    def add_record(self, data: bytes, record: object) -> None:
        self._records[data] = record
