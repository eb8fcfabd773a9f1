"""A peer that moves to another lineage: what that may have is given up, what was never sent waits on."""

from __future__ import annotations

import numpy as np
import pytest

from averaging.codec.codec import make_codec
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import ShardStore
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.wire.messages import Commit, RosterEntry, ShardResult
from dht.ground.host import PeerId
from tests.kit.notaries import notary_of

ME, OTHER = PeerId("12D3KooWMe"), PeerId("12D3KooWOther")
SIZE, BLOCK = 40, 8
PARTS = tuple((start, start + BLOCK) for start in range(0, SIZE, BLOCK))


def normal(seed, size=SIZE):
    return 0.05 * np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def state_of(mode="carry", **options):
    rule = OuterRule(mode, 0.7, 0.5, **options)
    return FragmentState(rule, make_codec("int4", BLOCK), *np.zeros((3, SIZE), dtype=np.float32))


def commit(state, included):
    gradient = state.codec.encode(normal(7, BLOCK))
    state.apply([CommittedShard(start, end, gradient, 0.5, (start, end) in included) for start, end in PARTS], 10)


def state_with(*, sent, waiting, came_back=False):
    """At version 5 (6 when something came back): 10 tokens under way, 10 that wait."""
    state = state_of()
    state.version = 5
    if came_back:
        state.receive_work(normal(0), 10, 2, 5)
        state.send(0)
        commit(state, ())
    if sent:
        state.receive_work(normal(1), 10, 2, state.version)
        state.send(1)
    if waiting:
        state.receive_work(normal(2), 10, 2, state.version)
    return state


def go_elsewhere(state, common_version, **told):
    left_version = state.version
    state.adopt(normal(1), normal(2), left_version + 1, 99, b"")
    state.settle_in_new_lineage(left_version, common_version, **told)


@pytest.mark.parametrize("common_version", [None, 3])
def test_a_fork_costs_what_is_under_way_and_nothing_that_was_never_sent(common_version):
    state = state_with(sent=True, waiting=True)
    residual = state.residual.copy()
    go_elsewhere(state, common_version)
    assert state.pending is None
    assert np.array_equal(state.residual, residual)
    assert (state.unsent_tokens, state.unsent_steps) == (10, 2)


def test_after_a_fork_nothing_waits_that_came_back_from_a_round():
    """The other side may have committed that round with it."""
    state = state_with(sent=False, waiting=True, came_back=True)
    assert state.unsent_tokens == 20
    go_elsewhere(state, 5)
    assert not state.residual.any()
    assert state.unsent_tokens == 0


def test_what_came_back_and_was_sent_again_is_given_up_with_that_sending():
    state = state_with(sent=True, waiting=True, came_back=True)
    residual = state.residual.copy()
    go_elsewhere(state, 5)
    assert state.pending is None
    assert np.array_equal(state.residual, residual)


@pytest.mark.parametrize("is_missed", [False, True])
def test_the_same_lineage_further_on_costs_at_most_what_is_under_way(is_missed):
    state = state_with(sent=True, waiting=True)
    go_elsewhere(state, 5, is_pending_missed=is_missed)
    assert state.pending is None
    assert state.unsent_tokens == 10 + 10 * is_missed
    expected = normal(2) + normal(1) if is_missed else normal(2)
    assert float(np.abs(state.residual - expected).max()) < (1e-6 if is_missed else 0.02)


def test_what_a_restarted_process_finds_may_have_been_sent():
    state = state_with(sent=False, waiting=True)
    found = state_of()
    found.residual[:] = state.residual
    found.give_back(state.own_work)
    go_elsewhere(found, None)
    assert not found.residual.any()


def test_streaming_keeps_no_accounts():
    state = state_of("streaming")
    state.receive_work(normal(1), 10, 2, 0)
    state.send(1)
    commit(state, ())
    error = state.residual.copy()
    go_elsewhere(state, 0)
    assert np.array_equal(state.residual, error)


# --- what it costs, as the event tells ---


def commit_of(version, anchor, *contributions):
    """A commit with these (peer, sequence); a sequence below 0 is in the roster and in no shard."""
    roster = tuple(RosterEntry(peer_id, 10, 1, version, abs(sequence)) for peer_id, sequence in contributions)
    included = tuple(index for index, (_, sequence) in enumerate(contributions) if sequence >= 0)
    return Commit(0, version, 0, OTHER, anchor * 16, roster, (ShardResult(0, SIZE, 0, b"d" * 16, included),))


HERE = (commit_of(3, b"3", (ME, 3)), commit_of(4, b"4", (ME, 4)), commit_of(5, b"5", (ME, 5)))


def fragment_at(version, digest):
    state = state_of()
    timing = Waits.with_bounds(60.0)
    machine = RoundMachine(ME, "run", 0, SIZE, BLOCK, timing, notary_of(ME), version=version, anchor_digest=digest)
    machine.log.replace(HERE)
    state.version, state.digest = version, digest * 2
    return FragmentRuntime(0, state, machine, ShardStore(state.codec, SIZE))


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ((commit_of(4, b"4", (OTHER, 9)), commit_of(5, b"x", (OTHER, 9))), 30),  # fork at 4: two rounds, one under way
        ((commit_of(4, b"4", (ME, 4)), commit_of(5, b"x", (OTHER, 9))), 20),  # the other side has one of these, too
        ((commit_of(5, b"5", (ME, 5)), commit_of(6, b"6", (OTHER, 9))), 0),  # the same lineage; the round was missed
        ((commit_of(5, b"5", (ME, 5)), commit_of(6, b"6", (ME, -6))), 0),  # there, but in no shard of it
        ((commit_of(6, b"6", (ME, 6)),), 0),  # the same lineage, and the contribution is in it
        ((commit_of(7, b"y", (OTHER, 9)),), 10),  # nobody knows whether it is the same: what is under way
        ((), 10),
    ],
)
def test_the_tokens_are_told_that_a_new_anchor_costs(commits, expected):
    fragment = fragment_at(6, b"6" * 16)
    state = fragment.state
    state.receive_work(normal(1), 10, 2, 6)
    state.send(6)
    lost = fragment.enter_lineage(lambda state: state.adopt(normal(1), normal(2), 8, 99, b"8" * 32), commits, ME)
    assert lost == expected
    assert state.pending is None
    assert fragment.log.digests == {8: b"8" * 32}
