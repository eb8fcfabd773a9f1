"""The mailbox's memory outside the slots: counters of both sides and the state of the fragments.

Aligned 8-byte cells with one writer each, and float32 arrays; `peer.mailbox.mailbox` has the layout.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from averaging.arrays import F32
from averaging.wire.messages import MAX_PARTS, WorkPart
from dht.records.evaluation import Evaluation

CELL_BYTES = 8
PARTS_CELLS = 1 + 4 * MAX_PARTS
TABLE_CELLS = 24 + 2 * PARTS_CELLS
_LINE_BYTES = 64  # cells of different writers sit on different cache lines


def fence() -> None:
    """Order memory writes before against writes after: an unlock followed by a lock is a full barrier on every CPU.

    x86 keeps stores in order by itself; ARM does not.
    """
    lock = threading.Lock()  # of its own: Ctrl+C may leave it locked
    for _ in range(2):
        lock.acquire()
        lock.release()


class Cells:
    """A run of 8-byte cells, seen as int64 and as float64. Aligned single-cell loads and stores do not tear."""

    def __init__(self, buffer: mmap.mmap, offset: int, num_cells: int) -> None:
        self.ints: NDArray[np.int64] = np.frombuffer(buffer, np.int64, num_cells, offset)
        self.floats: NDArray[np.float64] = np.frombuffer(buffer, np.float64, num_cells, offset)


class IntCell:
    """Attribute that is one int64 cell."""

    def __init__(self, cell: int) -> None:
        self._cell = cell

    def __get__(self, cells: Cells, owner: type) -> int:
        return int(cells.ints[self._cell])

    def __set__(self, cells: Cells, value: int) -> None:
        cells.ints[self._cell] = value


class FloatCell:
    """Attribute that is one float64 cell."""

    def __init__(self, cell: int) -> None:
        self._cell = cell

    def __get__(self, cells: Cells, owner: type) -> float:
        return float(cells.floats[self._cell])

    def __set__(self, cells: Cells, value: float) -> None:
        cells.floats[self._cell] = value


class PartsCells:
    """Attribute with the ranges of own work: their number, then end, tokens, steps and base of each."""

    def __init__(self, cell: int) -> None:
        self._cell = cell

    def __get__(self, cells: Cells, owner: type) -> tuple[WorkPart, ...]:
        rows = cells.ints[self._cell + 1 :][: 4 * int(cells.ints[self._cell])].reshape(-1, 4)
        return tuple(WorkPart(*map(int, row)) for row in rows)

    def __set__(self, cells: Cells, parts: tuple[WorkPart, ...]) -> None:
        for place, part in enumerate(parts):
            row = part.end, part.tokens, part.steps, part.base_version
            cells.ints[self._cell + 1 + 4 * place :][:4] = row
        cells.ints[self._cell] = len(parts)


class TrainerCounters(Cells):
    """Counters that the trainer alone writes. Losses are NaN until measured."""

    inner_steps = IntCell(2)
    tokens = IntCell(3)
    train_loss = FloatCell(4)
    tokens_per_second = FloatCell(5)
    wait_seconds = FloatCell(6)
    """Time that the inner loop waited for the network side (only in mode "sync" and at the start)."""
    exchange_seconds = FloatCell(7)
    """Time spent copying to the outbox and from the inbox."""
    evaluation_loss = FloatCell(8)
    evaluation_version = IntCell(9)
    finished = IntCell(11)
    moment = IntCell(13)
    """Number of the last checkpoint for which the trainer copied its side."""
    moment_sequence = IntCell(14)
    """Sequence of the last outbox message before that moment; later ones belong to the next checkpoint."""
    moment_written = IntCell(15)
    """Its number once the trainer's files are written; 0 until then. When they could not be, it is below 0: minus the
    errno (EDOM: the live parameters are not finite)."""
    learning_rate = FloatCell(16)
    """Of the optimizer's first parameter group in the last inner step; NaN before one, and where it has none."""
    data_wait_seconds = FloatCell(17)
    """Time that the inner loop waited for data."""
    data_waits = IntCell(18)
    """Number of these waits."""
    data_rereads = IntCell(19)
    """Steps that read data again because nothing new came."""
    resting = IntCell(20)
    """1 while the owner has paused the inner loop."""

    @property
    def evaluation(self) -> Evaluation | None:
        """The newest evaluation of the anchors; None before the first, or if its loss is not finite."""
        loss = self.evaluation_loss
        return Evaluation(loss, self.evaluation_version) if math.isfinite(loss) else None


