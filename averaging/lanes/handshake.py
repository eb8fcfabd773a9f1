"""How a stream between members begins: a hello, and a welcome or a refusal."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import Host, PeerId, Stream

OPEN_SECONDS = 15.0
"""To open a stream: a relayed dial with hole punching takes up to 10 s; longer means nobody is there."""
MAX_HELLO_BYTES = 4096


class HandshakePolicy(Protocol):
    """Port: which remotes may talk to us."""

    def hello(self, remote: PeerId) -> bytes:
        """Our own first frame to `remote`."""

    def admit(self, remote: PeerId, hello: bytes) -> str:
        """Check the remote's first frame and return its role: trainer, seed or observer.

        Raises:
            PeerFault: it may not talk to us.
        """

    def welcome(self, remote: PeerId, hello: bytes) -> bytes:
        """Our answer to a hello that was admitted."""

    def refusal(self, fault: PeerFault) -> bytes:
        """Our answer to a hello that was not; empty: no answer at all."""

    def check_reply(self, remote: PeerId, hello: bytes, reply: bytes) -> None:
        """Check the remote's answer to our hello.

        Raises:
            PeerFault: it refused us, with its reason.
        """

    @property
    def may_exclude(self) -> bool:
        """Whether `is_excluded` can be true of anybody now."""

    def is_excluded(self, remote: PeerId) -> bool:
        """Whether a remote that was admitted before may not talk to us any more."""


async def open_greeted_stream(host: Host, handshake_policy: HandshakePolicy, remote: PeerId, protocol: str) -> Stream:
    """Open a stream and exchange hello and welcome.

    Raises:
        PeerUnreachable: nobody answered in time.
        PeerFault: the remote refused, with its reason.
    """
    stream = await host.open_stream(remote, protocol, OPEN_SECONDS)
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            hello = handshake_policy.hello(remote)
            await stream.send(hello)
            handshake_policy.check_reply(remote, hello, await stream.receive(MAX_HELLO_BYTES))
    except TimeoutError as error:
        await stream.close()
        raise PeerUnreachable(remote, f"did not answer the hello within {OPEN_SECONDS:.0f} s") from error
    except BaseException:  # cancelled or refused: the caller never got the stream that it would close
        await stream.close()
        raise
    return stream


async def greet_incoming(stream: Stream, handshake_policy: HandshakePolicy) -> str:
    """Check the first frame of an incoming stream, answer it, and return the remote's role.

    Raises:
        PeerUnreachable: the hello was late.
        PeerFault: it was malformed or refused; the reason was sent back, unless the remote is a stranger.
    """
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            hello = await stream.receive(MAX_HELLO_BYTES)
    except TimeoutError as error:
        raise PeerUnreachable(stream.remote, f"sent no hello within {OPEN_SECONDS:.0f} s") from error
    try:
        role = handshake_policy.admit(stream.remote, hello)
    except PeerFault as fault:
        refusal = handshake_policy.refusal(fault)
        if refusal:
            with contextlib.suppress(PeerFault):
                await _send_briefly(stream, refusal)
        raise
    await _send_briefly(stream, handshake_policy.welcome(stream.remote, hello))
    return role


async def _send_briefly(stream: Stream, frame: bytes) -> None:
    """Raises PeerUnreachable when the remote does not even take an answer."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await stream.send(frame)
    except TimeoutError as error:
        raise PeerUnreachable(stream.remote, f"took no answer for {OPEN_SECONDS:.0f} s") from error
