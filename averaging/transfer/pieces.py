"""What is fetched in chunks from many donors at once: a fragment's state at one version, or a file of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from averaging.arrays import all_finite
from averaging.transfer.chunks import KeptChunks
from averaging.transfer.messages import Header, chunk_lengths, chunks_of
from averaging.transfer.snapshots import Snapshot
from dht.errors import PeerFault
from dht.host import PeerId


class ChunkedPiece(Protocol):
    """Port: something whose chunks are known by their digests before they come, and where they go."""

    @property
    def name(self) -> str:
        """In sentences, e.g. "fragment 3"."""
        ...

    @property
    def chunk_digests(self) -> Sequence[bytes]:
        """BLAKE3 of each chunk, 32 bytes each."""
        ...

    def chunk_bytes(self, index: int) -> int:
        """Length of one chunk."""
        ...

    def request(self, part: range) -> list[Any]:
        """The message that asks a donor for a range of chunks; a donor that has them answers its kind alone."""
        ...

    def kept(self) -> Iterator[bytes]:
        """Chunks in order, as an earlier process left them; nothing in them is believed."""
        ...

    def put(self, index: int, chunk: bytes, *, is_kept: bool = False) -> None:
        """Put one checked chunk in its place; `is_kept`: it came from `kept`."""
        ...


class FragmentValues:
    """Anchor and momentum while they arrive chunk by chunk. Arrays: float32 [num_values]."""

    def __init__(self, num_values: int) -> None:
        self.anchor = np.empty(num_values, dtype=np.float32)
        self.momentum = np.empty(num_values, dtype=np.float32)
        self._chunks = chunks_of(self.anchor, self.momentum)

    def chunk_bytes(self, index: int) -> int:
        """Length of one chunk."""
        return len(self._chunks[index])

    def set_chunk(self, index: int, chunk: bytes) -> None:
        """Put one checked chunk in its place."""
        self._chunks[index][:] = chunk

    def check_finite(self, donor: PeerId, fragment: int) -> None:
        """Raises PeerFault when a value is not finite."""
        for values in (self.anchor, self.momentum):
            if not all_finite(values):
                raise PeerFault(donor, f"sent values of fragment {fragment} that are not finite")

    def snapshot(self, header: Header) -> Snapshot:
        """What has arrived, when all of it has."""
        return Snapshot(header.version, header.lineage_tokens, self.anchor, self.momentum, header.digest)


class FragmentPiece:
    """`ChunkedPiece` of a fragment's state; see `averaging.transfer.messages`.

    Args:
        header: what was agreed on.
        kept: where chunks are kept for a restart of this process.
    """

    def __init__(self, fragment: int, header: Header, num_values: int, kept: KeptChunks | None = None) -> None:
        self.fragment = fragment
        self.header = header
        self._lengths = chunk_lengths(num_values)
        self._offsets = list(accumulate(self._lengths, initial=0))
        self._values = FragmentValues(num_values)
        self._kept = kept

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

    def kept(self) -> Iterator[bytes]:
        return iter(()) if self._kept is None else self._kept.chunks(self.fragment, self._lengths)

    def put(self, index: int, chunk: bytes, *, is_kept: bool = False) -> None:
        self._values.set_chunk(index, chunk)
        if self._kept is not None and not is_kept:
            self._kept.put(self.fragment, self._offsets[index], chunk)

    def snapshot(self, giver: PeerId) -> Snapshot:
        """The state, when all chunks have come, most of them from `giver`.

        Raises:
            PeerFault: the values are not finite, though they are what the header says.
        """
        self._values.check_finite(giver, self.fragment)
        return self._values.snapshot(self.header)
