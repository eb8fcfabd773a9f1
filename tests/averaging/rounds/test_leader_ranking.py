"""Who leads."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.leader_ranking import rank_leaders
from tests.kit.network.memory_networks import named


@given(st.sets(st.integers(0, 1000), min_size=1, max_size=12), st.integers(0, 9), st.integers(0, 999))
def test_everybody_ranks_the_same_and_a_loss_changes_no_other_place(numbers, fragment, version):
    peers = [named(number) for number in sorted(numbers)]
    ranked = rank_leaders("run", fragment, version, peers)
    assert sorted(ranked) == sorted(peers)
    assert rank_leaders("run", fragment, version, [*reversed(peers), peers[0]]) == ranked
    without = rank_leaders("run", fragment, version, ranked[1:])
    assert without == ranked[1:]


def test_everybody_leads_about_equally_often():
    peers = [named(number) for number in range(8)]
    leads = Counter(rank_leaders("run", 3, version, peers)[0] for version in range(2000))
    assert set(leads) == set(peers)
    # 250 expected, deviation 15: six deviations.
    assert all(160 < count < 340 for count in leads.values())
