"""Encrypted, authenticated channel over a TCP connection: multistream-select, then py-libp2p's Noise.

Noise XX (libp2p specification ``noise``) proves the remote's PeerId; a dialler refuses an unexpected one. Before that
proof, only protocol names are sent or read.
"""

from __future__ import annotations

from typing import Any, Final

from cryptography.exceptions import InvalidTag
from libp2p.crypto.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair
from libp2p.exceptions import BaseLibp2pError
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.noise.transport import Transport as NoiseTransport
from noise.exceptions import NoiseHandshakeError, NoiseInvalidMessage, NoiseMaxNonceError, NoiseValueError

from dht.ground.delimited import delimited, read_delimited
from dht.ground.host import PeerId
from dht.identity.keys import Identity, public_key_of
from dht.streams.framing import RawStream

YAMUX_PROTOCOL: Final = "/yamux/1.0.0"
MULTISTREAM: Final = "/multistream/1.0.0"
NOT_AVAILABLE: Final = "na"

MAX_NAME_BYTES: Final = 1024
"""Longest protocol name; the longest here has about 40 bytes."""

_NOISE_ERRORS: Final = (
    BaseLibp2pError,
    InvalidTag,
    NoiseHandshakeError,
    NoiseInvalidMessage,
    NoiseMaxNonceError,
    NoiseValueError,
    ValueError,
)
"""Errors of py-libp2p's Noise for bytes that are not Noise."""


class HandshakeError(Exception):
    """The remote uses another protocol, or is a different peer; the text says which."""


class SecureChannel:
    """The encrypted connection to one authenticated remote."""

    def __init__(self, session: Any, remote: PeerId) -> None:
        self.remote = remote
        self._session = session
        self._received = bytearray()
        self._unsent = bytearray()

    async def readexactly(self, num_bytes: int, /) -> bytes:
        """Return the next `num_bytes`.

        Raises:
            EOFError, OSError: the connection ended, or bytes are not encrypted by the remote.
        """
        while len(self._received) < num_bytes:
            self._received += await self._read_message()
        data = bytes(self._received[:num_bytes])
        del self._received[:num_bytes]
        return data

    async def read_some(self, max_bytes: int) -> bytes:
        """Return between 1 and `max_bytes` as soon as available; raises as `readexactly`."""
        while not self._received:
            self._received += await self._read_message()
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        return data

    def write(self, data: bytes, /) -> None:
        self._unsent += data

    async def drain(self) -> None:
        data = bytes(self._unsent)
        self._unsent.clear()
        if data:
            try:
                await self._session.write(data)
            except _NOISE_ERRORS as error:
                raise ConnectionResetError(f"the encryption failed ({type(error).__name__})") from error

    async def _read_message(self) -> bytes:
        try:
            message: bytes = await self._session.read()
        except _NOISE_ERRORS as error:
            raise ConnectionResetError(
                f"bytes that are not encrypted for this peer ({type(error).__name__})"
            ) from error
        return message


class Securer:
    """Turns byte streams into secure channels, with the key of one identity."""

    def __init__(self, identity: Identity) -> None:
        seed = identity.to_bytes()[4:36]
        private_key = Ed25519PrivateKey.from_bytes(seed)
        keys = KeyPair(private_key, Ed25519PublicKey.from_bytes(identity.public_key))
        self._transport: Any = NoiseTransport(keys, noise_privkey=create_new_key_pair().private_key)

    async def dial(self, stream: RawStream, expected: PeerId) -> SecureChannel:
        """Secure a connection that this side dialled.

        Raises:
            HandshakeError: a peer other than `expected`, or no Noise and yamux.
            EOFError, OSError: the connection ended.
        """
        await propose(stream, str(NOISE_PROTOCOL))
        try:
            session = await self._transport.secure_outbound(_RawConnection(stream), ID.from_string(expected))
        except PeerIDMismatchesPubkey as error:
            raise HandshakeError("another peer answers there") from error
        except _NOISE_ERRORS as error:
            raise HandshakeError(f"no proof of this PeerId was given ({str(error) or type(error).__name__})") from error
        channel = _channel_of(session)
        if channel.remote != expected:
            raise HandshakeError("another peer answers there")
        await propose(channel, YAMUX_PROTOCOL)
        return channel


async def propose(stream: RawStream, protocol: str) -> None:
    """Agree on `protocol`, as the initiator.

    Raises:
        HandshakeError, MessageError: the other side does not speak it.
        EOFError, OSError: the stream ended.
    """
    stream.write(_line(MULTISTREAM) + _line(protocol))
    await stream.drain()
    for expected in (MULTISTREAM, protocol):
        answer = await _read_line(stream)
        if answer != expected:
            what = "it does not speak it" if answer == NOT_AVAILABLE else f"it answered {answer[:60]!r}"
            raise HandshakeError(f"{what}, asked for {expected}")


async def _read_line(stream: RawStream) -> str:
    line = await read_delimited(stream.readexactly, MAX_NAME_BYTES)
    if not line.endswith(b"\n"):
        raise HandshakeError("bytes that are not libp2p")
    return line[:-1].decode("utf-8", "replace")


def _line(text: str) -> bytes:
    return delimited(text.encode("utf-8") + b"\n")


def _channel_of(session: Any) -> SecureChannel:
    text = str(session.get_remote_peer())
    try:
        public_key_of(text)
    except ValueError as error:
        raise HandshakeError(f"a PeerId of an unsupported kind ({error})") from error
    return SecureChannel(session, PeerId(text))


class _RawConnection:
    """Adapter for py-libp2p's Noise instead of a trio socket."""

    def __init__(self, stream: RawStream) -> None:
        self._stream = stream

    async def read(self, num_bytes: int | None = None) -> bytes:
        if num_bytes is None:
            raise ValueError("Noise reads a known number of bytes")
        return await self._stream.readexactly(num_bytes)

    async def write(self, data: bytes) -> None:
        self._stream.write(data)
        await self._stream.drain()

    async def close(self) -> None:
        """Do nothing: the host owns and closes the connection."""
