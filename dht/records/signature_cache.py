"""What was signed well is remembered, so that nothing is checked twice. Pure."""

from __future__ import annotations

from typing import TypeVar

from dht.ground.bounds import Newest

T = TypeVar("T")


class VerifiedRecords:
    """What was signed well: records and what they say, and digests of all else. The oldest is dropped first.

    A signature takes 0.3 ms to check and a view re-reads the same records every few seconds. The owner passes one
    instance to every decode. What depends on the reader or the time is checked each time.
    """

    def __init__(self, max_entries: int = 4096) -> None:
        self._digests: Newest[bytes, None] = Newest(max_entries)
        self._records: Newest[bytes, object] = Newest(max_entries)

    def seen(self, digest: bytes) -> bool:
        """Whether `digest` is known; marks it as freshly used."""
        if digest not in self._digests:
            return False
        self._digests.move_to_end(digest)
        return True

    def add(self, digest: bytes) -> None:
        self._digests[digest] = None

    def record(self, data: bytes, kind: type[T]) -> T | None:
        """What these bytes said before, when they were good then."""
        found = self._records.get(data)
        return found if isinstance(found, kind) else None

    def add_record(self, data: bytes, record: object) -> None:
        self._records[data] = record
