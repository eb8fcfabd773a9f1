"""Limit on the open streams of each remote, and choice of the stream to end if all streams are in use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from dht.ground.errors import PeerFault
from dht.ground.host import PeerId

MAX_INCOMING_STREAMS: Final = 512
"""Incoming streams of all remotes together; each costs descriptors and up to 2 MiB."""
MAX_INCOMING_STREAMS_PER_PEER: Final = 64
"""Incoming streams of one remote. Each costs a file descriptor here and in the daemon, and up to 2 MiB of buffer. A
round needs a few. In the host without a daemon, each costs up to 256 KiB before it is read.
"""


def gives_way(num_open: Mapping[PeerId, int], remote: PeerId) -> PeerId | None:
    """Return the remote whose newest stream ends for another stream of `remote`, if all streams are in use; None: none.

    Args:
        num_open: number of streams of each remote that has any.
    """
    greatest = max(num_open, key=lambda one: num_open[one], default=None)
    # With a difference of one, streams would end back and forth.
    return greatest if greatest is not None and num_open[greatest] > num_open.get(remote, 0) + 1 else None


class StreamCounts:
    """Counts the open streams of one protocol of each remote, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_open: dict[PeerId, int] = {}

    @contextlib.contextmanager
    def one_more(self, remote: PeerId) -> Iterator[None]:
        """Count a stream while it is served.

        Raises:
            PeerFault: the remote has too many streams.
        """
        num_open = self._num_open.get(remote, 0)
        if num_open >= self._most:
            raise PeerFault(remote, f"opened more than {self._most} streams")
        self._num_open[remote] = num_open + 1
        try:
            yield
        finally:
            self._num_open[remote] -= 1
            if not self._num_open[remote]:
                del self._num_open[remote]
