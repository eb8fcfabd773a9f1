"""Which chunks of a fragment are fetched from whom, and what happens to those of a donor that fails. Pure."""

from __future__ import annotations

from dht.ground.host import PeerId


class ChunkQueue:
    """Chunks 0..num_chunks - 1; every donor has at most one contiguous range under way, received in order.

    When nothing is unassigned any more, a donor without work takes the second half of what the donor with the most left
    still owes. So the slowest never decides how long the whole takes.
    """

    def __init__(self, num_chunks: int) -> None:
        self._missing = set(range(num_chunks))
        self._ranges: dict[PeerId, range] = {}

    @property
    def num_missing(self) -> int:
        return len(self._missing)

    def take(self, donor: PeerId, most: int) -> range | None:
        """The next range for `donor`, at most `most` chunks long (at least one); None when there is nothing to do."""
        self.give_back(donor)
        assigned = {index for part in self._ranges.values() for index in part}
        free = sorted(self._missing - assigned)
        most = max(1, most)
        part = _run_from(free, most) if free else self._half_of_the_slowest(most)
        if part is not None:
            self._ranges[donor] = part
        return part

    def finish(self, index: int) -> bool:
        """The chunk arrived; False when another donor has sent it before."""
        if index not in self._missing:
            return False
        self._missing.remove(index)
        return True

    def give_back(self, donor: PeerId) -> None:
        """What `donor` still owes is free for others."""
        self._ranges.pop(donor, None)

    def _half_of_the_slowest(self, most: int) -> range | None:
        shared = [set(part) for part in self._ranges.values()]
        best: list[int] = []
        for part in self._ranges.values():
            # A third donor for one chunk would only waste the lines.
            owed = [index for index in part if index in self._missing and sum(index in one for one in shared) < 2]
            best = max(best, owed, key=len)
        if not best:
            return None
        half = best[-min(most, -(-len(best) // 2)) :]
        return _run_from(half, len(half))


def _run_from(indices: list[int], most: int) -> range:
    """The longest contiguous run at the front of sorted `indices`, at most `most` long."""
    end = indices[0] + 1
    for index in indices[1:most]:
        if index != end:
            break
        end += 1
    return range(indices[0], end)