class NetworkCounters(Cells):
    """Counters that the network process alone writes."""

    sync_every = IntCell(2)
    """This peer's effective number of inner steps between two sends; 0 leaves the manifest's value."""
    ready = IntCell(4)
    """1 once every anchor is there and training may begin."""
    stop = IntCell(5)
    """1 when the trainer should end."""
    rounds_contributed = IntCell(6)
    """Commits with work of this peer, earlier sessions included."""
    wanted_moment = IntCell(7)
    """Number of the checkpoint for which the trainer copies its side after the coming inner step."""
    restored_moment = IntCell(8)
    """Number of the checkpoint that the anchors came from; -1 for none, 0 until known."""
    run_tokens = IntCell(9)
    """The run's clock: tokens in signed commits (`peer.config.learning_rate_schedule`); it never goes back."""
    learning_rate_factor = FloatCell(10)
    """Share of the inner learning rate by the run's schedule, 0 to 1; 1 at the start."""


class SharedFragment(Cells):
    """One fragment as the network process keeps it; the arrays are float32 [num_values] views, zero copy."""

    version = IntCell(0)
    lineage_tokens = IntCell(1)
    """Cumulative tokens of all commits that led to this version."""
    writing = IntCell(2)
    """1 while anchor and momentum are being changed in place: read by a restarted network process as "torn"."""
    absorbed_sequence = IntCell(3)
    """Sequence of the last outbox message whose work is already part of `residual` or of a round."""
    unsent_tokens = IntCell(5)
    unsent_steps = IntCell(6)
    unsent_base_version = IntCell(7)
    """Of the work that waits in `residual`; no tokens, no work."""
    unsent_parts = PartsCells(24)
    sent_sequence = IntCell(12)
    """Of the contribution in flight, whose encoded bytes are in `sent`; 0: none."""
    sent_tokens = IntCell(13)
    sent_steps = IntCell(14)
    sent_base_version = IntCell(15)
    sent_parts = PartsCells(24 + PARTS_CELLS)
    applied_version = IntCell(16)
    """Version the live parameters have; the one cell here that the trainer writes."""

    def __init__(
        self, buffer: mmap.mmap, offset: int, arrays_offset: int, num_values: int, num_sent_bytes: int = 0
    ) -> None:
        super().__init__(buffer, offset, TABLE_CELLS)
        sent_offset = arrays_offset + 3 * padded(4 * num_values)
        self.sent = memoryview(buffer)[sent_offset : sent_offset + num_sent_bytes]
        stride = padded(4 * num_values)
        self._digest = self.ints[8:12].view(np.uint8)
        self.anchor = array_view(buffer, arrays_offset, num_values)
        self.momentum = array_view(buffer, arrays_offset + stride, num_values)
        self.residual = array_view(buffer, arrays_offset + 2 * stride, num_values)

    @property
    def digest(self) -> bytes:
        """Digest of anchor and momentum at `version` (32 bytes)."""
        return self._digest.tobytes()

    @digest.setter
    def digest(self, value: bytes) -> None:
        self._digest[:] = np.frombuffer(value, np.uint8, 32)

    @contextmanager
    def changing(self) -> Iterator[SharedFragment]:
        """Change anchor, momentum, version, lineage_tokens and digest inside; left torn when the body raises."""
        self.writing = 1
        fence()
        yield self
        fence()
        self.writing = 0


def padded(num_bytes: int) -> int:
    """Return `num_bytes` rounded up to whole cache lines."""
    return -(-num_bytes // _LINE_BYTES) * _LINE_BYTES


def padded_cells(num_cells: int) -> int:
    """Return the number of cells rounded up to whole cache lines."""
    return padded(num_cells * CELL_BYTES) // CELL_BYTES


def array_view(buffer: mmap.mmap, offset: int, num_values: int) -> F32:
    """Return float32 [num_values] on the memory itself, which keeps the mapping alive."""
    return np.frombuffer(buffer, np.float32, num_values, offset)


def unnamed_file(num_bytes: int) -> int:
    """Return a file descriptor of `num_bytes` zero bytes without a path. Raises OSError when there is no room."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("murmuration-mailbox")
        os.ftruncate(fd, num_bytes)
        return fd
    with tempfile.TemporaryFile(prefix="murmuration-") as file:
        fd = os.dup(file.fileno())
    # A hole in a file on a full disk would kill the process with SIGBUS at the first write, so reserve it now.
    os.posix_fallocate(fd, 0, num_bytes) if hasattr(os, "posix_fallocate") else os.ftruncate(fd, num_bytes)
    return fd
