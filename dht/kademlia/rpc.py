"""Transport of hivemind's `DHTNode` calls: through the daemon, or over streams of a `Libp2pHost`.

DHTNode needs three calls and a PeerID. With a daemon, hivemind's `P2P` on the daemon's control socket provides them.
`StreamCalls` uses the protocol between daemons (go-libp2p-daemon, ``persistent_stream.go``): one libp2p stream per
call, a protobuf message with a length in front each way.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError
from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from dht.ground.delimited import delimited, read_delimited
from dht.ground.errors import PeerUnreachable, words_of
from dht.ground.host import PeerId
from dht.p2pd.host import P2pdHost

MAX_CALL_BYTES: Final = 4 * 1024 * 1024
"""Largest answer; the daemon's own limit."""

CALL_SECONDS: Final = 10.0
"""Timeout of a call; DHTNode gives up earlier."""

logger = logging.getLogger(__name__)


class StreamHost(Protocol):
    """Interface that a DHT member needs of a host without a daemon: `Libp2pHost`."""

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def is_up(self) -> bool: ...

    async def wait_up(self, timeout_seconds: float) -> None: ...

    def add_restart_listener(self, listener: Callable[[], Awaitable[None]]) -> None: ...

    async def connect(self, multiaddr: str, timeout_seconds: float) -> PeerId: ...

    async def connected_addresses(self) -> dict[PeerId, list[str]]: ...

    async def open_bytes(self, peer_id: PeerId, protocol: str, timeout_seconds: float) -> Any: ...


async def open_line(host: P2pdHost | StreamHost) -> P2P | StreamCalls:
    """Return hivemind's `P2P` on the daemon of `host` or, without a daemon, calls over streams.

    Raises:
        P2PDaemonError, OSError, EOFError: the daemon does not answer.
    """
    if not isinstance(host, P2pdHost):
        return StreamCalls(host)
    # hivemind puts its sockets into /tmp and leaves them after a crash; here they are deleted with the host's sockets.
    private_p2p: Any = type("_PrivateP2P", (P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{host.daemon.directory}/"})
    p2p = await private_p2p.replicate(Multiaddr(f"/unix{host.daemon.control_socket}"))
    control = p2p._client.control
    for task in (control._read_task, control._write_task):
        task.add_done_callback(_note_end)
    return p2p


class StreamCalls:
    """Calls to members over streams of `host`; members do not call back."""

    def __init__(self, host: StreamHost) -> None:
        self.peer_id = PeerID.from_base58(host.peer_id)
        self._host = host

    async def call_protobuf_handler(self, peer_id: PeerID, name: str, request: Any, output_type: Any) -> Any:
        """Call a member and wait for its answer.

        Raises:
            P2PDaemonError: the member is gone, or its answer is missing or invalid.
            P2PHandlerError: the member refuses.
        """
        call = p2pd_pb2.PersistentConnectionRequest(
            callId=uuid.uuid4().bytes,
            callUnary=p2pd_pb2.CallUnaryRequest(peer=peer_id.to_bytes(), proto=name, data=request.SerializeToString()),
        )
        try:
            stream = await self._host.open_bytes(PeerId(peer_id.to_base58()), name, CALL_SECONDS)
        except PeerUnreachable as fault:
            raise P2PDaemonError(str(fault)) from fault
        try:
            async with asyncio.timeout(CALL_SECONDS):
                stream.write(delimited(call.SerializeToString()))
                await stream.drain()
                data = await read_delimited(stream.readexactly, MAX_CALL_BYTES)
                answer = p2pd_pb2.PersistentConnectionRequest.FromString(data).unaryResponse
        except (OSError, EOFError, TimeoutError, DecodeError, ValueError) as error:
            raise P2PDaemonError(f"{peer_id} did not answer {name}: {words_of(error)}") from error
        finally:
            stream.abort()
        if answer.HasField("error"):
            raise P2PHandlerError(answer.error[:1024].decode(errors="replace"))
        return output_type.FromString(answer.response)

    async def shutdown(self) -> None:
        """Do nothing: no stream stays open between calls."""


def _note_end(task: asyncio.Task[None]) -> None:
    # hivemind does not await these tasks; when the daemon dies, they end with an unretrieved error.
    if not task.cancelled() and task.exception() is not None:
        logger.debug("the DHT's connection to the network daemon broke: %s", task.exception())
