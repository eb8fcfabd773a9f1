"""Test whether a daemon on this machine relays for others, and how much, with two temporary daemons.

p2pd starts two relays. One with libp2p's own limits (128 KiB each way, 2 minutes) always starts. The one that its flags
describe starts once it counts as public. The relay that registers last serves, so a daemon may start limited and stay
so: in 34 of 40 starts on an idle machine with two cores. With a single thread the unlimited relay was last in 32 of 32
starts, and in 13 of 14 with 16 processes on two cores. So relays get one thread (`daemon.daemon_environment`), and a
daemon with a limited relay restarts. Only a transfer shows which relay serves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, Literal

from dht.ground.errors import LocalFault, PeerFault, PeerUnreachable
from dht.ground.host import Stream
from dht.identity.keys import Identity
from dht.identity.multiaddr import Multiaddr, parse_peer_multiaddr
from dht.p2pd.daemon import DaemonOptions
from dht.p2pd.host import P2pdHost

RELAY_PROTOCOL: Final = "/murmuration/relay/1"
PUSHED_BYTES: Final = 512 * 1024
"""Four times the limit of a limited relay."""
_PIECE_BYTES: Final = 64 * 1024
RESERVATION_SECONDS: Final = 15.0
"""Time until the second daemon has its place at the relay: measured below 1 s on an idle machine."""
PUSH_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.25

Relaying = Literal["full", "limited", "none"]


async def check_relay(addresses: Sequence[str]) -> Relaying:
    """Send more bytes through the relay at `addresses` (with its PeerId) than a limited relay passes.

    Raises:
        LocalFault: further daemons cannot run here.
    """
    private = DaemonOptions(reachability="private", trusted_relays=tuple(addresses), relays_for_others=False)
    plain = DaemonOptions(relays_for_others=False)
    # Neither listens; otherwise their daemons would dial each other directly as soon as possible.
    async with (
        P2pdHost(Identity.generate(), [], options=private) as hidden,
        P2pdHost(Identity.generate(), [], options=plain) as caller,
    ):
        hidden.handle(RELAY_PROTOCOL, _count)
        if not await _connect_through(addresses, hidden, caller):
            return "none"
        try:
            async with asyncio.timeout(PUSH_SECONDS):
                return "full" if await _push(caller, hidden) else "limited"
        except (PeerFault, TimeoutError):
            return "limited"


async def _count(stream: Stream) -> None:
    num_bytes = 0
    while num_bytes < PUSHED_BYTES:
        num_bytes += len(await stream.receive(_PIECE_BYTES))
    await stream.send(b"all")
    with contextlib.suppress(PeerUnreachable):
        await stream.receive(1)


async def _connect_through(addresses: Sequence[str], hidden: P2pdHost, caller: P2pdHost) -> bool:
    end = asyncio.get_running_loop().time() + RESERVATION_SECONDS
    while True:
        for address in addresses:
            relay = parse_peer_multiaddr(address)[0]
            with contextlib.suppress(PeerUnreachable):
                await hidden.connect(address, PUSH_SECONDS)
                await caller.connect(address, PUSH_SECONDS)
                through = Multiaddr((*parse_peer_multiaddr(address)[1].with_peer_id(relay).parts, ("p2p-circuit", "")))
                await caller.connect(str(Multiaddr((*through.parts, ("p2p", hidden.peer_id)))), PUSH_SECONDS)
                return True
        if asyncio.get_running_loop().time() >= end:
            return False
        await asyncio.sleep(_PAUSE_SECONDS)


async def _push(caller: P2pdHost, hidden: P2pdHost) -> bool:
    connections = (await caller.connections()).get(hidden.peer_id, [])
    if not connections or not all(address.is_relayed for address in connections):
        raise LocalFault(
            "the two daemons that try the relay connected without it; expected a daemon that cannot be dialled; this "
            "is a bug"
        )
    stream = await caller.open_stream(hidden.peer_id, RELAY_PROTOCOL, PUSH_SECONDS)
    try:
        for _ in range(PUSHED_BYTES // _PIECE_BYTES):
            await stream.send(bytes(_PIECE_BYTES))
        return await stream.receive(3) == b"all"
    finally:
        await stream.close()
