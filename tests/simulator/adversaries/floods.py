"""Hostile peers of the simulator that are a burden: floods, huge frames, slow reads, garbage.

Each takes part like an honest peer and does this beside it, at every honest member in turn:

- flood_records: its record again and again, each newer than the last;
- flood_streams: streams that it opens and keeps, with a hello and without one, on every protocol;
- huge_frames: contributions as long as the manifest allows, for versions and shards of its own choice, and frames that
  announce more;
- slow_reads: asks for state and reads none of it, lets the others send it shards and reads none of those;
- garbage: random bytes, before and after a hello, on every protocol;
- forges: messages of rounds that have the right form and no truth in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from averaging.lanes.handshake import OPEN_SECONDS, open_greeted_stream
from averaging.lanes.links import ROUND_PROTOCOL
from averaging.transfer.messages import STATE_PROTOCOL
from averaging.wire import frames
from averaging.wire.messages import (
    DIGEST_BYTES,
    Abandon,
    Commit,
    Contribution,
    Message,
    Offer,
    Plan,
    Redirect,
    Reduced,
    RosterEntry,
    ShardPlan,
    ShardResult,
    VersionIs,
    Wait,
)
from dht.ground.errors import PeerFault
from dht.ground.fields import pack
from dht.ground.host import Host, PeerId, Stream
from dht.records.peer_record import encode_peer_record
from peer.network.membership.membership import RECORD_PROTOCOL
from peer.network.node.node import Node
from tests.simulator.scenarios.spec import LieKind

FLOODS: frozenset[LieKind] = frozenset(
    {"flood_records", "flood_streams", "huge_frames", "slow_reads", "garbage", "forges"}
)
"""The kinds that this module knows."""
PAUSE_SECONDS = 0.1
"""Between two attacks of one peer: as fast as several of them on a home line can be."""
FORGE_SECONDS = 3.0
"""Between two forged messages."""
MOST_HELD = 64
"""Streams that one attacker keeps at a time."""
_PROTOCOLS = (ROUND_PROTOCOL, STATE_PROTOCOL, RECORD_PROTOCOL)


async def flood(kind: LieKind, node: Node, host: Host, friends: frozenset[PeerId], randomness: random.Random) -> None:
    """Attack until cancelled."""
    attacker = _Attacker(node, host, randomness)
    attack: Callable[[PeerId], Awaitable[object]] = {
        "flood_records": attacker.send_record,
        "flood_streams": attacker.open_and_keep,
        "huge_frames": attacker.send_huge,
        "slow_reads": attacker.read_slowly,
        "garbage": attacker.send_garbage,
        "forges": attacker.forge,
    }[kind]
    while True:
        await asyncio.sleep(PAUSE_SECONDS * randomness.uniform(0.5, 1.5))
        victims = [record.peer_id for record in node.membership.members() if record.peer_id not in friends]
        if victims and node.exchange.sending.takes_part:
            with contextlib.suppress(PeerFault, TimeoutError):
                async with asyncio.timeout(OPEN_SECONDS):
                    await attack(randomness.choice(victims))


@dataclass
class _Attacker:
    node: Node
    host: Host
    randomness: random.Random
    _held: list[Stream] = field(default_factory=list)
    _sequence: int = 10**6

    async def send_record(self, victim: PeerId) -> None:
        node = self.node
        stream = await self._greeted(victim, RECORD_PROTOCOL)
        self._sequence += 1
        await stream.send(encode_peer_record(node.membership.next_record(), node.who.identity))

    async def open_and_keep(self, victim: PeerId) -> Stream:
        protocol = self.randomness.choice(_PROTOCOLS)
        if self.randomness.random() < 0.5:
            return await self._greeted(victim, protocol)
        return await self._keep(await self.host.open_stream(victim, protocol, OPEN_SECONDS))

    async def send_huge(self, victim: PeerId) -> None:
        node = self.node
        stream = await self._greeted(victim, ROUND_PROTOCOL)
        if self.randomness.random() < 0.2:
            await stream.send(bytes(node.limits.max_frame_bytes + 1))
            return
        fragment = self.randomness.choice(node.fragments)
        size, version = fragment.machine.num_values, fragment.machine.version
        for shard in range(8):
            header = Contribution(
                fragment.index, version + shard % 2, shard, node.me, shard, self._sequence, 0, size, 1 + shard
            )
            await stream.send(frames.encode(header) + bytes(node.codec.encoded_num_bytes(size)))

    async def read_slowly(self, victim: PeerId) -> None:
        stream = await self._greeted(victim, STATE_PROTOCOL)
        for fragment in self.node.fragments:
            state = fragment.state
            await stream.send(pack(["chunks", fragment.index, state.version, state.digest, 0, 1]))

    async def send_garbage(self, victim: PeerId) -> None:
        stream = await self.open_and_keep(victim)
        for _ in range(4):
            await stream.send(self.randomness.randbytes(self.randomness.randrange(1, 200)))

    async def forge(self, victim: PeerId) -> None:
        if self.randomness.random() < PAUSE_SECONDS / FORGE_SECONDS:
            self.node.links.post(victim, [frames.encode(self._forged(victim))])

    def _forged(self, victim: PeerId) -> Message:
        node, chance = self.node, self.randomness
        fragment = chance.choice(node.fragments)
        machine, index, size = fragment.machine, fragment.index, fragment.machine.num_values
        version, attempt = max(0, machine.version + chance.choice((-1, 0, 0, 0, 1))), chance.randrange(3)
        junk = chance.randbytes(DIGEST_BYTES)
        digest = chance.choice((machine.anchor_digest, junk))
        roster = tuple(RosterEntry(name, 10**6, 1, version, 1) for name in sorted((node.me, victim)))
        shards, results = (ShardPlan(0, size, 0),), (ShardResult(0, size, 0, junk, (0, 1)),)
        return chance.choice(
            (
                Commit(index, version, attempt, node.me, digest, roster, results),
                VersionIs(index, version, junk, 10**12),
                Offer(index, version, attempt, digest, version, 10**6, 1, 1, 0.0, True),
                Plan(index, version, attempt, digest, roster, shards, 5.0, 10.0),
                Reduced(index, version, attempt, 0, junk, (0,)),
                Abandon(index, version, attempt, "because"),
                Redirect(index, version, node.me),
                Wait(index, version, attempt, 1, 1),
            )
        )

    async def _greeted(self, victim: PeerId, protocol: str) -> Stream:
        return await self._keep(
            await open_greeted_stream(self.host, self.node.ports.handshake_policy, victim, protocol)
        )

    async def _keep(self, stream: Stream) -> Stream:
        """Never read, and closed only when there are too many."""
        self._held.append(stream)
        if len(self._held) > MOST_HELD:
            await self._held.pop(0).close()
        return stream
