"""Counts that are kept up say what counting anew would."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dht.access import AccessRule
from dht.identity import Identity
from dht.memory_host import MemoryHost
from dht.memory_store import MemoryRecords, MemoryStore
from dht.records import PeerRecord
from dht.swarm import SwarmView
from peer.doorkeeper import RunDoorkeeper
from peer.member_tally import MemberTally
from peer.membership import ANSWER_SECONDS, Membership
from peer.virtual_time import run_virtual
from tests.memory_networks import fixed_network, now
from tests.test_level_views import RUN_ID as LEVEL_RUN_ID
from tests.test_level_views import START, record_of
from tests.test_swarm import NOW, RUN_ID, any_records


@st.composite
def any_votes(draw: st.DrawFn) -> PeerRecord:
    return dataclasses.replace(draw(any_records()), level=draw(st.integers(0, 2)))


@given(st.lists(st.tuples(st.lists(any_votes(), max_size=5), st.integers(0, 40)), max_size=6))
def test_kept_up_counts_are_those_of_the_view(batches: list[tuple[list[PeerRecord], int]]) -> None:
    view, at, tally = SwarmView(RUN_ID), NOW, MemberTally()
    for records, later in batches:
        at += later
        before, view = view, view.merge(records, at)
        for peer_id in view.changed:
            tally.replace(before.get(peer_id, -math.inf), view.get(peer_id, at))
        members = view.members(at)
        assert tally.levels == Counter(record.level for record in members)
        for fragment in range(3):
            announced = [record for record in members if record.state != "joining" and fragment < len(record.versions)]
            heads = {(record.versions[fragment], record.digests[fragment]) for record in announced}
            assert set(tally.heads(fragment)) == heads


def membership_of(identity: Identity, records: MemoryRecords, describe: Callable[[], PeerRecord]) -> Membership:
    host = MemoryHost(records.network, identity.peer_id)
    rule = AccessRule(LEVEL_RUN_ID, describe().manifest_hash, "0.1.0")
    return Membership(
        identity,
        host,
        MemoryStore(records, host),
        RunDoorkeeper(rule, identity.peer_id, "trainer"),
        describe,
        announce_seconds=10.0,
        wall_clock=now,
        randomness=random.Random(1),
        on_view=lambda: None,
        on_joined=lambda record: None,
        on_left=lambda peer_id, reason: None,
        on_refused=lambda peer_id, reason: None,
    )


def test_introductions_within_a_second_get_one_record_until_something_has_changed() -> None:
    async def main() -> None:
        records, me = MemoryRecords(fixed_network(), now), Identity.generate()
        described = [record_of(me, state="joining")]
        membership = membership_of(me, records, lambda: described[0])

        async def answer_to_a_newcomer() -> PeerRecord:
            other = Identity.generate()
            newcomer = membership_of(other, records, lambda: record_of(other))
            assert await newcomer.introduce([membership.next_record()]) == ""
            got = newcomer.view.get(me.peer_id, now())
            assert got is not None
            return got

        first = await answer_to_a_newcomer()
        assert first.state == "joining"
        assert await answer_to_a_newcomer() == first
        described[0] = record_of(me, state="training")
        trains = await answer_to_a_newcomer()
        assert trains.state == "training"
        assert trains.sequence > first.sequence
        await asyncio.sleep(ANSWER_SECONDS)
        assert (await answer_to_a_newcomer()).sequence > trains.sequence

    run_virtual(main(), START)
