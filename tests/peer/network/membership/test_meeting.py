"""A record says where to look: only an answer ends a suspicion, and only a member that was met has joined."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from averaging.lanes.handshake import greet_incoming
from averaging.rounds.presence import MemberPresence
from averaging.rounds.round_facts import Fact
from dht.admission.handshake_frames import AccessRule
from dht.ground.host import Stream
from dht.identity.keys import Identity, make_run_id
from dht.records.peer_record import MAX_PEER_RECORD_BYTES, PeerRecord, encode_peer_record
from dht.records.signature_cache import VerifiedRecords
from peer.events.peer_events import MemberChanged
from peer.network.membership.membership import (
    FIRST_SUSPICION_SECONDS,
    LONGEST_SUSPICION_SECONDS,
    MEETINGS_AT_ONCE,
    RECORD_PROTOCOL,
    Membership,
)
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.network.memory_networks import fixed_network, now
from tests.kit.records import make_record
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.network.store import MemoryRecords, MemoryStore
from tests.simulator.virtual_time import run_virtual

START = 1_800_000_000.0
ANNOUNCE_SECONDS = 10.0
RUN_ID = make_run_id("tiny", Identity.generate().public_key)
RULE = AccessRule(RUN_ID, make_record(Identity.generate().peer_id).manifest_hash, "0.1.0")


class Scene:
    """One member, and what it was told; keys of others publish records in the same network."""

    def __init__(self) -> None:
        self.network: MemoryNetwork = fixed_network()
        self.records = MemoryRecords(self.network, now, verified=VerifiedRecords(10_000))
        self.facts: list[Fact] = []
        me = Identity.generate()
        self.host = MemoryHost(self.network, me.peer_id)
        self.presence = MemberPresence(me.peer_id)
        record = make_record(me.peer_id, run_id=RUN_ID)
        self.membership = Membership(
            *(me, self.host, MemoryStore(self.records, self.host)),
            RunHandshakePolicy(RULE, me.peer_id, "trainer"),
            *(lambda: record, RUN_ID, RULE.manifest_hash),
            announce_seconds=ANNOUNCE_SECONDS,
            wall_clock=now,
            randomness=random.Random(1),
            on_view=lambda: None,
            report=self.facts.append,
            on_refused=lambda peer_id, reason: None,
            on_met=lambda peer_id, _: self.presence.meet(peer_id),
            has_been_there=self.presence.has_been_there,
            counts=self.presence.counts,
        )

    async def publish(self, identities: Sequence[Identity], sequence: int = 1, rules: int = 0) -> None:
        """Put a record of each key into the DHT, and let the member look."""
        for identity in identities:
            expires_at = now() + 90.0
            record = make_record(identity.peer_id, run_id=RUN_ID, sequence=sequence, expires_at=expires_at, rules=rules)
            store = MemoryStore(self.records, self.host)
            await store.publish_peer(RUN_ID, identity.peer_id, encode_peer_record(record, identity), expires_at)
        await asyncio.sleep(1.0)
        await self.membership.look()

    def answer(self, identity: Identity) -> None:
        """Give a key a host that welcomes members and returns its record."""
        policy = RunHandshakePolicy(RULE, identity.peer_id, "trainer")

        async def serve(stream: Stream) -> None:
            await greet_incoming(stream, policy)
            await stream.receive(MAX_PEER_RECORD_BYTES)
            record: PeerRecord = make_record(identity.peer_id, run_id=RUN_ID, sequence=1, expires_at=now() + 90.0)
            await stream.send(encode_peer_record(record, identity))

        MemoryHost(self.network, identity.peer_id).handle(RECORD_PROTOCOL, serve)

    def joined(self) -> list[str]:
        return [fact.remote for fact in self.facts if isinstance(fact, MemberChanged) and fact.has_joined]


def test_a_peer_of_other_rules_is_no_member() -> None:
    async def main() -> None:
        scene, same, other = Scene(), Identity.generate(), Identity.generate()
        await scene.publish([same])
        await scene.publish([other], rules=2)
        assert [record.peer_id for record in scene.membership.members()] == [same.peer_id]

    run_virtual(main(), START)


def test_newer_records_end_no_suspicion_and_its_time_doubles() -> None:
    async def main() -> None:
        scene, key = Scene(), Identity.generate()
        await scene.publish([key])
        lengths = []
        for sequence in range(2, 9):
            scene.membership.suspect(key.peer_id, "it did not answer")
            began = now()
            await scene.publish([key], 10 * sequence)
            assert scene.membership.split()[0] == []
            while not scene.membership.members():
                await asyncio.sleep(1.0)
                await scene.publish([key], 10 * sequence + 1)
            # It may be tried again by now, and it still counts in no round.
            assert scene.membership.suspected_trainers() == [key.peer_id]
            assert scene.membership.split()[0] == []
            lengths.append(round(now() - began))
        wanted = [min(FIRST_SUSPICION_SECONDS * 2**number, LONGEST_SUSPICION_SECONDS) for number in range(7)]
        assert all(want <= length <= want + 4 for want, length in zip(wanted, lengths, strict=True))
        assert scene.joined() == []

    run_virtual(main(), START)


def test_an_answer_ends_a_suspicion_and_the_next_one_is_longer() -> None:
    async def main() -> None:
        scene, key = Scene(), Identity.generate()
        await scene.publish([key])
        for _ in range(2):
            scene.membership.suspect(key.peer_id, "it did not answer")
            assert scene.membership.split()[0] == []
            scene.membership.heard_from(key.peer_id)
            assert scene.membership.split()[0] == [key.peer_id]
        scene.membership.suspect(key.peer_id, "it did not answer")
        began = now()
        while not scene.membership.members():
            await asyncio.sleep(1.0)
            await scene.publish([key], round(now()))
        assert now() - began >= 4 * FIRST_SUSPICION_SECONDS
        assert [fact.has_joined for fact in scene.facts] == [True, False, True, False]

    run_virtual(main(), START)


def test_a_hundred_free_records_join_nothing_and_cost_a_few_calls() -> None:
    async def main() -> None:
        scene = Scene()
        keys = [Identity.generate() for _ in range(100)]
        meeting = asyncio.ensure_future(scene.membership.meet_others())
        tried: set[str] = set()
        suspect = scene.membership.suspect
        scene.membership.suspect = lambda peer_id, reason: (tried.add(peer_id), suspect(peer_id, reason))[1]  # type: ignore[method-assign]
        for sequence in range(1, 6):
            await scene.publish(keys, sequence)
            await asyncio.sleep(ANNOUNCE_SECONDS)
        assert scene.joined() == []
        assert scene.membership.speeds() == []
        assert 0 < len(tried) <= 15 * MEETINGS_AT_ONCE
        meeting.cancel()

    run_virtual(main(), START)


def test_a_member_that_writes_and_answers_nothing_comes_and_goes_more_and_more_seldom() -> None:
    """Each time costs a call, a line on the volunteer's screen, and a new look at who takes part."""

    async def main() -> None:
        scene, key = Scene(), Identity.generate()
        scene.presence.meet(key.peer_id)
        meeting = asyncio.ensure_future(scene.membership.meet_others())
        for second in range(300):
            if second % 30 == 0:
                await scene.publish([key], 1 + second)
            scene.membership.heard_from(key.peer_id)
            await asyncio.sleep(1.0)
        assert 2 <= len(scene.joined()) <= 8
        meeting.cancel()

    run_virtual(main(), START)


def test_members_that_met_introduce_themselves_to_each_other_once() -> None:
    """Otherwise the one that opened the stream counts at the other in a flood of records, and not the other way."""

    async def main() -> None:
        scene, key = Scene(), Identity.generate()
        scene.answer(key)
        scene.presence.meet(key.peer_id)
        await scene.publish([key])
        introduced: list[str] = []
        exchange = scene.membership._exchange
        scene.membership._exchange = lambda peer_id, sealed: (introduced.append(peer_id), exchange(peer_id, sealed))[1]  # type: ignore[method-assign]
        meeting = asyncio.ensure_future(scene.membership.meet_others())
        await asyncio.sleep(3 * ANNOUNCE_SECONDS)
        assert introduced == [key.peer_id]
        meeting.cancel()

    run_virtual(main(), START)
