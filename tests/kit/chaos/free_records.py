"""Many keys of one host: right records that cost nothing, and commits of each key alone.

`Keys` is what both kinds of simulated swarm share: `hostility` uses it for a `ChaosPeer`, `record_storm` for whole
nodes. A key has a host and lanes of its own, so that others can call it and it can send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Literal

import numpy as np

from averaging.codec.codec import Codec
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import payload_digest
from averaging.lanes.handshake import HandshakePolicy
from averaging.lanes.links import ROUND_PROTOCOL, LinkPorts, Links
from averaging.signing.round_signatures import Notary
from averaging.wire import frames
from averaging.wire.field_checks import Limits
from averaging.wire.frames import commit_digest
from averaging.wire.messages import DIGEST_BYTES, Commit, Plan, Result, RosterEntry, ShardPlan, ShardResult
from dht.ground.host import PeerId, Stream
from dht.records.peer_record import PeerRecord
from tests.simulator.network.host import MemoryHost, MemoryNetwork

RECORDS_OF_AN_HONEST_PEER = 10
"""Records that one hostile host publishes for each honest member."""
STEP_BACK = 10.0
"""Times the momentum that a lone commit takes the anchor back."""
LEAST_STEP_BACK = 1e-3
LARGEST_MOMENTUM = 1e30
"""Whoever follows such commits has soon more than codecs take."""
LOOK_SECONDS = 0.1
"""How often keys that commit alone look whether a new version is there."""
KEYS_OF_A_VERSION = 8
"""Keys that close one version alone, others each time."""

EMPTY: Mapping[PeerId, Links] = MappingProxyType({})

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
        links: of a key that has a host already.
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
        links: Mapping[PeerId, Links] = EMPTY,
        on_host: Callable[[MemoryHost], None] = lambda host: None,
    ) -> None:
        self._on_host = on_host
        self.signers = signers
        self._network, self._limits, self._clock = network, limits, clock
        self._answer, self._chance = answer, chance
        self._session = chance.getrandbits(62)
        self._sequence = 0
        self._given, self._links = links, dict[PeerId, Links]()
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
        before = machine.history.get(machine.version - 1)
        previous = b"" if before is None else commit_digest(before)
        mean = frames.encode(Result(fragment.index, machine.version, 0, 0, size))
        for signer in self._chance.sample(self.signers, min(KEYS_OF_A_VERSION, len(self.signers))):
            entry = RosterEntry(
                signer.peer_id, tokens, max(1, tokens // 10), machine.version, self._chance.getrandbits(40)
            )
            commit = lone_commit(
                signer.notary,
                fragment,
                machine.version,
                machine.anchor_digest,
                entry,
                payload_digest(payload),
                previous,
            )
            links = self._links_of(signer)
            for peer_id in others:
                links.post(peer_id, [mean, memoryview(payload)], "data")
                links.post(peer_id, [frames.encode(commit)])

    def _links_of(self, signer: Signer) -> Links:
        links = self._given.get(signer.peer_id) or self._links.get(signer.peer_id)
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


def lone_commit(
    notary: Notary,
    fragment: FragmentRuntime,
    version: int,
    anchor: bytes,
    entry: RosterEntry,
    mean: bytes,
    previous: bytes = b"",
) -> Commit:
    """A commit of one member, by its form one like any other.

    Args:
        anchor, mean: their digests, as messages have them.
        previous: digest of the commit before.
    """
    size, me = fragment.machine.num_values, entry.peer_id
    plan = Plan(fragment.index, version, 0, anchor[:DIGEST_BYTES], (entry,), (ShardPlan(0, size, 0),), 10.0, 20.0)
    result = ShardResult(0, size, 0, mean, (0,))
    result = replace(result, signature=notary.sign_result(plan, me, result))
    commit = Commit(fragment.index, version, 0, me, plan.anchor_digest, (entry,), (result,), previous)
    signed: Commit = notary.sign_commit(commit)
    return signed


def _ignore(*_: object) -> None: ...


async def _say_nothing(stream: Stream) -> None:
    await asyncio.Event().wait()
