"""Pieces that are fetched in chunks from many donors: a fragment's state at one version, or a file of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from averaging.finite_values import all_finite
from averaging.transfer.messages import Header, chunks_of
from averaging.transfer.snapshots import Snapshot
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId


class ChunkedPiece(Protocol):
    """Port: a piece whose chunk digests are known in advance, and the destination of its chunks."""

    @property
    def name(self) -> str:
        """Name for sentences, e.g. "fragment 3"."""

    @property
    def chunk_digests(self) -> Sequence[bytes]:
        """BLAKE3 of each chunk, 32 bytes each."""

    def chunk_bytes(self, index: int) -> int: ...

    def request(self, part: range) -> list[Any]:
        """Return the message that requests a range of chunks. A donor that has them answers with only the kind of the
        message.
        """

    def put(self, index: int, chunk: bytes) -> None:
        """Store one checked chunk in its place."""


class FragmentPiece:
    """`ChunkedPiece` of a fragment's state: anchor, then momentum; see `averaging.transfer.messages`.

    Args:
        header: the agreed header.
    """

    def __init__(self, fragment: int, header: Header, num_values: int) -> None:
        self.fragment = fragment
        self.header = header
        self._anchor, self._momentum = (np.empty(num_values, dtype=np.float32) for _ in range(2))
        self._chunks = chunks_of(self._anchor, self._momentum)
        self._lengths = [len(chunk) for chunk in self._chunks]

    @property
    def name(self) -> str:
        return f"fragment {self.fragment}"

    @property
    def chunk_digests(self) -> Sequence[bytes]:
        return self.header.chunk_digests

    def chunk_bytes(self, index: int) -> int:
        return self._lengths[index]

    def request(self, part: range) -> list[Any]:
        return ["chunks", self.fragment, self.header.version, self.header.digest, part.start, len(part)]

    def put(self, index: int, chunk: bytes) -> None:
        self._chunks[index][:] = chunk

    def snapshot(self, giver: PeerId) -> Snapshot:
        """Return the state after all chunks have arrived, most of them from `giver`.

        Raises:
            PeerFault: the values are not finite, although they match the header.
        """
        if not (all_finite(self._anchor) and all_finite(self._momentum)):
            raise PeerFault(giver, f"sent values of fragment {self.fragment} that are not finite")
        header = self.header
        return Snapshot(header.version, header.lineage_tokens, self._anchor, self._momentum, header.digest)
