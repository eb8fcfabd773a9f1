"""One block of shared memory for all data exchanged between the trainer process and the network process.

The block has no name in any file system. On Linux it is a memfd, elsewhere an unlinked temporary file. It is reachable
only through its file descriptor, so nothing is left behind however the two processes end. Inside one process
(simulation, tests) the same class works on plain anonymous memory.

    header      counters of both sides; each 8-byte cell has exactly one writer
    reading     which data this peer reads, trainer -> network; and others, network -> trainer
    state       per fragment: anchor A, momentum m, unsent mass r (float32 each), the encoded contribution in flight,
                and a table; owned by the network side
    outbox      2 slots, trainer -> network: the initial parameters, then outer gradients
    inbox       2 slots, network -> trainer: changes of the live parameters

Arrays are numpy's, so that the network process needs no torch; the trainer sees the same memory as tensors
(`torch.from_numpy`, no copy).

Neither process ever waits on a lock. A producer writes payload and meta of a free slot first and its sequence number
last; the consumer acknowledges by copying that number into `consumed`. Every cursor is in the block itself, so a
restarted network process continues where the killed one stopped. Messages are read at least once, in order, and none is
lost.

Memory: 12 bytes per parameter for the state, plus the encoded contribution (an eighth of 4 bytes with int4).
Also 16 bytes per value of the largest fragment for the four slots, plus less than 16 KiB + 200 bytes per fragment. With
P equal fragments that is 3 1/8 + 4/P float32 copies of the model.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from averaging.arrays import U8
from dht.ground.errors import LocalFault
from peer.mailbox.reading_cells import OWN_CELLS, VIEW_CELLS, OthersReading, OwnReading
from peer.mailbox.shared_memory import (
    CELL_BYTES,
    TABLE_CELLS,
    NetworkCounters,
    SharedFragment,
    TrainerCounters,
    padded,
    padded_cells,
    unnamed_file,
)
from peer.mailbox.slots import NUM_SLOTS, SLOT_CELLS, Inbox, Outbox

MAGIC = int.from_bytes(b"murmbox\x01", "little")
MAILBOX_VERSION = 4

_PREAMBLE_CELLS = 8
_SIDE_CELLS = 24
_MAX_FRAGMENTS = 1 << 16


class Mailbox:
    """One peer's shared block; `trainer` and `network` are the counters, `states` the fragments in order.

    Construct it with `create` (trainer process), `attach` (network process) or `in_process` (simulation).
    """

    def __init__(
        self, buffer: mmap.mmap, sizes: tuple[int, ...], fd: int | None, sent_bytes: tuple[int, ...] = ()
    ) -> None:
        offset = CELL_BYTES * (_PREAMBLE_CELLS + padded_cells(len(sizes)))
        self.sizes = sizes
        self.sent_bytes = sent_bytes or (0,) * len(sizes)
        self.num_bytes = len(buffer)
        self._fd = fd
        self.trainer = TrainerCounters(buffer, offset, _SIDE_CELLS)
        offset += _SIDE_CELLS * CELL_BYTES
        self.network = NetworkCounters(buffer, offset, _SIDE_CELLS)
        offset += _SIDE_CELLS * CELL_BYTES
        self.own_reading = OwnReading(buffer, offset)
        offset += OWN_CELLS * CELL_BYTES
        self.others_reading = OthersReading(buffer, offset)
        offset += VIEW_CELLS * CELL_BYTES
        tables = offset
        offset += len(sizes) * TABLE_CELLS * CELL_BYTES
        slots = offset
        offset += 2 * NUM_SLOTS * SLOT_CELLS * CELL_BYTES
        states = []
        for index, (num_values, num_sent) in enumerate(zip(sizes, self.sent_bytes, strict=True)):
            table = tables + index * TABLE_CELLS * CELL_BYTES
            states.append(SharedFragment(buffer, table, offset, num_values, num_sent))
            offset += 3 * padded(4 * num_values) + padded(num_sent)
        self.states: tuple[SharedFragment, ...] = tuple(states)
        slot_values = NUM_SLOTS * padded(4 * max(sizes))
        self.slot_memory: U8 = np.frombuffer(buffer, np.uint8, 2 * slot_values, offset)
        """The memory of all four slots' values, uint8."""
        self.outbox = Outbox(buffer, slots, offset, sizes)
        slots += NUM_SLOTS * SLOT_CELLS * CELL_BYTES
        self.inbox = Inbox(buffer, slots, offset + slot_values, sizes)

    @classmethod
    def create(cls, sizes: Sequence[int], sent_bytes: Sequence[int] = ()) -> Mailbox:
        """Create a shared block for fragments with these numbers of values; all counters zero, losses NaN.

        Args:
            sent_bytes: encoded size of a contribution to each fragment; empty: contributions do not survive a restart
                of the network process.

        Raises:
            LocalFault: the memory (or, without memfd, the temporary directory) has no room for the block.
        """
        num_bytes = mailbox_num_bytes(sizes, sent_bytes)
        try:
            fd = unnamed_file(num_bytes)
            return cls._format(mmap.mmap(fd, num_bytes), tuple(sizes), fd, tuple(sent_bytes))
        except OSError as error:
            raise LocalFault(
                f"no {num_bytes} bytes of shared memory for the mailbox ({error.strerror}); expected room for about "
                "four float32 copies of the model; free memory or train a smaller model"
            ) from error

    @classmethod
    def in_process(cls, sizes: Sequence[int], sent_bytes: Sequence[int] = ()) -> Mailbox:
        """Create the same block in memory of this process, without a file descriptor."""
        buffer = mmap.mmap(-1, mailbox_num_bytes(sizes, sent_bytes))
        return cls._format(buffer, tuple(sizes), None, tuple(sent_bytes))

    @classmethod
    def attach(cls, fd: int, sizes: Sequence[int], sent_bytes: Sequence[int] = ()) -> Mailbox:
        """Open the block that another process made; takes ownership of `fd`. `sizes` are from this process's fragment
        layout.

        Raises:
            LocalFault: `fd` is not a mailbox, or its version, size or layout differs.
        """
        expected, head = mailbox_num_bytes(sizes, sent_bytes), _head(sizes)
        try:
            found = os.fstat(fd).st_size
            buffer = mmap.mmap(fd, found) if found >= len(head) else None
        except OSError as error:
            raise LocalFault(
                f"file descriptor {fd} is not a mailbox ({error.strerror}); start `peer join` again"
            ) from error
        if buffer is None or found != expected or buffer[: len(head)] != head:
            raise LocalFault(
                f"file descriptor {fd} holds {found} bytes that are not a mailbox of version {MAILBOX_VERSION} for "
                f"{len(sizes)} fragments of {_brief(sizes)} values ({expected} bytes); expected a matching one: the "
                "trainer and the network process run different software or read different manifests; restart both"
            )
        return cls(buffer, tuple(sizes), fd, tuple(sent_bytes))

    @classmethod
    def _format(cls, buffer: mmap.mmap, sizes: tuple[int, ...], fd: int | None, sent_bytes: tuple[int, ...]) -> Mailbox:
        mailbox = cls(buffer, sizes, fd, sent_bytes)
        mailbox.trainer.train_loss = mailbox.trainer.evaluation_loss = mailbox.trainer.learning_rate = float("nan")
        mailbox.network.learning_rate_factor = 1.0
        head = _head(sizes)
        buffer[: len(head)] = head
        return mailbox

    @property
    def fd(self) -> int:
        """File descriptor to pass to the other process (`subprocess.Popen(..., pass_fds=(mailbox.fd,))`)."""
        if self._fd is None:
            raise LocalFault("this mailbox lives in one process and has no file descriptor; make it with create()")
        return self._fd

    def close(self) -> None:
        """Close the file descriptor; the memory is freed with its last view. May be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def mailbox_num_bytes(sizes: Sequence[int], sent_bytes: Sequence[int] = ()) -> int:
    """Return the size of the whole block for fragments with these numbers of values.

    Raises:
        LocalFault: there are no fragments, too many, or an empty one.
    """
    if not 1 <= len(sizes) <= _MAX_FRAGMENTS or min(sizes) < 1:
        raise LocalFault(
            f"a mailbox for fragments of {_brief(sizes)} values; expected 1 to {_MAX_FRAGMENTS} non-empty fragments"
        )
    cells = (
        _PREAMBLE_CELLS + padded_cells(len(sizes)) + 2 * _SIDE_CELLS + OWN_CELLS + VIEW_CELLS + len(sizes) * TABLE_CELLS
    )
    cells += 2 * NUM_SLOTS * SLOT_CELLS
    values = (
        sum(3 * padded(4 * size) for size in sizes)
        + sum(padded(size) for size in sent_bytes)
        + 2 * NUM_SLOTS * padded(4 * max(sizes))
    )
    return CELL_BYTES * cells + values


def _head(sizes: Sequence[int]) -> bytes:
    """Return the first bytes of the block for these fragments."""
    return np.array([MAGIC, MAILBOX_VERSION, len(sizes), *([0] * (_PREAMBLE_CELLS - 3)), *sizes], np.int64).tobytes()


def _brief(sizes: Sequence[int]) -> str:
    shown = ", ".join(str(size) for size in sizes[:4])
    return f"({shown}, ...)" if len(sizes) > 4 else f"({shown})"
