"""Port: chunks of unfinished downloads that outlive the process which began them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from averaging.transfer.messages import Header


class KeptChunks(Protocol):
    """Nothing here is believed: every chunk is checked against the header, and the header against the swarm.

    A store that can keep no more says so to its owner and keeps nothing; no method raises.
    """

    def header(self, fragment: int, num_chunks: int) -> Header | None:
        """What was being downloaded; None when there is nothing of this length."""
        ...

    def chunks(self, fragment: int, lengths: list[int]) -> Iterator[bytes]:
        """The chunks in order, as they lie there; those that never came are empty or anything."""
        ...

    def begin(self, fragment: int, header: Header) -> None:
        """From now on chunks of this state come; those of another one are forgotten."""
        ...

    def put(self, fragment: int, offset: int, chunk: bytes) -> None:
        """Keep one chunk; `offset` is the length of those before it."""
        ...

    def forget(self) -> None:
        """All downloads are done."""
        ...
