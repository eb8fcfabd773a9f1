"""One peer's choice of blocks through the epochs. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dht.records.data_reading import NO_UNIT, NUM_UNITS, Reading
from peer.data_division.others_reading import (
    NOBODY,
    Done,
    ReadingView,
    Standings,
    done_from,
    done_to,
    standings,
    unit_keys,
)
from peer.data_division.permutation import mixed, mixed_key

Places = NDArray[np.int64]
"""Unit numbers: int64 [n]."""


@dataclass(frozen=True, slots=True)
class Span:
    """Blocks `first` to `first + count` of a unit, in the order of the epoch."""

    epoch: int
    unit: int
    first: int
    count: int


class UnitWalk:
    """Takes one unit after another.

    Args:
        me: `key_of` this peer.

    Attributes:
        epoch: epoch of the unit that this peer reads.
    """

    def __init__(self, me: int) -> None:
        self._me = me
        self.epoch = 0
        self._done: Done = np.zeros(NUM_UNITS, bool)
        self._unit: int | None = None
        self._num_taken = 0
        # Until the first view or a checkpoint, this peer has no epoch of its own, and adopts the epoch of the others.
        self._is_new = True
        self._seen: ReadingView | None = None
        # Key of each other reader -> units that it read between its last two views. None before the first view of this
        # epoch; empty after it, because a single view contains no difference.
        self._paces: dict[int, int] | None = None

    def next_blocks(
        self, num_blocks: int, size_of: Callable[[int, int], int | None], view: ReadingView = NOBODY
    ) -> list[Span] | None:
        """Choose the next `num_blocks` blocks, or return None if they are not loaded and the caller must retry.

        Args:
            size_of: maps (epoch, unit) to its number of blocks, or None if its data is not loaded yet.
            view: the reading state of other peers.

        Raises:
            ValueError: an epoch has no blocks.
        """
        self._look(view)
        spans: list[Span] = []
        num_missing, num_empty_epochs = num_blocks, 0
        while num_missing:
            if self._unit is None:
                before = self.epoch
                if not self._choose(size_of, view):
                    break
                num_empty_epochs += self.epoch > before
                if num_empty_epochs > 2 and not spans:
                    raise ValueError("three epochs in a row have no blocks; expected data of at least one block")
            assert self._unit is not None
            size = size_of(self.epoch, self._unit) or 0
            count = min(num_missing, size - self._num_taken)
            if count > 0:
                spans.append(Span(self.epoch, self._unit, self._num_taken, count))
                self._num_taken += count
                num_missing -= count
                num_empty_epochs = 0
            if self._num_taken >= size:
                self._done[self._unit] = True
                self._unit = None
        # A batch is complete or not returned: the blocks of an incomplete batch are chosen again by the next call.
        if num_missing and spans:
            self._give_back(spans)
            return None
        return spans or None

    def again(self, num_blocks: int, size_of: Callable[[int, int], int | None], number: int) -> list[Span] | None:
        """Choose loaded blocks, which may have been read before, for a caller that has waited too long for new blocks.

        Args:
            number: number of these calls so far; each number selects different blocks.

        Returns:
            the blocks, or None if no block is loaded.
        """
        order = mixed(unit_keys(self.epoch) ^ np.uint64(mixed_key(self._me, number)))
        by_order: list[int] = np.argsort(order).tolist()
        for unit in by_order:
            size = size_of(self.epoch, unit)
            if size:
                first = number % size
                count = min(num_blocks, size - first)
                rest = num_blocks - count
                more = [Span(self.epoch, unit, 0, min(size, rest - start)) for start in range(0, rest, size)]
                return [Span(self.epoch, unit, first, count), *more]
        return None

    def upcoming(
        self, view: ReadingView, number: int, goes_first: Callable[[int], bool] = lambda unit: False
    ) -> list[int]:
        """Return at most `number` units that this peer will read next in the current state, beginning with its own.

        Args:
            goes_first: returns whether a unit comes before the others.
        """
        present = [] if self._unit is None else [self._unit]
        free: list[int] = self._in_order(view).tolist()
        ahead = filter(goes_first, free)
        behind = itertools.filterfalse(goes_first, free)
        return list(itertools.islice(itertools.chain(present, ahead, behind), number))

    def reading(self, data: int) -> Reading:
        """Return the entry for this peer's record; `data` as in `Reading`."""
        return Reading(data, self.epoch, NO_UNIT if self._unit is None else self._unit, done_to(self._done))

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain numbers and text."""
        return {
            "epoch": self.epoch,
            "done": done_to(self._done).hex(),
            "unit": -1 if self._unit is None else self._unit,
            "num_taken": self._num_taken,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.epoch = int(state["epoch"])
        self._done = done_from(bytes.fromhex(state["done"]))
        self._unit = None if int(state["unit"]) < 0 else int(state["unit"])
        self._num_taken = int(state["num_taken"])
        self._is_new = False
        self._paces = None

    def _look(self, view: ReadingView) -> None:
        """Process a new view of other readers, once."""
        if view is self._seen:
            return
        self._seen = view
        if view.done_epoch == self.epoch and len(view.keys):
            if self._paces is None:
                # The finished units of a first view were read since the epoch began, so they measure no pace.
                self._paces = {}
            else:
                self._measure(view)
            self._done |= view.done
        # A unit is read to its end in its epoch, unless the others are more than one epoch ahead.
        if view.epoch > self.epoch and (self._is_new or view.epoch > self.epoch + 1 or not self._has_own(view)):
            self._begin(view.epoch)
        if self._unit is not None and standings(self._me, self.epoch, self._unit, view).ranks[self._unit] < 0:
            self._unit = None
        self._is_new = False

    def _has_own(self, view: ReadingView) -> bool:
        """Return whether this peer reads a unit, or has an unread unit of its own left."""
        is_own = standings(self._me, self.epoch, None, view).ranks == 0
        return self._unit is not None or bool((is_own & ~self._done).any())

    def _measure(self, view: ReadingView) -> None:
        """Measure how many of its own units each other reader has read since the last view.

        The pace of a reader that has stopped is halved with each view.
        """
        owners = standings(self._me, self.epoch, None, view).owners[view.done & ~self._done]
        before = self._paces or {}
        self._paces = {
            key: max(int(np.count_nonzero(owners == np.uint64(key))), before.get(key, 0) // 2)
            for key in view.keys.tolist()
        }

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._done = np.zeros(NUM_UNITS, bool)
        self._unit, self._num_taken = None, 0
        self._paces = None

    def _choose(self, size_of: Callable[[int, int], int | None], view: ReadingView) -> bool:
        """Take the next free loaded unit, and return False if no free unit is loaded.

        If no unit is free, the next epoch begins.
        """
        free = self._in_order(view)
        if not len(free):
            self._begin(self.epoch + 1)
            free = self._in_order(view)
        for unit in free.tolist():
            if size_of(self.epoch, unit) is not None:
                self._unit, self._num_taken = unit, 0
                return True
        return False

    def _in_order(self, view: ReadingView) -> Places:
        """Return the free units in this peer's reading order: its own from the front, others' from the end."""
        found = standings(self._me, self.epoch, self._unit, view)
        is_free = (found.ranks >= 0) & ~self._done
        if self._unit is not None:
            is_free[self._unit] = False
        is_free[self._left_to_others(np.flatnonzero(is_free), found)] = False
        free = np.flatnonzero(is_free)
        ranks, scores = found.ranks[free], found.scores[free]
        return free[np.lexsort((np.where(ranks == 0, ~scores, scores), ranks))]

    def _left_to_others(self, free: Places, found: Standings) -> Places:
        """Return the free units that other readers have probably begun or read since their last records.

        These are the first units of each reader, as many as its pace.
        """
        owners = found.owners[free]
        order = np.lexsort((~found.scores[free], owners))
        readers, starts, members = np.unique(owners[order], return_index=True, return_inverse=True)
        paces = np.array([(self._paces or {}).get(reader, 0) for reader in readers.tolist()], np.int64)
        # `order` sorts the units by reader, and by score within a reader. A reader's units begin at `starts`, so the
        # index of a unit minus `starts` is its place in the order of its reader.
        return free[order][np.arange(len(free)) < (starts + paces)[members]]

    def _give_back(self, spans: list[Span]) -> None:
        """Undo the choice of `spans`, so that the next call begins with their first block."""
        # If `spans` end an epoch, `_begin` has cleared its finished units, and this peer may read them again. That is
        # accepted: it needs a new epoch without a loaded free unit, although the groups just read are still loaded,
        # and the next view of other readers restores the finished units.
        first = spans[0]
        for span in spans:
            self._done[span.unit] = False
        self.epoch, self._unit, self._num_taken = first.epoch, first.unit, first.first
