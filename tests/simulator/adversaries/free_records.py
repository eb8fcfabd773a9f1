"""Many keys of one host: right records that cost nothing, and commits of each key alone.

A key has a host and lanes of its own, so that others can call it and it can send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, get_args

import numpy as np

from averaging.codec.codec import Codec
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import payload_digest
from averaging.lanes.handshake import HandshakePolicy, greet_incoming
from averaging.lanes.links import ROUND_PROTOCOL, LinkPorts, Links
from averaging.signing.round_signatures import Notary, Scope
from averaging.wire import frames
from averaging.wire.field_checks import Limits
from averaging.wire.frames import commit_digest
from averaging.wire.messages import Result, RosterEntry
from dht.ground.host import PeerId, Stream
from dht.identity.keys import Identity, verify
from dht.records.peer_record import MAX_PEER_RECORD_BYTES, PeerRecord, encode_peer_record
from peer.network.membership.membership import RECORD_PROTOCOL
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.node.node import Node
from tests.simulator.adversaries.claims import lone_commit
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.scenarios.spec import Lie

STEP_BACK = 10.0
"""Times the momentum that a lone commit takes the anchor back."""
LEAST_STEP_BACK = 1e-3
LARGEST_MOMENTUM = 1e30
"""Whoever follows such commits has soon more than codecs take."""
LOOK_SECONDS = 0.1
"""How often keys that commit alone look whether a new version is there."""
KEYS_OF_A_VERSION = 8
"""Keys that close one version alone, others each time."""

Answer = Literal["absent", "silent", "greeting"]
"""What somebody meets who calls a key: no host; a host that takes streams and sends nothing; one that greets and
acknowledges what it reads."""


@dataclass(frozen=True)
class Signer:
    """A key: its PeerId, and what it signs rounds with."""

    peer_id: PeerId
    notary: Notary
    handshake_policy: HandshakePolicy


class Keys:
    """The keys of one hostile host; `close` takes their hosts from the network.

    Args:
        answer: what a caller of a key meets; keys that send have a host in any case.
        on_host: told of each host that a key gets.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        signers: Sequence[Signer],
        limits: Limits,
        clock: Callable[[], float],
        answer: Answer,
        chance: Random,
        on_host: Callable[[MemoryHost], None] = lambda host: None,
    ) -> None:
        self._on_host = on_host
        self.signers = signers
        self._network, self._limits, self._clock = network, limits, clock
        self._answer, self._chance = answer, chance
        self._session = chance.getrandbits(62)
        self._sequence = 0
        self._links: dict[PeerId, Links] = {}
        if answer != "absent":
            for signer in signers:
                self._links_of(signer)

    def records(self, pattern: PeerRecord) -> list[PeerRecord]:
        """A record for each key that is as right as `pattern`, an honest trainer's, newer than all before."""
        self._sequence += 1
        newest = replace(pattern, session=self._session, sequence=self._sequence, name="", newest_round=None)
        return [replace(newest, peer_id=signer.peer_id) for signer in self.signers]

    async def commit_alone(
        self,
        fragments: Sequence[FragmentRuntime],
        codec: Codec,
        tokens: Callable[[], int],
        others: Callable[[], Sequence[PeerId]],
    ) -> None:
        """Close each version at once, under some keys alone, with a step back; until cancelled."""
        closed: dict[int, int] = {}
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for fragment in fragments:
                version = fragment.machine.version
                if fragment.machine.applying is None and closed.get(fragment.index) != version:
                    closed[fragment.index] = version
                    self._close_alone(fragment, codec, max(1, tokens()), others())

    def _close_alone(self, fragment: FragmentRuntime, codec: Codec, tokens: int, others: Sequence[PeerId]) -> None:
        machine, size = fragment.machine, fragment.machine.num_values
        back = np.clip(fragment.state.momentum, -LARGEST_MOMENTUM, LARGEST_MOMENTUM) * -STEP_BACK
        if not back.any():
            back.fill(LEAST_STEP_BACK)
        payload = b"".join(bytes(part) for part in codec.encode(back).pack())
        before = machine.log.newest.get(machine.version - 1)
        previous = b"" if before is None else commit_digest(before)
        mean = frames.encode(Result(fragment.index, machine.version, 0, 0, size))
        for signer in self._chance.sample(self.signers, min(KEYS_OF_A_VERSION, len(self.signers))):
            entry = RosterEntry(
                signer.peer_id, tokens, max(1, tokens // 10), machine.version, self._chance.getrandbits(40)
            )
            mean_digest = payload_digest(payload)
            commit = lone_commit(
                fragment, machine.version, machine.anchor_digest, entry, mean_digest, previous, signer.notary
            )
            links = self._links_of(signer)
            for peer_id in others:
                links.post(peer_id, [mean, memoryview(payload)], "data")
                links.post(peer_id, [frames.encode(commit)])

    def _links_of(self, signer: Signer) -> Links:
        links = self._links.get(signer.peer_id)
        if links is None:
            host = MemoryHost(self._network, signer.peer_id)
            links = Links(
                host, signer.handshake_policy, self._limits, LinkPorts(_ignore, _ignore, _ignore), self._clock
            )
            self._links[signer.peer_id] = links
            if self._answer != "greeting":
                host.handle(ROUND_PROTOCOL, _say_nothing)
            self._on_host(host)
        return links

    async def close(self) -> None:
        for peer_id, links in self._links.items():
            self._network.crash(peer_id)
            await links.close()


async def publish_free_records(
    node: Node,
    host: MemoryHost,
    lie: Lie,
    friends: frozenset[PeerId],
    randomness: Random,
    beside: Coroutine[Any, Any, None] | None,
) -> None:
    """Publish records of further keys while `beside` runs, and commit alone under all of them if the lie is that."""
    await _Publisher(node, host, lie, friends, randomness).run(beside)


class _Publisher:
    def __init__(self, node: Node, host: MemoryHost, lie: Lie, friends: frozenset[PeerId], randomness: Random) -> None:
        self._node, self._lie, self._friends, self._chance = node, lie, friends, randomness
        identities = [Identity.from_seed(randomness.randbytes(32)) for _ in range(lie.num_keys)]
        self._identities = {identity.peer_id: identity for identity in identities}
        self._encoded: dict[PeerId, bytes] = {}
        self._scope = Scope(node.who.run_id, node.manifest.hash)
        self._answer: Answer = randomness.choice(get_args(Answer))
        signers = [self._signer(identity) for identity in identities]
        self._keys = Keys(
            host._network, signers, node.limits, node.ports.clock, self._answer, randomness, self._introduce_when_asked
        )

    def _policy_of(self, peer_id: PeerId) -> RunHandshakePolicy:
        policy = self._node.ports.handshake_policy
        return RunHandshakePolicy(policy.rule, peer_id, "trainer")

    def _signer(self, identity: Identity) -> Signer:
        notary = Notary(self._scope, identity.sign, verify, self._node.ports.verified)
        return Signer(identity.peer_id, notary, self._policy_of(identity.peer_id))

    async def run(self, beside: Coroutine[Any, Any, None] | None) -> None:
        node = self._node
        try:
            async with asyncio.TaskGroup() as tasks:
                if beside is not None:
                    tasks.create_task(beside)
                if self._lie.kind == "lone_commits":
                    tasks.create_task(self._keys.commit_alone(node.fragments, node.codec, self._tokens, self._victims))
                tasks.create_task(self._publish())
        finally:
            await self._keys.close()

    async def _publish(self) -> None:
        node = self._node
        while True:
            pattern = self._pattern()
            expires_at = node.ports.wall_clock() + node.membership.life_seconds
            for record in self._keys.records(pattern) if pattern is not None else ():
                encoded = encode_peer_record(replace(record, expires_at=expires_at), self._identities[record.peer_id])
                self._encoded[record.peer_id] = encoded
                await node.ports.store.publish_peer(node.who.run_id, record.peer_id, encoded, expires_at)
            await asyncio.sleep(node.membership.announce_seconds * self._chance.uniform(0.5, 1.5))

    def _honest(self) -> list[PeerRecord]:
        ours = {*self._friends, *self._identities}
        return [record for record in self._node.membership.members() if record.peer_id not in ours]

    def _pattern(self) -> PeerRecord | None:
        return next((record for record in self._honest() if record.is_training and record.versions), None)

    def _victims(self) -> list[PeerId]:
        takes_part = self._node.exchange.sending.takes_part
        return [record.peer_id for record in self._honest()] if takes_part else []

    def _tokens(self) -> int:
        trainer = self._node.mailbox.trainer
        return round(self._node.manifest.averaging.sync_every * trainer.tokens / max(1, trainer.inner_steps))

    def _introduce_when_asked(self, host: MemoryHost) -> None:
        async def answer(stream: Stream) -> None:
            await greet_incoming(stream, self._policy_of(host.peer_id))
            await stream.receive(MAX_PEER_RECORD_BYTES)
            await stream.send(self._encoded[host.peer_id])

        if self._answer == "greeting":
            host.handle(RECORD_PROTOCOL, answer)


def _ignore(*_: object) -> None: ...


async def _say_nothing(stream: Stream) -> None:
    await asyncio.Event().wait()
