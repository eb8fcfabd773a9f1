"""Handshake of a stream between members: a hello, then a welcome or a refusal."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.host import Host, PeerId, Stream

OPEN_SECONDS = 15.0
"""Timeout for opening a stream: a relayed dial with hole punching takes up to 10 s. A peer that takes longer counts as
unreachable."""
MAX_HELLO_BYTES = 4096


class HandshakePolicy(Protocol):
    """Port: decides which remotes may open streams."""

    def hello(self, remote: PeerId) -> bytes:
        """Return this peer's first frame to `remote`."""

    def admit(self, remote: PeerId, hello: bytes) -> str:
        """Check the remote's first frame and return its role: trainer, seed or observer.

        Raises:
            PeerFault: the remote is not admitted.
        """

    def welcome(self, remote: PeerId, hello: bytes) -> bytes:
        """Return this peer's answer to an admitted hello."""

    def refusal(self, fault: PeerFault) -> bytes:
        """Return this peer's answer to a refused hello; empty: no answer."""

    def check_reply(self, remote: PeerId, hello: bytes, reply: bytes) -> None:
        """Check the remote's answer to this peer's hello.

        Raises:
            PeerFault: the remote refused, with its reason.
        """

    @property
    def may_exclude(self) -> bool:
        """Whether `is_excluded` can return True for any remote now."""

    def is_excluded(self, remote: PeerId) -> bool:
        """Return whether a remote that was admitted before is excluded now."""


async def open_greeted_stream(host: Host, handshake_policy: HandshakePolicy, remote: PeerId, protocol: str) -> Stream:
    """Open a stream and exchange hello and welcome.

    Raises:
        PeerUnreachable: the remote did not answer in time.
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
    except BaseException:  # cancelled or refused: the caller has no stream to close
        await stream.close()
        raise
    return stream


async def greet_incoming(stream: Stream, handshake_policy: HandshakePolicy) -> str:
    """Check the first frame of an incoming stream, answer it, and return the remote's role.

    Raises:
        PeerUnreachable: the hello was late.
        PeerFault: the hello was malformed or refused. The reason was sent to the remote, unless it is a stranger.
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
    """Send a frame. Raises PeerUnreachable if the remote does not accept it in time."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await stream.send(frame)
    except TimeoutError as error:
        raise PeerUnreachable(stream.remote, f"did not read the answer for {OPEN_SECONDS:.0f} s") from error
