"""Members of a DHT on loopback, with daemons or without; hivemind must be there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dht.admission.admission import Admission
from dht.ground.host import PeerId
from dht.identity.keys import Identity
from dht.kademlia.dht_store import HivemindStore
from dht.p2pd.host import P2pdHost
from tests.kit.network.signed_records import RUN_ID, signed_record

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
CHECK_SECONDS = 90.0


@dataclass
class Member:
    """A host, its store, and the record that it published last."""

    identity: Identity
    host: Any
    store: HivemindStore
    record: bytes = b""

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    async def publish(self, life_seconds: float = 90.0, sequence: int = 1) -> int:
        """Returns how many others keep the record."""
        self.record, expires_at = signed_record(self.identity, life_seconds, sequence)
        return await self.store.publish_peer(RUN_ID, self.peer_id, self.record, expires_at)

    async def seen(self) -> set[bytes]:
        return set(await self.store.fetch_peers(RUN_ID))

    def knows(self) -> set[str]:
        """PeerIds in the DHT's routing table."""
        table = self.store._member._node.protocol.routing_table
        return {peer.to_base58() for peer in table.uid_to_peer_id.values()}


class Members:
    """Makes members; `with_members` closes them all at the end."""

    def __init__(self) -> None:
        self.stack = contextlib.AsyncExitStack()

    async def add(self, kind: type[Any] = P2pdHost, *, admission: Admission | None = None) -> Member:
        identity = Identity.generate()
        host = P2pdHost(identity, LOOPBACK) if kind is P2pdHost else kind(identity)
        await self.stack.enter_async_context(host)
        store = HivemindStore(host, admission=admission)
        await store.start()
        self.stack.push_async_callback(store.close)
        return Member(identity, host, store)

    async def swarm(self, num_members: int) -> list[Member]:
        """Members that know each other; each joined through the first one's address only."""
        members = [await self.add() for _ in range(num_members)]
        for member in members[1:]:
            assert await member.store.bootstrap(members[0].host.addresses()) >= 1
        return members


def with_members(check: Callable[[Members], Awaitable[None]]) -> None:
    async def run() -> None:
        members = Members()
        async with members.stack, asyncio.timeout(CHECK_SECONDS):
            await check(members)

    asyncio.run(run())
