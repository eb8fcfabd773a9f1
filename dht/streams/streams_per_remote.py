"""How many streams one remote may have open towards us, and which one ends where all places are taken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from dht.ground.errors import PeerFault
from dht.ground.host import PeerId

MAX_INCOMING_STREAMS: Final = 512
"""From all remotes together; each costs descriptors and up to 2 MiB."""
MAX_INCOMING_STREAMS_PER_PEER: Final = 64
"""One open stream costs a file descriptor here and in the daemon, and up to 2 MiB of buffer. A round needs a few.
In the host without a daemon one costs up to 256 KiB before anybody reads it.
"""


def gives_way(num_open: Mapping[PeerId, int], remote: PeerId) -> PeerId | None:
    """Where all places are taken: whose newest stream ends for another one of `remote`; None: nobody's.

    Args:
        num_open: of each remote that has any.
    """
    greatest = max(num_open, key=lambda one: num_open[one], default=None)
    # A difference of one would go to and fro.
    return greatest if greatest is not None and num_open[greatest] > num_open.get(remote, 0) + 1 else None


class StreamCounts:
    """How many streams of one protocol each remote has open towards us, `most` at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_open: dict[PeerId, int] = {}

    @contextlib.contextmanager
    def one_more(self, remote: PeerId) -> Iterator[None]:
        """Count a stream for as long as it is served.

        Raises:
            PeerFault: it is one too many.
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
