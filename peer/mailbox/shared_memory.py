"""The mailbox's memory outside the slots: counters of both processes and the state of the fragments.

It consists of aligned 8-byte cells with one writer each, and float32 arrays; see `peer.mailbox.mailbox` for the layout.
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
_LINE_BYTES = 64  # cells of different writers are on different cache lines


def fence() -> None:
    """Order earlier memory writes before later ones: an unlock followed by a lock is a full barrier on every CPU.

    x86 orders stores by itself; ARM does not.
    """
    lock = threading.Lock()  # a separate lock, because Ctrl+C may leave it locked
    for _ in range(2):
        lock.acquire()
        lock.release()


class Cells:
    """A sequence of 8-byte cells, viewed as int64 and as float64. Aligned loads and stores of a cell do not tear."""

    def __init__(self, buffer: mmap.mmap, offset: int, num_cells: int) -> None:
        self.ints: NDArray[np.int64] = np.frombuffer(buffer, np.int64, num_cells, offset)
        self.floats: NDArray[np.float64] = np.frombuffer(buffer, np.float64, num_cells, offset)


class IntCell:
    """Attribute stored in one int64 cell."""

    def __init__(self, cell: int) -> None:
        self._cell = cell

    def __get__(self, cells: Cells, owner: type) -> int:
        return int(cells.ints[self._cell])

    def __set__(self, cells: Cells, value: int) -> None:
        cells.ints[self._cell] = value


class FloatCell:
    """Attribute stored in one float64 cell."""

    def __init__(self, cell: int) -> None:
        self._cell = cell

    def __get__(self, cells: Cells, owner: type) -> float:
        return float(cells.floats[self._cell])

    def __set__(self, cells: Cells, value: float) -> None:
        cells.floats[self._cell] = value


class PartsCells:
    """Attribute with the ranges of own work: their number, then end, tokens, steps and base version of each."""

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
    """Counters that only the trainer writes. Losses are NaN until measured."""

    inner_steps = IntCell(2)
    tokens = IntCell(3)
    train_loss = FloatCell(4)
    tokens_per_second = FloatCell(5)
    wait_seconds = FloatCell(6)
    """Time that the inner loop waited for the network process (only in mode "sync" and at the start)."""
    exchange_seconds = FloatCell(7)
    """Time spent copying to the outbox and from the inbox."""
    evaluation_loss = FloatCell(8)
    evaluation_version = IntCell(9)
    finished = IntCell(11)
    moment = IntCell(13)
    """Number of the last checkpoint for which the trainer copied its state."""
    moment_sequence = IntCell(14)
    """Sequence number of the last outbox message before that moment; later messages belong to the next checkpoint."""
    moment_written = IntCell(15)
    """The checkpoint's number once the trainer's files are written; 0 until then. After a failure: minus the
    errno (EDOM: the live parameters are not finite)."""
    learning_rate = FloatCell(16)
    """Rate of the optimizer's first parameter group in the last inner step; NaN before the first or without a rate."""
    data_wait_seconds = FloatCell(17)
    """Time that the inner loop waited for data."""
    data_waits = IntCell(18)
    """Number of these waits."""
    data_rereads = IntCell(19)
    """Number of steps that read data again because no new data arrived."""
    resting = IntCell(20)
    """1 while the owner has paused the inner loop."""

    @property
    def evaluation(self) -> Evaluation | None:
        """The newest evaluation of the anchors; None before the first, or if its loss is not finite."""
        loss = self.evaluation_loss
        return Evaluation(loss, self.evaluation_version) if math.isfinite(loss) else None


class NetworkCounters(Cells):
    """Counters that only the network process writes."""

    sync_every = IntCell(2)
    """This peer's effective number of inner steps between two sends; 0: the manifest's value applies."""
    ready = IntCell(4)
    """1 once every anchor is present and training may begin."""
    stop = IntCell(5)
    """1 when the trainer should end."""
    rounds_contributed = IntCell(6)
    """Commits with work of this peer, including earlier sessions."""
    wanted_moment = IntCell(7)
    """Number of the checkpoint for which the trainer copies its state after the coming inner step."""
    restored_moment = IntCell(8)
    """Number of the checkpoint from which the anchors were restored; -1: none, 0: not known yet."""
    run_tokens = IntCell(9)
    """The run's clock: tokens in signed commits (`peer.config.learning_rate_schedule`); it never decreases."""
    learning_rate_factor = FloatCell(10)
    """Share of the inner learning rate by the run's schedule, 0 to 1; 1 at the start."""


class SharedFragment(Cells):
    """One fragment's state in the network process; the arrays are float32 [num_values] views, without copies."""

    version = IntCell(0)
    lineage_tokens = IntCell(1)
    """Total tokens of all commits that led to this version."""
    writing = IntCell(2)
    """1 while anchor and momentum are being changed in place, which a restarted network process reads as "torn"."""
    absorbed_sequence = IntCell(3)
    """Sequence number of the last outbox message whose work is already in `residual` or in a round."""
    unsent_tokens = IntCell(5)
    unsent_steps = IntCell(6)
    unsent_base_version = IntCell(7)
    """Base version of the work that waits in `residual`; without tokens there is no work."""
    unsent_parts = PartsCells(24)
    sent_sequence = IntCell(12)
    """Sequence number of the contribution being sent, whose encoded bytes are in `sent`; 0: none."""
    sent_tokens = IntCell(13)
    sent_steps = IntCell(14)
    sent_base_version = IntCell(15)
    sent_parts = PartsCells(24 + PARTS_CELLS)
    applied_version = IntCell(16)
    """Version in the live parameters; the only cell here that the trainer writes."""

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
        """Change anchor, momentum, version, lineage_tokens and digest in the block; they stay torn if the
        block raises.
        """
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
    """Return a float32 [num_values] view of the memory itself; the array keeps the mapping alive."""
    return np.frombuffer(buffer, np.float32, num_values, offset)


def unnamed_file(num_bytes: int) -> int:
    """Return a file descriptor of `num_bytes` zero bytes without a path. Raises OSError if there is no room."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("murmuration-mailbox")
        os.ftruncate(fd, num_bytes)
        return fd
    with tempfile.TemporaryFile(prefix="murmuration-") as file:
        fd = os.dup(file.fileno())
    # On a full disk, the first write to a hole in a file would kill the process with SIGBUS, so reserve the space now.
    os.posix_fallocate(fd, 0, num_bytes) if hasattr(os, "posix_fallocate") else os.ftruncate(fd, num_bytes)
    return fd
