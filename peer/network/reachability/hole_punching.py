"""Two homes that reach each other through a relay alone: each hangs up in turn and dials again, for a hole.

A dial through a relay makes the daemon try for a direct path. Routers let it through when both sides send at once.
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
"""After a relayed path was seen: libp2p itself tries once, at a moment when the other side is seldom ready. Each new
try begins with a new dial; sides take turns, so that they do not hang up on each other."""
PUNCH_AGAIN_SECONDS: Final = 3600.0
"""Routers that did not let it through three times will not soon: an hour later somebody may have another address."""
REDIAL_SECONDS: Final = (0.3, 0.5)
"""Between hanging up and dialling: the other side's daemon forgets the old connection first."""
DIAL_SECONDS: Final = 15.0


@dataclass(slots=True)
class _RelayedPeer:
    seen_at: float
    num_tries: int = 0
    moved_bytes: int = -1


class HolePunching:
    """Tries for a hole to each relayed peer, when it is time and nothing moves."""

    def __init__(self, host: P2pdHost, clock: Callable[[], float], randomness: random.Random) -> None:
        self._host = host
        self._clock = clock
        self._randomness = randomness
        self._relayed: dict[PeerId, _RelayedPeer] = {}

    def note(self, peer_id: PeerId, *, is_relayed: bool) -> None:
        """A relay, or something better, leads to this peer now."""
        if is_relayed:
            self._relayed.setdefault(peer_id, _RelayedPeer(self._clock()))
        else:
            self._relayed.pop(peer_id, None)

    def forget_all_but(self, members: set[PeerId]) -> None:
        """A peer that has left is not dialled any more."""
        for gone in self._relayed.keys() - members:
            del self._relayed[gone]

    async def punch(self) -> None:
        """Hang up on those whose time has come, and dial again."""
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
    """Which side hangs up and dials again."""
    return (me < remote) == (num_tries % 2 == 0)


def next_try_seconds(num_tries: int) -> float:
    """Since the relayed path was seen first, or since the last of the first tries."""
    return PUNCH_AFTER_SECONDS[num_tries] if num_tries < len(PUNCH_AFTER_SECONDS) else PUNCH_AGAIN_SECONDS
