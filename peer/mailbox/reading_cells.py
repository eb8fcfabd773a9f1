"""Mailbox cells that record which data is being read: the trainer writes this peer's entry, and the network process
writes those of other peers.

Each writer increments a sequence number first (odd while it writes) and last, so that a reader detects a torn copy.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from dht.records.data_reading import NUM_UNITS, Reading
from peer.data_division.others_reading import MAX_READERS, ReadingView, done_from, done_to
from peer.mailbox.shared_memory import Cells, IntCell, fence, padded_cells

_DONE_CELLS = NUM_UNITS // 64
OWN_CELLS = padded_cells(4 + _DONE_CELLS)
VIEW_CELLS = padded_cells(3 + _DONE_CELLS + 3 * MAX_READERS)


class _Guarded(Cells):
    """Cells that are read either whole or not at all."""

    _sequence = IntCell(0)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._sequence += self._sequence % 2 + 1  # a killed writer may have left it odd
        fence()
        yield
        fence()
        self._sequence += 1


class OwnReading(_Guarded):
    """The data that this peer reads; written by the trainer."""

    _epoch = IntCell(1)
    _unit = IntCell(2)
    _data = IntCell(3)

    def __init__(self, buffer: mmap.mmap, offset: int) -> None:
        super().__init__(buffer, offset, OWN_CELLS)

    def write(self, reading: Reading) -> None:
        """Replace the earlier reading."""
        with self._writing():
            self._data, self._epoch, self._unit = reading.data, reading.epoch, reading.unit
            self.ints[4 : 4 + _DONE_CELLS] = np.frombuffer(reading.done, np.int64)

    def read(self) -> Reading | None:
        """Return the last reading; None before the first, or while one is being written."""
        before = self._sequence
        fence()
        found = Reading(self._data, self._epoch, self._unit, self.ints[4 : 4 + _DONE_CELLS].tobytes())
        fence()
        return found if before and before % 2 == 0 and before == self._sequence else None


class OthersReading(_Guarded):
    """The data that other peers read; written by the network process."""

    _num_readers = IntCell(1)
    _done_epoch = IntCell(2)

    def __init__(self, buffer: mmap.mmap, offset: int) -> None:
        super().__init__(buffer, offset, VIEW_CELLS)
        self._read: tuple[int, ReadingView] | None = None

    def write(self, view: ReadingView) -> None:
        """Replace the earlier view."""
        with self._writing():
            self._num_readers, self._done_epoch = len(view.keys), view.done_epoch
            self.ints[3 : 3 + _DONE_CELLS] = np.frombuffer(done_to(view.done), np.int64)
            for row, values in enumerate((view.keys.view(np.int64), view.epochs, view.units)):
                self._row(row)[: len(values)] = values

    def read(self) -> ReadingView | None:
        """Return the last view, the same object until there is a newer view; None before the first."""
        before = self._sequence
        if before and before % 2 == 0 and (self._read is None or self._read[0] != before):
            fence()
            size = min(max(self._num_readers, 0), MAX_READERS)
            keys, epochs, units = (self._row(row)[:size].copy() for row in range(3))
            done = done_from(self.ints[3 : 3 + _DONE_CELLS].tobytes())
            view = ReadingView(keys.view(np.uint64), epochs, units, done, self._done_epoch)
            fence()
            if before == self._sequence:
                self._read = before, view
        return None if self._read is None else self._read[1]

    def _row(self, number: int) -> NDArray[np.int64]:
        start = 3 + _DONE_CELLS + number * MAX_READERS
        return self.ints[start : start + MAX_READERS]
