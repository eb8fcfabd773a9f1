"""Known versions of each fragment, as ranges: a hundred thousand rounds in a few numbers. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterator


class KnownVersions:
    """A set of whole numbers that come mostly in a row."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        """Exclusive; ranges never touch each other."""

    @property
    def end(self) -> int:
        """One more than the highest known version; 0: none is known."""
        return self._ends[-1] if self._ends else 0

    def add(self, version: int) -> None:
        begin, end = version, version + 1
        first = bisect.bisect_left(self._ends, begin)
        last = bisect.bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(begin, end), end exclusive, ascending."""
        return zip(self._begins, self._ends, strict=True)

    def absent(self, end: int) -> Iterator[tuple[int, int]]:
        """Ranges below `end` that are not known, ascending."""
        at = 0
        for begin, stop in self.ranges():
            if at >= end:
                return
            if begin > at:
                yield at, min(begin, end)
            at = stop
        if at < end:
            yield at, end
