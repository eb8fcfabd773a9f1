"""Part of a peer's record about the data that it reads: epoch, unit, and finished units. Pure.

An epoch of the data is divided into `NUM_UNITS` units, the same for all peers. Other peers' claims here only affect the
choice of what to read next.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

NUM_UNITS: Final = 1024
"""Units of one epoch: 32 for each of 32 peers, so that one peer's share differs from its speed by 3 % at most; 128
bytes."""
NO_UNIT: Final = 0xFFFF
_FORM = struct.Struct(f">IIH{NUM_UNITS // 8}s")
READING_BYTES: Final = _FORM.size
MAX_EPOCH: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Reading:
    """One peer's reading.

    Attributes:
        data: 32 bits that identify the data; peers with different data do not share units.
        epoch: from 0.
        unit: the unit being read; `NO_UNIT`: none.
        done: one bit for each unit, lowest bit of the first byte first: 1 if known to be fully read in this epoch.
    """

    data: int
    epoch: int
    unit: int
    done: bytes

    def to_bytes(self) -> bytes:
        """Return the reading as `READING_BYTES` bytes.

        Raises:
            ValueError: a field is out of range.
        """
        self.check()
        return _FORM.pack(self.data, self.epoch, self.unit, self.done)

    def check(self) -> None:
        """Raise ValueError if a field is out of range."""
        if not 0 <= self.data < 2**32 or not 0 <= self.epoch <= MAX_EPOCH or len(self.done) != NUM_UNITS // 8:
            raise ValueError(f"a reading of epoch {self.epoch} with {len(self.done)} bytes of units")
        if not 0 <= self.unit < NUM_UNITS and self.unit != NO_UNIT:
            raise ValueError(f"a reading of unit {self.unit}; expected below {NUM_UNITS}, or {NO_UNIT}")


def reading_of(content: bytes) -> Reading | None:
    """Return the reading that `Reading.to_bytes` encoded; None for empty bytes.

    Raises:
        ValueError: wrong length or unit.
    """
    if content == b"":
        return None
    if type(content) is not bytes or len(content) != READING_BYTES:
        raise ValueError(f"a reading of a wrong form; expected {READING_BYTES} bytes or none")
    reading = Reading(*_FORM.unpack(content))
    reading.check()
    return reading
