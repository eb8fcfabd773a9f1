"""Hole punching between two homes that reach each other only through a relay: each disconnects and redials in turn.

A dial through a relay makes the daemon try a direct path. Routers let it through if both sides send at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.p2pd.host import P2pdHost
from peer.network.reachability.probe_messages import PROBE_PROTOCOL

PUNCH_AFTER_SECONDS: Final = (3.0, 12.0, 25.0)
"""Times after a relayed path appeared: libp2p itself tries once, when the other side is seldom ready. Each new
try begins with a new dial; sides take turns, so that they do not hang up on each other."""
PUNCH_AGAIN_SECONDS: Final = 3600.0
"""Routers that blocked three attempts will block the next; an hour later a side may have a new address."""
REDIAL_SECONDS: Final = (0.3, 0.5)
"""Pause between disconnecting and redialling, in which the other side's daemon drops the old connection."""
DIAL_SECONDS: Final = 15.0


@dataclass(slots=True)
class _RelayedPeer:
    seen_at: float
    num_tries: int = 0
    moved_bytes: int = -1


class HolePunching:
    """Tries to punch a hole to each relayed peer, at set times and only while no data moves."""

    def __init__(self, host: P2pdHost, clock: Callable[[], float], randomness: random.Random) -> None:
        self._host = host
        self._clock = clock
        self._randomness = randomness
        self._relayed: dict[PeerId, _RelayedPeer] = {}

    def note(self, peer_id: PeerId, *, is_relayed: bool) -> None:
        """Record whether the path to this peer is relayed now."""
        if is_relayed:
            self._relayed.setdefault(peer_id, _RelayedPeer(self._clock()))
        else:
            self._relayed.pop(peer_id, None)

    def forget_all_but(self, members: set[PeerId]) -> None:
        """Stop redialling peers that have left."""
        for gone in self._relayed.keys() - members:
            del self._relayed[gone]

    async def punch(self) -> None:
        """Disconnect and redial the peers whose time has come."""
        now = self._clock()
        for peer_id, relayed in list(self._relayed.items()):
            if now - relayed.seen_at < next_try_seconds(relayed.num_tries):
                continue
            moved = self._host.moved_bytes(peer_id)
            if moved != relayed.moved_bytes:
                relayed.moved_bytes = moved
                continue
            is_mine = is_my_turn(self._host.peer_id, peer_id, relayed.num_tries)
            relayed.num_tries += 1
            if relayed.num_tries >= len(PUNCH_AFTER_SECONDS):
                relayed.seen_at = now
            if is_mine:
                await self._dial_again(peer_id)

    async def _dial_again(self, peer_id: PeerId) -> None:
        await self._host.disconnect(peer_id)
        await asyncio.sleep(self._randomness.uniform(*REDIAL_SECONDS))
        with contextlib.suppress(PeerFault):
            stream = await self._host.open_stream(peer_id, PROBE_PROTOCOL, DIAL_SECONDS)
            await stream.close()


def is_my_turn(me: PeerId, remote: PeerId, num_tries: int) -> bool:
    """Return whether this side disconnects and redials."""
    return (me < remote) == (num_tries % 2 == 0)


def next_try_seconds(num_tries: int) -> float:
    """Return the time of the next attempt, since the relayed path appeared or since the last of the first attempts."""
    return PUNCH_AFTER_SECONDS[num_tries] if num_tries < len(PUNCH_AFTER_SECONDS) else PUNCH_AGAIN_SECONDS
