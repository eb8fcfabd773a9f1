"""A gzip stream (RFC 1952) whose pieces are compressed once for all who read them.

Each piece is a whole number of deflate blocks (RFC 1951) that look back at nothing before it and end on a byte. So
pieces of different streams can be shared, and a reader has each of them as soon as it comes. One compressor for each
reader would take 256 KiB of memory, and the time of one core for a few hundred of them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Deflate, no name, no time, any system."""
_LAST_BLOCK: Final = b"\x03\x00"
LEVEL: Final = 6
"""A piece is made once and sent to many."""


def packed(data: bytes) -> bytes:
    """One piece."""
    if not data:
        return b""
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


@dataclass
class PackedEnd:
    """The end of one stream: checksum and length of all that was in it."""

    checksum: int = 0
    num_bytes: int = 0

    def took(self, data: bytes) -> None:
        """A piece of `data` was sent."""
        self.checksum = zlib.crc32(data, self.checksum)
        self.num_bytes += len(data)

    def tail(self) -> bytes:
        """What a whole stream ends with."""
        return _LAST_BLOCK + struct.pack("<II", self.checksum, self.num_bytes & 0xFFFFFFFF)
