"""State transfer: sends the current anchors to late or returning peers, and digests to peers that check them.

Protocol `/murmuration/state/2`; after the usual hello, requests one after the other:

    ["digest", fragment, version]        -> ["digest", digest or empty]
    ["log", fragment, from_version]      -> ["log", commit frames ...], one page; ask again from the next version on
    ["header", fragment]                 -> ["header", version, lineage_tokens, chunk digests]
    ["chunks", fragment, version, digest, first, count] -> ["chunks"] + one frame per chunk, or ["version", own one]
    ["file-header", digest]              -> ["file-header", chunk digests]
    ["file-chunks", digest, first, count] -> ["file-chunks"] + one frame per chunk

A donor without any state, or without that file, answers ["none"]; a donor without room or a free turn answers ["busy"].

The chunks are the little-endian float32 bytes of A, then of m, `averaging.outer.outer_step.DIGEST_CHUNK_BYTES` each.
Every chunk is checked on arrival against the digests of the header, and the header against the digest that the swarm
announces. So a donor can delay a joiner but not mislead it. A file of the run is divided in the same way and identified
by its digest in the manifest. The receiver ends with an acknowledgement frame (libp2p has no half-close).

`server.py` is the donor's side, `client.py` has single requests, and `many_donors.py` fetches a piece from many donors
at once. This module contains the code that they share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack
import numpy as np

from averaging.arrays import F32
from averaging.outer.outer_step import DIGEST_CHUNK_BYTES, digest_of_chunks
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.fields import pack
from dht.ground.host import PeerId
from dht.records.lineages import MAX_LINEAGE_TOKENS

STATE_PROTOCOL = "/murmuration/state/2"
MAX_REQUEST_BYTES = 256
"""Longest request for state."""
FRAME_SECONDS = 30.0
"""Time for one chunk of a MiB: 280 kbit/s, slower than any line that can take part in rounds."""
MAX_TRANSFERS = 4
"""Transfers served at once. They share one upload line; more joiners wait for their turn or ask another donor."""
MAX_TRANSFERS_PER_PEER = 2
"""A joiner fetches two fragments at once, and must not block the others."""
MAX_STREAMS_PER_PEER = 16
"""Streams of state transfer: a joiner has two fragments under way, and a dashboard fetches the commits of several at
once."""
QUEUE_SECONDS = 5.0
"""A request waits this long for its turn. Then the donor answers that it is busy, and the joiner asks another one."""
MAX_RANGE_CHUNKS = 64
"""64 MiB: more than a minute on a home line, so requests for further ranges cost nothing."""
KNOWN_AROUND = 16
"""A donor searches this many versions above and below the requested one for its own."""
WHOLE_DIGEST_BYTES = 32
"""Length of a whole BLAKE3 digest."""
ACKNOWLEDGE = b"ok"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a donor's state of a fragment: the version, and the BLAKE3 of each chunk of A, then of m."""

    version: int
    lineage_tokens: int
    chunk_digests: tuple[bytes, ...]

    @property
    def digest(self) -> bytes:
        """The anchor digest for the chunks."""
        return digest_of_chunks(self.chunk_digests)


def chunk_lengths(num_values: int) -> list[int]:
    """Return the bytes of each chunk of a fragment: of A, then of m."""
    whole, rest = divmod(4 * num_values, DIGEST_CHUNK_BYTES)
    return 2 * ([DIGEST_CHUNK_BYTES] * whole + ([rest] if rest else []))


def chunks_of(*arrays: F32) -> list[memoryview]:
    """Return the bytes of float32 arrays [n], divided into chunks. Writing to a chunk writes to its array."""
    views = [array.view(np.uint8).data for array in arrays]
    return [
        view[start : start + DIGEST_CHUNK_BYTES] for view in views for start in range(0, len(view), DIGEST_CHUNK_BYTES)
    ]


def is_count(value: int, most: int = MAX_LINEAGE_TOKENS) -> bool:
    """Return whether `value` is an integer in the range of a version or number of tokens."""
    return type(value) is int and 0 <= value <= most


async def in_time(waiting: Awaitable[T], remote: PeerId, seconds: float = FRAME_SECONDS) -> T:
    """Wait for one frame.

    Raises:
        PeerUnreachable: the frame took longer.
    """
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError as error:
        raise PeerUnreachable(remote, f"sent or read nothing for {seconds:.0f} s in a state transfer") from error


NONE = pack(["none"])
BUSY = pack(["busy"])


def unpack(data: bytes, remote: PeerId, most: int) -> list[Any]:
    """Return one message of at most `most` elements.

    Raises:
        PeerFault: the message is not an array that begins with a kind.
    """
    try:
        value = msgpack.unpackb(data, raw=False, max_map_len=0, max_ext_len=0, max_array_len=most)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise PeerFault(remote, f"sent a state message that is not msgpack ({type(error).__name__})") from error
    if type(value) is not list or not value or type(value[0]) is not str:
        raise PeerFault(remote, "sent a state message that is not a list with a kind")
    return value


def file_header_in(data: bytes, remote: PeerId, num_chunks: int) -> tuple[bytes, ...] | None:
    """Return the digests of a file's `num_chunks` chunks in a donor's answer; None: the donor does not have the file.

    Raises:
        PeerFault: the answer has another form.
    """
    match unpack(data, remote, 2):
        case ["none"]:
            return None
        case ["file-header", bytes(joined)] if len(joined) == 32 * num_chunks:
            return tuple(joined[32 * index : 32 * (index + 1)] for index in range(num_chunks))
    raise PeerFault(remote, f"did not answer a request for the {num_chunks} chunks of a file with their digests")
