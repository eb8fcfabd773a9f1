"""A peer that moves to another lineage of the anchor: its own work is neither lost nor applied twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from averaging.arrays import F64
from averaging.codec.codec import make_codec
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import RECENT_CONTRIBUTIONS, CommittedShard

SIZE, BLOCK = 40, 8
PARTS = tuple((start, start + BLOCK) for start in range(0, SIZE, BLOCK))


def normal(seed, size=SIZE):
    return 0.05 * np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def state_of(mode="carry", **options):
    rule = OuterRule(mode, 0.7, 0.5, **options)
    return FragmentState(rule, make_codec("int4", BLOCK), *np.zeros((3, SIZE), dtype=np.float32))


def decoded(state, sent):
    out = np.empty(SIZE, dtype=np.float32)
    state.codec.decode(sent.encoded, out)
    return out.astype(np.float64)


def commit(state, included):
    gradient = state.codec.encode(normal(7, BLOCK))
    state.apply([CommittedShard(start, end, gradient, 0.5, (start, end) in included) for start, end in PARTS], 10)


parts = st.lists(st.sampled_from(PARTS), unique=True).map(tuple)


@given(
    st.lists(st.tuples(parts, st.none() | parts), min_size=1, max_size=RECENT_CONTRIBUTIONS),
    st.booleans(),
    st.none() | parts,
    st.integers(-2, 2),
)
def test_work_is_in_the_lineage_or_waits(history, has_pending, pending_there, versions_ahead):
    """Per round: what this lineage committed of the own work, and what the other one did (None: not known)."""
    state = state_of()
    received = np.zeros(SIZE)
    here: dict[int, tuple[F64, tuple, int]] = {}
    own: dict[int, tuple[int, tuple]] = {}
    rounds = [*history, *([((), pending_there)] if has_pending else [])]
    for version, (included, there) in enumerate(rounds):
        work = normal(version)
        received += work
        state.receive_work(work, 10, 2, version)
        sent, _ = state.send(100 + version)
        here[version] = (decoded(state, sent), included, sent.sequence)
        if there is not None:
            own[version] = (sent.sequence, there)
        if version < len(history):
            commit(state, included)
    left_version = state.version
    state.adopt(normal(1), normal(2), max(0, left_version + versions_ahead), 99, b"")
    state.settle_in_new_lineage(left_version, own)
    committed = np.zeros(SIZE)
    given_up = np.zeros(SIZE)
    for version, (work, included, _) in here.items():
        known = version in own or version >= state.version
        is_pending = version == left_version
        # What returned from a round of unknown fate went with it.
        carries_unknown = any(before not in own and before < state.version for before in range(version))
        if is_pending and (not known or carries_unknown):
            given_up += work
            continue
        for start, end in own.get(version, (0, ()))[1] if known else included:
            committed[start:end] += work[start:end]
    assert state.pending is None
    unknown = [version for version in here if version not in own and version < state.version]
    if not unknown:
        assert float(np.abs(committed + state.residual - received).max()) < 1e-6
    elif not any(included for _, included, _ in here.values()) and not any(ranges for _, ranges in own.values()):
        # What went with the contribution that is given up is gone with it, and taken from nothing else.
        assert float(np.abs(committed + given_up + state.residual - received).max()) < 1e-6
    assert (state.unsent_tokens > 0) == (state.unsent_steps > 0)


@given(st.lists(parts, min_size=1, max_size=3))
def test_the_same_lineage_changes_nothing(rounds):
    state = state_of()
    for version, included in enumerate(rounds):
        state.receive_work(normal(version), 10, 2, version)
        state.send(version)
        commit(state, included)
    residual, tokens = state.residual.copy(), state.unsent_tokens
    state.settle_in_new_lineage(
        state.version, {version: (version, included) for version, included in enumerate(rounds)}
    )
    assert np.array_equal(state.residual, residual)
    assert state.unsent_tokens == tokens


def test_a_sequence_of_somebody_elses_time_is_not_ours():
    """The other lineage's commit holds an own contribution of the same version that was made on another anchor."""
    state = state_of()
    state.receive_work(normal(1), 10, 2, 0)
    state.send(5)
    commit(state, PARTS)
    state.adopt(normal(1), normal(2), 1, 99, b"")
    state.settle_in_new_lineage(1, {0: (4, PARTS)})
    np.testing.assert_allclose(state.residual, normal(1), rtol=1e-6, atol=1e-6)
    assert state.unsent_tokens == 10


