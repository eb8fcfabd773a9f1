"""Counts that are kept up say what counting anew would."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dht.records.peer_record import PeerRecord
from dht.records.swarm_view import SwarmView
from peer.network.membership.member_counts import MemberTally
from tests.kit.any_records import any_records
from tests.kit.records import NOW, RUN_ID


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
