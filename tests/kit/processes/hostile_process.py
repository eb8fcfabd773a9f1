"""A hostile process: a member with a real daemon that is nothing but a burden, until it is killed.

    python -m tests.kit.processes.hostile_process RUN_RECORD RUN_ID ADDRESS

All at once, against the peer at ADDRESS: streams on every protocol that are kept and never read, frames that trickle in
byte by byte, frames that announce gigabytes, contributions as long as the run allows, garbage before and after a hello,
and a new record as often as it can. Prints a line of JSON when each kind has been done `ENOUGH` times.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from averaging.lanes.links import ROUND_PROTOCOL
from averaging.outer.outer_step import digest_of_chunks
from averaging.transfer.messages import STATE_PROTOCOL, unpack
from averaging.wire import frames
from averaging.wire.messages import Contribution
from dht.ground.errors import PeerFault
from dht.ground.fields import pack
from dht.ground.host import PeerId, Stream
from dht.records.signed_manifest import decode_run_record
from peer.config.averaging_rules import codec_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_sizes
from peer.network.membership.membership import RECORD_PROTOCOL
from peer.network.membership.run_protocol import RUN_PROTOCOL
from tests.kit.processes.hostile_member import HostileMember, hostile_member

PROTOCOLS = (ROUND_PROTOCOL, STATE_PROTOCOL, RECORD_PROTOCOL, RUN_PROTOCOL)
ENOUGH = 20
PAUSE_SECONDS = 0.05
MOST_KEPT = 200


class Attack:
    def __init__(self, member: HostileMember, manifest: RunManifest, victim: PeerId) -> None:
        self.member, self.manifest, self.victim = member, manifest, victim
        self.chance = random.Random(1)
        self.done: Counter[str] = Counter()

    async def repeat(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                async with asyncio.timeout(5):
                    await act()
                self.done[name] += 1
            except (PeerFault, TimeoutError, OSError, EOFError):
                self.done[name] += 1  # the victim closed the stream: that is what it should do
            while len(self.member.streams) > MOST_KEPT:
                await self.member.streams.pop(0).close()
            await asyncio.sleep(PAUSE_SECONDS)

    async def keep_open(self) -> None:
        protocol = self.chance.choice(PROTOCOLS)
        if protocol == RUN_PROTOCOL or self.chance.random() < 0.5:
            await self.member.open_silent(self.victim, protocol)
        else:
            await self.member.open(self.victim, protocol)

    async def trickle(self) -> None:
        stream, _ = await self.member.open(self.victim, self.chance.choice(PROTOCOLS[:3]))
        for byte in b"\x00\x00\x10\x00" + bytes(16):
            await self.member.send_raw(stream, bytes([byte]))
            await asyncio.sleep(0.02)

    async def announce_gigabytes(self) -> None:
        stream = await self.member.open_silent(self.victim, self.chance.choice(PROTOCOLS))
        await self.member.send_raw(stream, b"\xff\xff\xff\xff" + bytes(1 << 20))

    async def contribute_too_much(self) -> None:
        stream, _ = await self.member.open(self.victim, ROUND_PROTOCOL)
        sizes, codec = seed_sizes(self.manifest), codec_of(self.manifest)
        frame_bytes = codec.encoded_num_bytes(sizes[0])
        for number in range(16):
            header = Contribution(0, number % 2, number, self.member.identity.peer_id, number, number, 0, sizes[0], 1)
            await stream.send(frames.encode(header) + bytes(frame_bytes))

    async def send_garbage(self) -> None:
        protocol = self.chance.choice(PROTOCOLS)
        stream: Stream = await self.member.open_silent(self.victim, protocol)
        if protocol != RUN_PROTOCOL and self.chance.random() < 0.5:
            stream, _ = await self.member.open(self.victim, protocol)
        for _ in range(4):
            await stream.send(os.urandom(self.chance.randrange(1, 400)))

    async def hoard_state(self) -> None:
        stream, _ = await self.member.open(self.victim, STATE_PROTOCOL)
        await stream.send(pack(["header", 0]))
        answer = unpack(await stream.receive(1 << 20), stream.remote, 4)
        if answer[0] == "header":
            _, version, _, joined = answer
            digests = [joined[at : at + 32] for at in range(0, len(joined), 32)]
            await stream.send(pack(["chunks", 0, version, digest_of_chunks(digests), 0, len(digests)]))

    async def announce(self) -> None:
        await self.member.announce()

    async def run(self) -> None:
        acts: dict[str, Callable[[], Awaitable[None]]] = {
            "kept streams": self.keep_open,
            "trickles": self.trickle,
            "gigabytes": self.announce_gigabytes,
            "contributions": self.contribute_too_much,
            "garbage": self.send_garbage,
            "state": self.hoard_state,
            "records": self.announce,
        }
        tasks = [asyncio.ensure_future(self.repeat(name, act)) for name, act in acts.items()]
        while not all(self.done[name] >= ENOUGH for name in acts):
            await asyncio.wait(tasks, timeout=0.2, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        print(json.dumps({"done": dict(self.done), "peer_id": self.member.identity.peer_id}), flush=True)
        await asyncio.gather(*tasks)


async def main(record_bytes: bytes, run_id: str, address: str) -> None:
    record = decode_run_record(record_bytes, run_id=run_id)
    manifest = RunManifest.from_bytes(record.manifest)
    swarm: Any = SimpleNamespace(run_id=run_id, run=SimpleNamespace(manifest=manifest))
    async with hostile_member(swarm, address) as member:
        await Attack(member, manifest, PeerId(address.rpartition("/")[2])).run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).read_bytes(), *sys.argv[2:]))