def test_a_contribution_under_way_is_given_up_when_its_fate_is_unknown():
    """It may have been committed there; applying it again would count it twice."""
    state = state_of()
    state.receive_work(normal(1), 10, 2, 0)
    sent, _ = state.send(1)
    error = state.residual.copy()
    state.adopt(normal(1), normal(2), 30, 99, b"")
    state.settle_in_new_lineage(0, {29: (-1, ())})
    assert state.pending is None
    assert np.array_equal(state.residual, error)
    assert state.unsent_tokens == 0
    assert sent.tokens == 10


def test_returned_work_that_was_sent_again_does_not_come_twice_when_its_first_round_is_forgotten():
    """The other side committed it in round 0; here it returned, and went with contribution 1."""
    first = state_of()
    first.receive_work(normal(0), 10, 2, 0)
    first.send(0)
    commit(first, ())
    first.receive_work(normal(1), 10, 2, 1)
    second, _ = first.send(1)
    assert second.returned_since == 0
    commit(first, PARTS)
    first.recent = first.recent[1:]
    error = first.residual.copy()
    first.adopt(normal(3), normal(4), 2, 99, b"")
    first.settle_in_new_lineage(2, {0: (0, PARTS), 1: (-1, ())})
    assert np.array_equal(first.residual, error)
    assert first.unsent_tokens == 0


def test_expired_work_is_not_taken_away_when_the_new_lineage_has_it():
    state = state_of()
    state.receive_work(normal(1), 10, 2, 0)
    state.send(0)
    commit(state, ())
    state.drop_waiting()
    state.adopt(normal(3), normal(4), 1, 99, b"")
    state.settle_in_new_lineage(1, {0: (0, PARTS)})
    assert not state.residual.any()


def test_returned_work_does_not_come_back_when_a_dropped_sending_with_it_is_in_the_new_lineage():
    """There it returned and went with contribution 1; the side where this peer was for a while committed it at once."""
    state = state_of()
    state.receive_work(normal(0), 10, 2, 0)
    state.send(0)
    commit(state, ())
    state.send(1)
    commit(state, PARTS)
    state.adopt(normal(3), normal(4), 1, 99, b"")
    state.settle_in_new_lineage(2, {0: (0, PARTS)})
    state.drop_waiting()
    state.adopt(normal(5), normal(6), 2, 199, b"")
    state.settle_in_new_lineage(1, {0: (-1, ()), 1: (1, PARTS)})
    assert not state.residual.any()
    assert state.unsent_tokens == 0


def test_work_comes_back_when_the_dropped_sending_after_it_had_other_work():
    state = state_of()
    state.receive_work(normal(0), 10, 2, 0)
    sent, _ = state.send(0)
    commit(state, PARTS)
    state.receive_work(normal(1), 10, 2, 1)
    state.send(1)
    commit(state, ())
    state.drop_waiting()
    state.adopt(normal(3), normal(4), 2, 199, b"")
    state.settle_in_new_lineage(2, {0: (-1, ()), 1: (1, PARTS)})
    np.testing.assert_allclose(state.residual, decoded(state, sent), rtol=1e-6, atol=1e-6)
    assert state.unsent_tokens == 10


def test_memory_of_past_rounds_is_bounded():
    state = state_of()
    for version in range(20):
        state.receive_work(normal(version), 10, 2, version)
        state.send(version)
        commit(state, PARTS)
    assert len(state.recent) == RECENT_CONTRIBUTIONS


def test_streaming_keeps_no_accounts():
    state = state_of("streaming")
    state.receive_work(normal(1), 10, 2, 0)
    state.send(1)
    commit(state, ())
    error = state.residual.copy()
    state.adopt(normal(1), normal(2), 1, 99, b"")
    state.settle_in_new_lineage(1, {0: (1, PARTS)})
    assert np.array_equal(state.residual, error)
