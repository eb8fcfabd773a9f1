"""Ports to the network for all other code: `Host` and `Stream`.

Three adapters implement them: `MemoryHost` (simulated links, virtual time), `P2pdHost` (hivemind's libp2p daemon, for
bulk data) and, for observers, py-libp2p. One contract suite tests all of them.

A stream carries whole frames in both directions. libp2p streams through p2pd have no half-close: when one side closes,
it loses frames that the other has not read. So protocols end with an explicit reply frame, never with EOF.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NewType, Protocol

PeerId = NewType("PeerId", str)
"""Base58 text of a libp2p peer id, e.g. ``12D3KooW...``. Ed25519 ids embed the public key."""

FRAME_HEADER_BYTES = 4
"""Each frame is preceded by its length: unsigned 32-bit, big-endian."""


class Stream(Protocol):
    """An ordered, reliable, encrypted two-way stream of frames to one authenticated remote."""

    @property
    def remote(self) -> PeerId: ...

    @property
    def bytes_sent(self) -> int:
        """Frame bytes written so far, including length headers and the frame in progress."""

    @property
    def bytes_received(self) -> int:
        """Frame bytes read so far, including length headers."""

    async def send(self, frame: bytes | bytearray | memoryview) -> None:
        """Write one frame. Return when the transport has accepted it (back-pressure).

        Raises:
            PeerUnreachable: the stream is closed or the remote is gone.
        """

    async def receive(self, max_bytes: int) -> bytes:
        """Read one frame of at most `max_bytes`. Its length is checked before memory is allocated.

        Raises:
            PeerFault: the remote announced a longer frame (the stream is closed).
            PeerUnreachable: the stream ended, possibly in the middle of a frame.
        """

    async def close(self) -> None:
        """Close both directions; never raises."""


StreamHandler = Callable[[Stream], Awaitable[None]]
"""Called once for each incoming stream, which is closed when the handler returns or raises.

A `PeerFault` raised by a handler is logged and closes the stream. Anything else is a bug and is logged with its
traceback, but must not stop the host.
"""


class Host(Protocol):
    """A member of the peer-to-peer network, as other code sees it."""

    @property
    def peer_id(self) -> PeerId: ...

    def addresses(self) -> list[str]:
        """Multiaddrs with `/p2p/<PeerId>` under which others can dial this host."""

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve incoming streams of `protocol` (e.g. ``/murmuration/round/1``). Survives daemon restarts."""

    async def connect(self, multiaddr: str, timeout_seconds: float) -> PeerId:
        """Dial `multiaddr` (must end in `/p2p/<PeerId>`) and return the authenticated PeerId.

        Raises:
            PeerUnreachable: no peer answered in time, or a different peer answered.
            UsageFault: the text is not a multiaddr with a PeerId.
        """

    async def open_stream(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Stream:
        """Open a stream to a known peer. The transport finds its addresses.

        Raises:
            PeerUnreachable: the peer is gone, does not speak `protocol`, or missed the deadline.
        """

    async def close(self) -> None:
        """Close everything this host opened: streams, sockets, child processes; never raises."""
