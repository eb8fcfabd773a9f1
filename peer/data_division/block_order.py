"""The order in which this peer reads blocks: each block once per epoch over the swarm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dht.records.data_reading import NUM_UNITS, Reading
from peer.data_division.others_reading import NOBODY, ReadingView, key_of
from peer.data_division.permutation import mixed_key, permuted
from peer.data_division.unit_choice import Span, UnitWalk

NUM_UPCOMING = 3
"""Number of units whose data is loaded ahead: the current unit, the next, and an additional unit while it loads."""


class Groups(Protocol):
    """Data in groups, which may be loaded while other groups are read; see `peer.trainer.data.context_blocks`."""

    @property
    def num_groups(self) -> int: ...
    @property
    def identity(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def failing(self) -> Collection[int]: ...
    def group_range(self, group: int) -> tuple[int, int] | None: ...
    def want(self, groups: Sequence[int]) -> None: ...
    def let_go(self) -> None: ...


class BlockOrder:
    """Hands out the positions of blocks, each block once per epoch; see `peer.data_division`.

    Args:
        seed: the manifest's seed, so that all peers have the same permutation.
        look: returns the reading state of others, or None if it is unknown; the same object until the state changes.
        tell: called with this peer's reading state whenever it changes.
    """

    def __init__(
        self,
        seed: int,
        peer_id: str,
        look: Callable[[], ReadingView | None] = lambda: None,
        tell: Callable[[Reading], None] = lambda reading: None,
    ) -> None:
        self._seed = seed
        self._look = look
        self._tell = tell
        self._walk = UnitWalk(key_of(peer_id))
        self._num_again = 0
        self._told: tuple[int, int] | None = None

    def next(self, num_blocks: int, context: int, groups: Groups) -> NDArray[np.int64] | None:
        """Return the positions of the next blocks of `context` + 1 tokens: int64 [num_blocks].

        With `context` 0, blocks are single samples. The result is None if no new blocks are loaded yet.
        """
        groups.let_go()
        view = self._look() or NOBODY
        spans = self._walk.next_blocks(num_blocks, lambda epoch, unit: self._size(epoch, unit, context, groups), view)
        reading = self._walk.reading(groups.identity)
        if (reading.epoch, reading.unit) != self._told or spans is None:
            self._told = reading.epoch, reading.unit
            self._tell(reading)
            upcoming = self._walk.upcoming(view, NUM_UPCOMING, self._first_ahead(spans is None, context, groups))
            groups.want(
                list(dict.fromkeys(group for unit in upcoming for group in _groups_of(unit, groups.num_groups)))
            )
        return None if spans is None else self._positions(spans, context, groups)

    def again(self, num_blocks: int, context: int, groups: Groups) -> NDArray[np.int64] | None:
        """Return the positions of loaded blocks, which may have been read before, or None if no block is loaded."""
        groups.let_go()
        self._num_again += 1
        size_of = self._size
        spans = self._walk.again(num_blocks, lambda epoch, unit: size_of(epoch, unit, context, groups), self._num_again)
        return None if spans is None else self._positions(spans, context, groups)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self._walk.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        if state:
            self._walk.restore(state)

    def _first_ahead(self, is_missing: bool, context: int, groups: Groups) -> Callable[[int], bool]:
        """Return a predicate for the units to load first.

        If a batch waits for missing units, these come first. Otherwise, if storage is full, the loaded units come
        first, so that they are read to their end before they are removed. Units whose last attempt to load failed come
        last, so that a missing file does not block the others.
        """
        failing = groups.failing
        is_any = not is_missing and not groups.is_full

        def goes_first(unit: int) -> bool:
            if failing and any(group in failing for group in _groups_of(unit, groups.num_groups)):
                return False
            return is_any or (self._size(self._walk.epoch, unit, context, groups) is None) == is_missing

        return goes_first

    def _size(self, epoch: int, unit: int, context: int, groups: Groups) -> int | None:
        """Return the number of blocks of a unit, or None if a part of it is missing."""
        sizes = [self._part(epoch, unit, group, context, groups) for group in _groups_of(unit, groups.num_groups)]
        return None if None in sizes else sum(stop - start for start, stop, *_ in filter(None, sizes))

    def _part(
        self, epoch: int, unit: int, group: int, context: int, groups: Groups
    ) -> tuple[int, int, int, int] | None:
        """Return (first place, last place + 1, blocks of the group, position of its block 0) of a unit in a group."""
        found = groups.group_range(group)
        if found is None:
            return None
        first, length = found
        # Block boundaries differ from epoch to epoch.
        phase = mixed_key(self._seed, epoch, group) % context if length > 2 * context > 0 else 0
        num_blocks = length if context == 0 else max(0, length - 1 - phase) // context
        num_parts = max(1, NUM_UNITS // groups.num_groups)
        part = unit % num_parts
        return num_blocks * part // num_parts, num_blocks * (part + 1) // num_parts, num_blocks, first + phase

    def _positions(self, spans: list[Span], context: int, groups: Groups) -> NDArray[np.int64]:
        found = []
        for span in spans:
            first, missing = span.first, span.count
            for group in _groups_of(span.unit, groups.num_groups):
                part = self._part(span.epoch, span.unit, group, context, groups)
                assert part is not None, "a unit is chosen only when all its groups are loaded"
                start, stop, num_blocks, position = part
                count = min(missing, max(0, stop - start - first))
                if count:
                    places = np.arange(start + first, start + first + count, dtype=np.int64)
                    key = mixed_key(self._seed, span.epoch, group, 1)
                    found.append(position + permuted(places, num_blocks, key) * max(1, context))
                first, missing = max(0, first - (stop - start)), missing - count
        return np.concatenate(found)


def _groups_of(unit: int, num_groups: int) -> range:
    """Return the groups of a unit: a unit is a part of one group, or consists of several complete groups."""
    if num_groups >= NUM_UNITS:
        return range(num_groups * unit // NUM_UNITS, num_groups * (unit + 1) // NUM_UNITS)
    group = unit // (NUM_UNITS // num_groups)
    return range(group, min(group + 1, num_groups))
