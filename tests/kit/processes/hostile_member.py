"""A member under a test's control: a real daemon and DHT node whose protocols say whatever the test wants."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from averaging.lanes.handshake import MAX_HELLO_BYTES
from averaging.lanes.links import LinkPorts, Links
from averaging.wire import frames
from averaging.wire.messages import DIGEST_BYTES, Commit, Contribution, Message, Offer, Plan, Redirect, VersionIs
from dht.admission.handshake_frames import AccessRule
from dht.ground.host import PeerId, Stream, StreamHandler
from dht.identity.keys import Identity
from dht.kademlia.dht_store import HivemindStore
from dht.p2pd.host import P2pdHost
from dht.records.peer_record import encode_peer_record
from peer.config.averaging_rules import codec_of, limits_of
from peer.config.model_shapes import seed_sizes
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.processes.process_swarm import ProcessSwarm
from tests.kit.records import make_record

PATIENCE_SECONDS = 30.0


@dataclass
class HostileMember:
    """Everything a real member has, and no manners."""

    swarm: ProcessSwarm
    identity: Identity
    host: P2pdHost
    store: HivemindStore
    handshake_policy: RunHandshakePolicy
    streams: list[Stream] = field(default_factory=list)
    """Held, so that the host closes them at its end."""
    num_announced: int = 0
    started_at: float = field(default_factory=time.time)

    @property
    def address(self) -> str:
        return self.host.addresses()[0]

    def changed_hello(self, **changes: object) -> bytes:
        """A hello that is right but for `changes`."""
        packed: bytes = msgpack.packb(msgpack.unpackb(self.handshake_policy.hello(self.identity.peer_id)) | changes)
        return packed

    async def open_silent(self, remote: PeerId, protocol: str) -> Stream:
        """A stream that has said nothing yet."""
        stream = await self.host.open_stream(remote, protocol, PATIENCE_SECONDS)
        self.streams.append(stream)
        return stream

    async def open(self, remote: PeerId, protocol: str, hello: bytes | None = None) -> tuple[Stream, bytes]:
        """A stream that has introduced itself, and the answer to that."""
        stream = await self.open_silent(remote, protocol)
        await stream.send(self.handshake_policy.hello(remote) if hello is None else hello)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return stream, await stream.receive(MAX_HELLO_BYTES)

    async def send_raw(self, stream: Stream, data: bytes) -> None:
        """Bytes without a frame around them."""
        channel = stream._channel  # type: ignore[attr-defined]
        channel.write(data)
        await channel.drain()

    async def wait_closed(self, stream: Stream) -> None:
        """Wait until the remote has closed the stream."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    await stream._channel.readexactly(1)  # type: ignore[attr-defined]

    async def announce(self, **changes: Any) -> None:
        """Publish the record of a trainer that has committed a little, but for `changes`."""
        now = time.time()
        self.num_announced += 1
        record = make_record(
            self.identity.peer_id,
            run_id=self.swarm.run_id,
            sequence=self.num_announced,
            expires_at=now + 60,
            manifest_hash=self.swarm.run.manifest.hash,
            software="9.9.9",
            inner_steps=1,
            tokens=1,
            tokens_per_second=1.0,
            versions=(3, 3),
            digests=(bytes(8), bytes(8)),
            lineage_tokens=(10, 10),
            started_at=self.started_at,
            rules=self.swarm.run.manifest.rules,
        )
        record = replace(record, **changes)
        encoded = encode_peer_record(record, self.identity)
        await self.store.publish_peer(self.swarm.run_id, record.peer_id, encoded, record.expires_at)

    async def contribute_nonsense(self, remote: PeerId, until: Callable[[], bool]) -> None:
        """Take part in rounds of fragment 0 by the book, with contributions that stand for no numbers."""
        manifest = self.swarm.run.manifest
        codec = codec_of(manifest)
        heard: asyncio.Queue[tuple[PeerId, Message]] = asyncio.Queue()
        links = Links(
            self.host,
            self.handshake_policy,
            limits_of(seed_sizes(manifest), codec),
            LinkPorts(
                lambda sender, message, payload, num_bytes: heard.put_nowait((sender, message)),
                lambda peer_id, reason: None,
                lambda peer_id, reason: None,
            ),
        )
        sequence = 0

        def offer(version: int, digest: bytes, to: PeerId) -> None:
            nonlocal sequence
            sequence += 1
            message = Offer(0, version, 0, digest, version, 64, 10, sequence, 0.0, False)
            links.post(to, [frames.encode(message)])

        known = (0, bytes(DIGEST_BYTES))
        offer(*known, remote)
        while not until():
            try:
                async with asyncio.timeout(0.5):
                    sender, message = await heard.get()
            except TimeoutError:
                offer(*known, remote)
                continue
            if getattr(message, "fragment", 1) != 0:
                continue
            if isinstance(message, VersionIs):
                known = (message.version, message.anchor_digest)
                offer(*known, remote)
            elif isinstance(message, Commit):
                # The digest of the next version is not told; an offer with a wrong one is answered with it.
                offer(message.version + 1, bytes(DIGEST_BYTES), remote)
            elif isinstance(message, Redirect):
                offer(*known, message.leader)
            elif isinstance(message, Plan):
                own = [entry for entry in message.roster if entry.peer_id == self.identity.peer_id]
                for index, shard in enumerate(message.shards):
                    header = Contribution(
                        0,
                        message.version,
                        message.attempt,
                        sender,
                        index,
                        own[0].sequence,
                        shard.start,
                        shard.end,
                        own[0].tokens,
                    )
                    nonsense = b"\xff" * codec.encoded_num_bytes(shard.end - shard.start)
                    links.post(message.roster[shard.reducer].peer_id, [frames.encode(header), nonsense], "data")
        await links.close()


@asynccontextmanager
async def hostile_member(
    swarm: ProcessSwarm, *addresses: str, identity: Identity | None = None
) -> AsyncIterator[HostileMember]:
    """A member that knows `addresses`."""
    identity = identity or Identity.generate()
    async with P2pdHost(identity, ["/ip4/127.0.0.1/tcp/0"]) as host:
        store = HivemindStore(host)
        await store.start()
        try:
            if addresses:
                assert await store.bootstrap(list(addresses))
            rule = AccessRule(swarm.run_id, swarm.run.manifest.hash, "0.0.0", swarm.run.manifest.rules)
            yield HostileMember(swarm, identity, host, store, RunHandshakePolicy(rule, identity.peer_id, "trainer"))
        finally:
            await store.close()


def answering(frame: bytes) -> StreamHandler:
    """Answers the first frame of a stream with `frame`, whatever it was."""

    async def serve(stream: Stream) -> None:
        await stream.receive(1024)
        await stream.send(frame)
        await stream.receive(1)

    return serve
