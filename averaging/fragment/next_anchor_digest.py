"""The digest of the anchor that a round will lead to, worked out while its results still arrive.

Hashing anchor and momentum takes as long as the outer step, and nobody can take part in the next round without it.
Each MiB of them has its own digest, so those MiB whose results are here are stepped in a scratch buffer and hashed. The
anchor itself moves with the commit alone, as ever; what the commit says otherwise than was expected is hashed anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec
from averaging.codec.digests import array_digest
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_step import DIGEST_CHUNK_BYTES, outer_step_into

CHUNK_VALUES = DIGEST_CHUNK_BYTES // 4


@dataclass(frozen=True, slots=True)
class StepKey:
    """All that decides what a shard's values become; `digest` is that of the encoded mean."""

    start: int
    end: int
    digest: bytes
    outer_lr: float
    outer_momentum: float


ChunkDigests = Mapping[int, tuple[bytes, bytes]]
"""Per chunk: the digest of its part of the anchor and of the momentum."""


class DigestAhead:
    """Chunk digests of the next anchor of one fragment; `begin` a version, `add` results, `work`, then `known`.

    `work` may run in another thread meanwhile; the caller of `begin` makes sure that it does not.
    """

    def __init__(self, codec: Codec, num_values: int) -> None:
        self._codec = codec
        self._num_values = num_values
        # Small fragments are hashed in no time, and pieces of a chunk must be whole blocks.
        self.is_worth_it = num_values > CHUNK_VALUES and CHUNK_VALUES % codec.block_size == 0
        self.version = -1
        self._steps: dict[int, tuple[StepKey, EncodedBlocks]] = {}
        self._done: dict[int, tuple[bytes, bytes]] = {}
        self._covered: dict[int, int] = {}

    def begin(self, version: int) -> None:
        """Forget everything about other versions."""
        if version != self.version:
            self.version = version
            self._steps, self._done, self._covered = {}, {}, {}

    def add(self, key: StepKey, gradient: EncodedBlocks) -> None:
        """The result of a shard is here; the first one of values [start, end) counts."""
        if not self.is_worth_it or any(
            key.start < other.end and other.start < key.end for other, _ in self._steps.values()
        ):
            return
        # A new mapping: `work` goes over the old one in another thread.
        self._steps = {**self._steps, key.start: (key, gradient)}
        for chunk in range(key.start // CHUNK_VALUES, -(-key.end // CHUNK_VALUES)):
            first, last = self._range(chunk)
            self._covered[chunk] = self._covered.get(chunk, 0) + min(last, key.end) - max(first, key.start)

    def ready(self) -> list[int]:
        """Chunks that can be hashed now."""
        return sorted(
            chunk
            for chunk, covered in self._covered.items()
            if chunk not in self._done and covered == self._range(chunk)[1] - self._range(chunk)[0]
        )

    def work(self, state: FragmentState, chunks: Collection[int]) -> None:
        """Step and hash these chunks; `state` stays as it is, and must be at this version meanwhile."""
        gradient, change, next_anchor, next_momentum = (np.empty(CHUNK_VALUES, dtype=np.float32) for _ in range(4))
        for chunk in chunks:
            first, last = self._range(chunk)
            anchor, momentum = next_anchor[: last - first], next_momentum[: last - first]
            anchor[:] = state.anchor[first:last]
            momentum[:] = state.momentum[first:last]
            for key, encoded in self._steps_in(first, last):
                start, end = max(first, key.start), min(last, key.end)
                part = slice(start - first, end - first)
                try:
                    self._codec.decode(encoded.slice_blocks(start - key.start, end - start), gradient[: end - start])
                except ValueError:
                    # Nobody will commit such bytes.
                    break
                outer_step_into(
                    *(anchor[part], momentum[part], gradient[: end - start]),
                    *(key.outer_lr, key.outer_momentum, change[: end - start]),
                )
            else:
                self._done[chunk] = (array_digest(anchor), array_digest(momentum))
                continue
            self._covered[chunk] = -1

    def known(self, version: int, keys: Collection[StepKey]) -> ChunkDigests:
        """The digests that hold after a commit of these steps."""
        if version != self.version:
            return {}
        expected = set(keys)
        return {
            chunk: digests
            for chunk, digests in self._done.items()
            if all(key in expected for key, _ in self._steps_in(*self._range(chunk)))
        }

    def _range(self, chunk: int) -> tuple[int, int]:
        return chunk * CHUNK_VALUES, min((chunk + 1) * CHUNK_VALUES, self._num_values)

    def _steps_in(self, first: int, last: int) -> list[tuple[StepKey, EncodedBlocks]]:
        return [step for step in self._steps.values() if step[0].start < last and first < step[0].end]
