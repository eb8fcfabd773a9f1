"""What others may want, on the disk: encoded bytes of past rounds, and copies of fragments that newcomers fetch.

Of past rounds these are results for members that come late, and own contributions for auditors. Nobody may ever want
them, and in memory they take three quarters of a copy of the model at 4 bits a value. Two fragments with their
momentum are copied for newcomers, which is a copy of the model when it has four.

All lie in files without a name in the peer's data folder. The files are mapped and not read, so the memory they take is
the kernel's to give and to take back. They are gone when the process is.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from averaging.arrays import F32
from averaging.codec.blocks import Buffer
from averaging.fragment.runtime import FragmentRuntime
from averaging.transfer.snapshots import MAX_SNAPSHOTS
from averaging.wire.messages import Commit
from dht.ground.compute import Compute

LEAST_BYTES = 1 << 20
"""Of one commit of one fragment; what is less stays in memory."""
MOST_FILES = 256
"""At a time, a file descriptor each; what is more stays in memory."""
STATES_IN_A_ROW = 2
"""Whole states that are copied to the disk for newcomers at once: one that joins, and one that comes back soon."""
STATE_SECONDS = 600.0
"""For each further one. Members who ask again and again must not wear out the disk; their copies are in memory."""

log = logging.getLogger(__name__)


def is_spilled(num_bytes: int) -> bool:
    """Whether what one commit of one fragment leaves behind is worth a file."""
    return num_bytes >= LEAST_BYTES


def copies_bytes(sizes: Sequence[int]) -> int:
    """What copies for newcomers take at most, of fragments of these numbers of values."""
    return sum(sorted(8 * size for size in sizes)[-MAX_SNAPSHOTS:])


class RoundSpill:
    """Moves what the rounds of one peer leave behind from memory to the disk, one commit after the other."""

    def __init__(self, files: SpillFiles, compute: Compute) -> None:
        self._files = files
        self._compute = compute
        self._turn = asyncio.Lock()

    def unload(self) -> None:
        """What was read of it meanwhile takes no memory any more."""
        self._files.unload()

    async def spill(self, fragment: FragmentRuntime, commit: Commit) -> None:
        """Move the results of a commit that was applied, and this peer's contribution to it, out of memory."""
        async with self._turn:
            results = fragment.store.results_of(commit)
            sent = fragment.store.own(commit.version)
            own = [] if sent is None else sent.encoded.pack()
            moved = await self._compute(lambda: self._files.keep([*results.values(), *own]))
        if moved is None:
            return
        fragment.store.move_results(commit.version, dict(zip(results, moved[: len(results)], strict=True)))
        if sent is not None and fragment.store.own(commit.version) is sent:
            encoded = replace(sent.encoded, scales=moved[-2], codes=moved[-1])
            fragment.store.keep_own(commit.version, replace(sent, encoded=encoded))


class SpillFiles:
    """Unnamed files in one folder, each mapped. `keep` may be called in any thread, one at a time.

    Args:
        what: lies in them, in the sentence about a disk that takes nothing; room: that it needs.
    """

    def __init__(
        self,
        folder: Path,
        what: str = "past rounds",
        room: str = "three quarters of a float32 copy of the model",
    ) -> None:
        self._folder = folder
        self._what, self._room = what, room
        self._files: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._changing = threading.Lock()
        self._is_failing = False

    def keep(self, parts: Sequence[Buffer]) -> list[memoryview] | None:
        """The same bytes, read-only and on the disk, for as long as somebody refers to them; None: not taken."""
        buffers = [memoryview(part).cast("B") for part in parts]
        num_bytes = sum(len(buffer) for buffer in buffers)
        if not is_spilled(num_bytes) or len(self._files) >= MOST_FILES:
            return None
        try:
            # What is written to the file does not count as this process's memory; what is written to a mapping does.
            with tempfile.TemporaryFile(dir=self._folder, prefix="past-rounds-", buffering=0) as file:
                for buffer in buffers:
                    _write(file.fileno(), buffer)
                mapped = mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_READ)
        except OSError as error:
            self._note_failure(error)
            return None
        self._is_failing = False
        with self._changing:
            self._files.add(mapped)
        found, view, start = [], memoryview(mapped), 0
        for buffer in buffers:
            found.append(view[start : start + len(buffer)])
            start += len(buffer)
        return found

    def unload(self) -> None:
        """Give the pages back that somebody has read; reading again gets them again."""
        with self._changing:
            files = list(self._files)
        for mapped in files:
            mapped.madvise(mmap.MADV_DONTNEED)

    def _note_failure(self, error: OSError) -> None:
        if not self._is_failing:
            log.warning(
                "%s stay in memory: they cannot be written to %s (%s); expected room there for %s; it is tried again "
                "each time",
                self._what,
                self._folder,
                error.strerror,
                self._room,
            )
        self._is_failing = True


class NewcomerCopies:
    """Copies of fragments that newcomers fetch; made in any thread, one at a time.

    Args:
        files: None: all copies are in memory.
        state_bytes: of all anchors and momenta.
        clock: seconds.
    """

    def __init__(self, files: SpillFiles | None, state_bytes: int, clock: Callable[[], float]) -> None:
        self._files = files
        self._state_bytes = state_bytes
        self._clock = clock
        self._allowed_bytes = self._most_bytes = float(STATES_IN_A_ROW * state_bytes)
        self._allowed_at = clock()

    def copy(self, arrays: Sequence[F32]) -> tuple[list[F32], Callable[[], None]]:
        """Read-only copies of float32 arrays [n], and what gives the memory back that reading them took.

        They are in memory where they are small, the disk takes nothing, or much was written of late.
        """
        now, num_bytes = self._clock(), sum(array.nbytes for array in arrays)
        earned = self._state_bytes * (now - self._allowed_at) / STATE_SECONDS
        self._allowed_bytes, self._allowed_at = min(self._most_bytes, self._allowed_bytes + earned), now
        files = self._files if num_bytes <= self._allowed_bytes else None
        parts = None if files is None else files.keep([array.data for array in arrays])
        if parts is None:
            return [array.copy() for array in arrays], lambda: None
        self._allowed_bytes -= num_bytes
        mapped = parts[0].obj
        assert isinstance(mapped, mmap.mmap)
        return [np.frombuffer(part, np.float32) for part in parts], partial(mapped.madvise, mmap.MADV_DONTNEED)


def _write(descriptor: int, buffer: memoryview) -> None:
    while len(buffer):
        buffer = buffer[os.write(descriptor, buffer) :]
