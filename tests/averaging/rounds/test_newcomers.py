"""The weight of a newcomer: counted by itself, carried by offers and rosters, equal for all, no good to a liar."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.codec.codec import make_codec
from averaging.fragment.shard_store import terms_of
from averaging.outer.contribution_weights import weights_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.rounds.leader import Leading
from averaging.rounds.learned_durations import RoundTiming
from averaging.wire.messages import (
    DIGEST_BYTES,
    MAX_NUM_ROUNDS,
    Commit,
    Offer,
    Plan,
    RosterEntry,
    ShardPlan,
    ShardResult,
)
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of, signed

SIZE = 16
DIGEST = bytes(DIGEST_BYTES)
PEERS = sorted(named(number) for number in range(4))
RULE = OuterRule("carry", 0.7, 0.5, newcomer_rounds=4)


def commit_of(num_rounds, version):
    roster = tuple(
        RosterEntry(peer, 100, 10, max(0, version - 1), 5, count) for peer, count in zip(PEERS, num_rounds, strict=True)
    )
    shards = (ShardResult(0, SIZE, 0, DIGEST, tuple(range(len(PEERS)))),)
    return signed(Commit(0, version, 0, PEERS[0], DIGEST, roster, shards))


def weights(round_):
    return weights_of([terms_of(RULE, round_, member) for member in range(len(round_.roster))], RULE)


def test_a_peer_counts_the_rounds_that_hold_its_work():
    state = FragmentState(RULE, make_codec("int4", 8), *np.zeros((3, SIZE), dtype=np.float32))
    work = np.ones(SIZE, dtype=np.float32)
    gradient = state.codec.encode(work[:8])
    for own_first, own_second, expected in ((True, True, 1), (True, False, 2), (False, False, 2), (False, True, 3)):
        state.receive_work(work, 10, 2, state.version)
        state.send(state.version + 1)
        state.apply(
            [CommittedShard(0, 8, gradient, 0.5, own_first), CommittedShard(8, SIZE, gradient, 0.5, own_second)], 1
        )
        assert state.num_rounds == expected
    state.apply([CommittedShard(0, SIZE, None, 0.5, False)], 1)
    assert state.num_rounds == 3
    state.num_rounds = MAX_NUM_ROUNDS
    state.receive_work(work, 10, 2, state.version)
    state.send(99)
    state.apply([CommittedShard(0, SIZE, state.codec.encode(work), 0.5, True)], 1)
    assert state.num_rounds == MAX_NUM_ROUNDS


def test_the_plan_says_what_the_offers_said():
    sent = []
    leading = Leading(
        PEERS[0],
        0,
        30,
        DIGEST,
        RoundTiming.with_bounds(60.0),
        lambda to, message: sent.append(message),
        0.5,
        notary_of(PEERS[0]),
        shards_for=lambda offers: (ShardPlan(0, SIZE, 0),),
    )
    counts = dict(zip(PEERS, (7, 0, 100, 3), strict=True))
    for peer, count in counts.items():
        leading.on_offer(peer, Offer(0, 30, 0, DIGEST, 29, 100, 10, 1, 1e6, True, count), len(PEERS), 1000.0)
    now = 1000.0
    while not (plans := [message for message in sent if isinstance(message, Plan)]):
        leading.check(PEERS, frozenset(), now)
        now += 1.0
    assert {entry.peer_id: entry.num_rounds for entry in plans[0].roster} == counts


@given(st.integers(0, MAX_NUM_ROUNDS), st.integers(0, 200), st.integers(0, MAX_NUM_ROUNDS))
def test_a_lie_about_seniority_gives_no_more_than_seniority(true_count, version, claimed):
    """Three peers that were there from the start, and one that says what it likes."""
    from_the_start = min(version, MAX_NUM_ROUNDS)
    *others, liar = weights(commit_of([from_the_start] * 3 + [claimed], version))
    assert liar <= others[0]
    *_, honest = weights(commit_of([from_the_start] * 3 + [min(true_count, version)], version))
    assert honest <= 0.25 + 1e-6


def test_the_tenth_round_weighs_in_full_and_the_first_little():
    found = weights(commit_of([50, 50, 50, 0], 60))
    assert found[3] / found[0] == pytest.approx(1 / 5)
    found = weights(commit_of([50, 50, 50, 4], 60))
    assert found[3] == found[0]
    plain = replace(RULE, newcomer_rounds=0)
    commit = commit_of([50, 50, 50, 0], 60)
    assert weights_of([terms_of(plain, commit, member) for member in range(4)], plain) == [0.25] * 4
