"""Assignment of a fragment's chunks to donors, including those of donors that fail. Pure."""

from __future__ import annotations

from dht.ground.host import PeerId


class ChunkQueue:
    """Chunks 0..num_chunks - 1. Each donor has at most one contiguous range under way, received in order.

    When all chunks are assigned, a donor without work takes the second half of the largest remaining range. So the
    slowest donor never determines the total time.
    """

    def __init__(self, num_chunks: int) -> None:
        self._missing = set(range(num_chunks))
        self._ranges: dict[PeerId, range] = {}

    @property
    def num_missing(self) -> int:
        return len(self._missing)

    def take(self, donor: PeerId, most: int) -> range | None:
        """Return the next range for `donor`, from one to `most` chunks; None if no work is left."""
        self.give_back(donor)
        assigned = {index for part in self._ranges.values() for index in part}
        free = sorted(self._missing - assigned)
        most = max(1, most)
        part = _run_from(free, most) if free else self._half_of_the_slowest(most)
        if part is not None:
            self._ranges[donor] = part
        return part

    def finish(self, index: int) -> bool:
        """Note that a chunk arrived. Return False if another donor sent it before."""
        if index not in self._missing:
            return False
        self._missing.remove(index)
        return True

    def give_back(self, donor: PeerId) -> None:
        """Release the range that `donor` has not sent."""
        self._ranges.pop(donor, None)

    def _half_of_the_slowest(self, most: int) -> range | None:
        shared = [set(part) for part in self._ranges.values()]
        best: list[int] = []
        for part in self._ranges.values():
            # A third donor for one chunk would only waste bandwidth.
            owed = [index for index in part if index in self._missing and sum(index in one for one in shared) < 2]
            best = max(best, owed, key=len)
        if not best:
            return None
        half = best[-min(most, -(-len(best) // 2)) :]
        return _run_from(half, len(half))


def _run_from(indices: list[int], most: int) -> range:
    """Return the longest contiguous run at the front of sorted `indices`, at most `most` long."""
    end = indices[0] + 1
    for index in indices[1:most]:
        if index != end:
            break
        end += 1
    return range(indices[0], end)
