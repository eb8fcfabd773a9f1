"""Whole simulated nodes beside hosts that publish free records, and what became of the honest ones' rounds.

A seed is one attack and one control: the same swarm, lies and lines, without the records of further keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, get_args
from unittest import mock

from averaging.lanes.handshake import greet_incoming
from averaging.rounds.round_facts import RoundCommitted
from averaging.signing.round_signatures import Notary, Scope
from dht.ground.host import PeerId, Stream
from dht.identity.keys import Identity, verify
from dht.records.peer_record import MAX_PEER_RECORD_BYTES, PeerRecord, encode_peer_record
from peer.events.peer_events import Event
from peer.network.membership.membership import RECORD_PROTOCOL
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.node.node import Node
from tests.kit.chaos.free_records import RECORDS_OF_AN_HONEST_PEER, Answer, Keys, Signer
from tests.kit.chaos.hostile_scenario import scenario_of
from tests.simulator.adversaries.insiders import turn_hostile
from tests.simulator.network.host import MemoryHost
from tests.simulator.peer import simulated_identity
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.scenarios.spec import Lie, LieKind, SimulationSpec
from tests.simulator.simulation import simulate

TURN_HOSTILE = "tests.simulator.peer.turn_hostile"


@dataclass(frozen=True)
class Storm:
    """One seed: how many swarm members are honest, what the hostile hosts do, and what a caller of their keys meets."""

    seed: int
    num_honest: int
    lies: tuple[LieKind, ...]
    answer: Answer

    @classmethod
    def of_seed(cls, seed: int) -> Storm:
        """Of eight honest members and one or two hostile hosts, half of which send lone commits under their keys."""
        chance = random.Random(f"record storm {seed}")
        num_honest = chance.choice((4, 6, 8))
        kinds = chance.choice(((), (chance.choice(get_args(LieKind)),)))
        lies = ("lone_commits", *kinds) if chance.random() < 0.5 or not kinds else kinds
        answer: Answer = chance.choice(get_args(Answer))
        return cls(seed, num_honest, lies[: max(1, num_honest // 3)], answer)

    def honest(self) -> frozenset[PeerId]:
        return frozenset(simulated_identity(self.seed, index).peer_id for index in range(self.num_honest))

    def spec(self) -> SimulationSpec:
        return spec_of(scenario_of(self.lies, num_honest=self.num_honest), self.seed)


@dataclass
class Course:
    """What honest members saw of one simulation."""

    minutes: float
    rounds: set[tuple[int, int]] = field(default_factory=set)
    """(fragment, version) of commits with work of an honest member."""
    lone: set[tuple[int, int, int]] = field(default_factory=set)
    """(member, fragment, version) of commits that an honest member applied and in which no other was honest."""
    loss: float = math.nan
    """Of the heaviest anchors at the end, relative to the beginning."""
    highest_loss: float = math.nan
    """The highest that was measured in the second half of training."""
    violations: tuple[str, ...] = ()

    @property
    def rounds_per_minute(self) -> float:
        return len(self.rounds) / self.minutes


def play(storm: Storm, *, with_records: bool) -> Course:
    """Simulate one storm, or its control."""
    spec = storm.spec()
    course = Course(spec.training_seconds / 60)
    honest = storm.honest()

    def note(index: int, event: Event) -> None:
        if index < storm.num_honest and isinstance(event.fact, RoundCommitted):
            place = (event.fact.fragment, event.fact.version)
            if honest.intersection(event.fact.contributors):
                course.rounds.add(place)
            elif event.fact.contributors:
                course.lone.add((index, *place))

    with publishing_free_records(storm) if with_records else contextlib.nullcontext():
        result = simulate(spec, note)
    second_half = [point.loss for point in result.losses if point.hours * 3600 > spec.training_seconds / 2]
    course.loss = result.loss_last / result.loss_first
    course.highest_loss = max([result.loss_last, *second_half]) / result.loss_first
    course.violations = result.violations
    return course


@contextlib.contextmanager
def publishing_free_records(storm: Storm) -> Iterator[None]:
    """Meanwhile hostile nodes of the simulator also publish free records, and commit alone under all of their keys if
    their lie is to commit alone."""

    def with_records(
        node: Node, host: MemoryHost, lie: Lie, friends: frozenset[PeerId], randomness: random.Random
    ) -> Coroutine[Any, Any, None]:
        beside = None if lie.kind == "lone_commits" else turn_hostile(node, host, lie, friends, randomness)
        return _Publisher(node, host, storm, lie.kind).run(beside)

    with mock.patch(TURN_HOSTILE, with_records):
        yield


class _Publisher:
    def __init__(self, node: Node, host: MemoryHost, storm: Storm, kind: LieKind) -> None:
        self._node, self._storm, self._kind = node, storm, kind
        self._chance = random.Random(f"free records {storm.seed} {node.me}")
        count = RECORDS_OF_AN_HONEST_PEER * storm.num_honest
        seeds = (sha256(f"free records {storm.seed} {node.me} {key}".encode()).digest() for key in range(count))
        self._identities = {identity.peer_id: identity for identity in map(Identity.from_seed, seeds)}
        self._honest = storm.honest()
        self._encoded: dict[PeerId, bytes] = {}
        self._scope = Scope(node.who.run_id, node.manifest.hash)
        self._keys = Keys(
            host._network,
            [self._signer(identity) for identity in self._identities.values()],
            node.limits,
            node.ports.clock,
            storm.answer,
            self._chance,
            on_host=self._introduce_when_asked,
        )

    def _policy_of(self, peer_id: PeerId) -> RunHandshakePolicy:
        policy = self._node.ports.handshake_policy
        assert isinstance(policy, RunHandshakePolicy)
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
                if self._kind == "lone_commits":
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

    def _pattern(self) -> PeerRecord | None:
        members = (record for record in self._node.membership.members() if record.peer_id in self._honest)
        return next((record for record in members if record.is_training and record.versions), None)

    def _victims(self) -> list[PeerId]:
        if not self._node.exchange.sending.takes_part:
            return []
        return [record.peer_id for record in self._node.membership.members() if record.peer_id in self._honest]

    def _tokens(self) -> int:
        trainer = self._node.mailbox.trainer
        return round(self._node.manifest.averaging.sync_every * trainer.tokens / max(1, trainer.inner_steps))

    def _introduce_when_asked(self, host: MemoryHost) -> None:
        async def answer(stream: Stream) -> None:
            await greet_incoming(stream, self._policy_of(host.peer_id))
            await stream.receive(MAX_PEER_RECORD_BYTES)
            await stream.send(self._encoded[host.peer_id])

        if self._storm.answer == "greeting":
            host.handle(RECORD_PROTOCOL, answer)
