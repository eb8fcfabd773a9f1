"""Messages of rounds that come late, or twice: a node that hears them so."""

from __future__ import annotations

import asyncio
import contextlib
import random

from averaging.wire.messages import Message
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from peer.network.node.node import Node
from tests.simulator.scenarios.spec import Tampering


def tampered(tampering: Tampering, randomness: random.Random) -> type[Node]:
    """A node to which messages are held back, or come once more, as `tampering` says."""

    class TamperedNode(Node):
        def _on_message(self, sender: PeerId, message: Message, payload: memoryview, frame_bytes: int) -> None:
            loop = asyncio.get_running_loop()
            luck, delay = randomness.random(), randomness.uniform(0.0, tampering.longest_hold_seconds)
            is_held = luck < tampering.hold
            if loop.time() < tampering.until_seconds and luck < tampering.hold + tampering.duplicate:
                loop.call_later(delay, self._hear_late, sender, message, memoryview(bytes(payload)), frame_bytes)
                if is_held:
                    return
            super()._on_message(sender, message, payload, frame_bytes)

        def _hear_late(self, sender: PeerId, message: Message, payload: memoryview, frame_bytes: int) -> None:
            if not self.ports.host.is_live:  # type: ignore[attr-defined]
                return
            with contextlib.suppress(PeerFault):  # a link would close the stream; here there is none
                super()._on_message(sender, message, payload, frame_bytes)

    return TamperedNode
