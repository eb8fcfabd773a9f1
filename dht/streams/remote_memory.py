"""Limit on the memory for received frames: a budget for each remote, shared by all its streams.

Frames are read whole, so a remote that begins many large frames at once could use unlimited memory. Here a frame waits
until earlier frames of the same remote have been read. Frames of different remotes never wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.streams.streams_per_remote import MAX_INCOMING_STREAMS_PER_PEER
from dht.streams.upload_and_download_limits import URGENT_BYTES

DEFAULT_BYTES_PER_PEER: Final = 256 * 1024 * 1024
"""Default until a run's frame sizes are known, if the owner set no limit."""
READ_BUFFER_BYTES: Final = 1024 * 1024
"""Connections stop reading from the transport beyond this, which bounds the memory that a fast remote can use for each
stream. asyncio's own limit of 64 KiB would stop and resume the transport sixty times for one 4 MiB frame.
"""
SMALLEST_READ_BUFFER_BYTES: Final = 16 * 1024


class RemoteMemory:
    """Memory budget: half of `bytes_per_peer` is for frames in flight, half for the read buffers of a remote's streams.

    Frames of at most `URGENT_BYTES` do not count, so that signs of life never wait behind bulk data.
    """

    def __init__(self, bytes_per_peer: int = DEFAULT_BYTES_PER_PEER) -> None:
        self.bytes_per_peer = bytes_per_peer
        self._used: dict[PeerId, int] = {}
        self._waiting: dict[PeerId, deque[tuple[int, asyncio.Future[None]]]] = {}

    @property
    def frame_bytes(self) -> int:
        """Budget for the concurrent frames of one remote."""
        return self.bytes_per_peer // 2

    @property
    def read_buffer_bytes(self) -> int:
        """asyncio's buffer limit for one stream, which holds at most twice as much."""
        wanted = self.bytes_per_peer // (4 * MAX_INCOMING_STREAMS_PER_PEER)
        return min(READ_BUFFER_BYTES, max(SMALLEST_READ_BUFFER_BYTES, wanted))

    def used_bytes(self, remote: PeerId) -> int:
        """Return the bytes of concurrent frames of `remote`."""
        return self._used.get(remote, 0)

    def raise_to(self, bytes_per_peer: int) -> None:
        """Raise the budget for a run with larger frames; a lower value changes nothing."""
        self.bytes_per_peer = max(self.bytes_per_peer, bytes_per_peer)
        for remote in list(self._waiting):
            self._let_in(remote)

    async def reserve(self, remote: PeerId, num_bytes: int) -> None:
        """Wait until a frame of `num_bytes` may be read.

        Raises:
            PeerFault: the frame exceeds the budget.
        """
        if num_bytes <= URGENT_BYTES:
            return
        if num_bytes > self.frame_bytes:
            raise PeerFault(
                remote,
                f"announced a frame of {num_bytes} bytes; expected at most {self.frame_bytes}, half of what this peer "
                "keeps in memory per remote; the stream is closed",
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(remote, deque()).append((num_bytes, turn))
        self._let_in(remote)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(remote, num_bytes)
            else:
                self._let_in(remote)
            raise

    def release(self, remote: PeerId, num_bytes: int) -> None:
        """Release the budget of a frame that was read, or never will be."""
        if num_bytes <= URGENT_BYTES:
            return
        left = self._used[remote] - num_bytes
        if left:
            self._used[remote] = left
        else:
            del self._used[remote]
        self._let_in(remote)

    def _let_in(self, remote: PeerId) -> None:
        """Grant frames in order, so that small frames do not overtake a large one forever."""
        waiting = self._waiting.get(remote, deque())
        while waiting:
            num_bytes, turn = waiting[0]
            if turn.done():
                waiting.popleft()
                continue
            if self.used_bytes(remote) + num_bytes > self.frame_bytes:
                return
            waiting.popleft()
            self._used[remote] = self.used_bytes(remote) + num_bytes
            turn.set_result(None)
        self._waiting.pop(remote, None)
