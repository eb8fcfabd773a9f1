"""The joiner's side of state transfer: single requests to one donor. `messages.py` describes the messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from averaging.codec.digests import digest_of
from averaging.lanes.handshake import HandshakePolicy, open_greeted_stream
from averaging.signing.commit_log import MAX_LOGGED_COMMITS, MAX_PAGE_BYTES
from averaging.transfer.chunked_pieces import ChunkedPiece
from averaging.transfer.messages import (
    ACKNOWLEDGE,
    FRAME_SECONDS,
    MAX_REQUEST_BYTES,
    STATE_PROTOCOL,
    Header,
    chunk_lengths,
    file_header_in,
    in_time,
    is_count,
    unpack,
)
from averaging.wire import frames
from averaging.wire.field_checks import MAX_HEADER_BYTES, Limits
from averaging.wire.messages import Commit
from dht.ground.errors import PeerFault
from dht.ground.fields import pack
from dht.ground.host import Host, PeerId, Stream
from dht.records.lineages import MAX_ANCHOR_VERSION

MAX_PAGE_ANSWER_BYTES = MAX_PAGE_BYTES + MAX_HEADER_BYTES
"""Bytes of a page, which ends with the commit that fills it, and of the lengths of its frames."""


@contextlib.asynccontextmanager
async def _asking(
    host: Host, handshake_policy: HandshakePolicy, donor: PeerId, request: list[Any]
) -> AsyncIterator[Stream]:
    """Send one request on a new stream, and acknowledge the answer after the block has understood it."""
    stream = await open_greeted_stream(host, handshake_policy, donor, STATE_PROTOCOL)
    try:
        await stream.send(pack(request))
        yield stream
        await stream.send(ACKNOWLEDGE)
    finally:
        await stream.close()


async def fetch_digest(
    host: Host, handshake_policy: HandshakePolicy, donor: PeerId, fragment: int, version: int
) -> bytes:
    """Return the donor's digest of this fragment at `version`; empty if the donor does not know it.

    Raises:
        PeerFault: the donor is gone, refused, or its answer is invalid.
    """
    async with _asking(host, handshake_policy, donor, ["digest", fragment, version]) as stream:
        answer = unpack(await in_time(stream.receive(MAX_REQUEST_BYTES), donor), donor, 2)
    if len(answer) != 2 or answer[0] != "digest" or type(answer[1]) is not bytes or len(answer[1]) not in (0, 32):
        raise PeerFault(donor, f"answered a digest request with {answer!r:.60}")
    return bytes(answer[1])


async def fetch_log(
    host: Host, handshake_policy: HandshakePolicy, donor: PeerId, fragment: int, from_version: int
) -> list[bytes]:
    """Return one page of the signed commits of `from_version` and later versions, as frames, oldest first.

    Only their length is checked. The next page begins after the last page's newest version; an empty page means that
    the donor has nothing newer.

    Raises:
        PeerFault: the donor is gone, refused, or its answer is invalid.
    """
    async with _asking(host, handshake_policy, donor, ["log", fragment, from_version]) as stream:
        answer = await in_time(stream.receive(MAX_PAGE_ANSWER_BYTES), donor)
    kind, *found = unpack(answer, donor, MAX_LOGGED_COMMITS + 1)
    if kind != "log" or not all(type(frame) is bytes for frame in found):
        raise PeerFault(donor, "did not answer a request for its log with a log")
    return found


def commits_in(page: Sequence[bytes], donor: PeerId, fragment: int, from_version: int, limits: Limits) -> list[Commit]:
    """Return the commits in a page from `fetch_log`, without checking signatures.

    Raises:
        PeerFault: a frame is not a commit of the fragment, or out of order.
    """
    commits = []
    for frame in page:
        message, _ = frames.decode(frame, donor, limits)
        if not isinstance(message, Commit) or message.fragment != fragment or message.version < from_version:
            raise PeerFault(donor, "sent something other than the commits of a fragment, oldest first")
        from_version = message.version + 1
        commits.append(message)
    return commits


async def fetch_header(
    host: Host, handshake_policy: HandshakePolicy, donor: PeerId, fragment: int, num_values: int
) -> Header | Literal["none", "busy"]:
    """Return the header of the donor's state of a fragment; "none": it has no state; "busy": it serves others, ask
    again later.

    Raises:
        PeerFault: the donor is gone, refused, or did not announce `num_values` values.
    """
    num_chunks = len(chunk_lengths(num_values))
    async with _asking(host, handshake_policy, donor, ["header", fragment]) as stream:
        frame = await in_time(stream.receive(64 + 32 * num_chunks), donor)
        match unpack(frame, donor, 4):
            case ["none"]:
                return "none"
            case ["busy"]:
                return "busy"
            case ["header", int(version), int(lineage_tokens), bytes(joined)] if (
                is_count(version, MAX_ANCHOR_VERSION) and is_count(lineage_tokens) and len(joined) == 32 * num_chunks
            ):
                digests = tuple(joined[32 * index : 32 * (index + 1)] for index in range(num_chunks))
                return Header(version, lineage_tokens, digests)
    raise PeerFault(donor, f"announced a state that does not fit {num_values} values")


async def fetch_file_header(
    host: Host, handshake_policy: HandshakePolicy, donor: PeerId, digest: bytes, num_chunks: int
) -> tuple[bytes, ...] | None:
    """Return the chunk digests of a file that `donor` sends, unchecked; None if the donor does not have the file.

    Raises:
        PeerFault: the donor is gone, refused, or its answer is invalid.
    """
    async with _asking(host, handshake_policy, donor, ["file-header", digest]) as stream:
        return file_header_in(await in_time(stream.receive(64 + 32 * num_chunks), donor), donor, num_chunks)


class ChunkStream:
    """Stream to one donor that requests ranges of chunks of one piece, one after the other."""

    def __init__(self, stream: Stream, piece: ChunkedPiece) -> None:
        self._stream = stream
        self._piece = piece

    @classmethod
    async def open(
        cls, host: Host, handshake_policy: HandshakePolicy, donor: PeerId, piece: ChunkedPiece
    ) -> ChunkStream:
        """Connect to `donor`.

        Raises:
            PeerFault: the donor is gone or refused.
        """
        return cls(await open_greeted_stream(host, handshake_policy, donor, STATE_PROTOCOL), piece)

    async def ask(self, part: range, seconds: float = FRAME_SECONDS) -> Literal["chunks", "busy", "gone"]:
        """Request a range. "chunks": receive them now; "gone": the donor now has another version, or no such file.

        Raises:
            PeerFault: the donor is gone, or its answer is invalid.
        """
        donor, request = self._stream.remote, self._piece.request(part)
        await in_time(self._stream.send(pack(request)), donor)
        answer = unpack(await in_time(self._stream.receive(MAX_REQUEST_BYTES), donor, seconds), donor, 2)
        match answer:
            case [str(kind)] if kind == request[0]:
                return "chunks"
            case ["busy"]:
                return "busy"
            case ["version", int()] | ["none"]:
                return "gone"
        raise PeerFault(donor, f"answered a request for chunks with {answer!r:.60}")

    async def receive(self, index: int, seconds: float) -> bytes:
        """Return the next chunk of the range, checked against its digest.

        Raises:
            PeerUnreachable: the chunk did not arrive within `seconds`, or the donor is gone.
            PeerFault: the chunk does not match its digest.
        """
        length, donor = self._piece.chunk_bytes(index), self._stream.remote
        chunk = await in_time(self._stream.receive(length), donor, seconds)
        if len(chunk) != length or digest_of(chunk) != self._piece.chunk_digests[index]:
            raise PeerFault(donor, f"sent a chunk of {self._piece.name} that does not match its digest")
        return chunk

    async def close(self) -> None:
        """End the stream; never raises."""
        with contextlib.suppress(PeerFault, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._stream.send(ACKNOWLEDGE)
        await self._stream.close()
