"""One fragment at one peer: no work is lost or counted twice, and the live parameters show what they should."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.codec.codec import make_codec
from averaging.outer.change_buffers import Discarded
from averaging.outer.contribution_weights import Terms
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.outer.shard_mean import keep_error, reduce_shard
from tests.kit.averages.codec_data import decoded

CODECS = ("fp32", "int4")
SIZE, BLOCK = 45, 8
RULE = OuterRule("carry", 0.7, 0.5)
RULES = (
    OuterRule("sync", 0.7, 0.9),
    OuterRule("eager", 0.5, 0.5),
    OuterRule("carry", 0.7, 0.5, overlay_gain=0.0),
    OuterRule("carry", 0.7, 0.5, overlay_gain=0.7),
    OuterRule("carry", 0.7, 0.5, overlay_gain=1.0),
)
EPSILON = 2.0**-23


def normal(seed, size=SIZE, scale=0.05):
    return scale * np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def zeros(size=SIZE):
    return np.zeros(size, dtype=np.float32)


def state_of(rule, codec="int4", seed=0, block_size=BLOCK):
    anchor = normal(seed, scale=1.0)
    return FragmentState(rule, make_codec(codec, block_size), anchor, zeros(), zeros())


def in_small_chunks():
    return mock.patch("averaging.outer.fragment_anchor_and_residual.CHUNK_VALUES", 16)


actions = st.one_of(
    st.tuples(st.just("work"), st.integers(0, 999)),
    st.tuples(st.just("send"), st.just(0)),
    # Each part of the fragment: void, committed without own work, or committed with it.
    st.tuples(
        st.just("commit"),
        st.lists(
            st.tuples(st.integers(1, SIZE // BLOCK), st.sampled_from(["void", "without", "with", "with"])), max_size=3
        ),
    ),
    st.tuples(st.just("not in roster"), st.integers(0, 999)),
    st.tuples(st.just("take back"), st.just(0)),
    st.tuples(st.just("adopt"), st.integers(0, 999)),
    st.tuples(st.just("adopt, committed there"), st.integers(0, 999)),
    st.tuples(st.just("share"), st.integers(1, 8)),
)


class Peer:
    """A fragment state, a trainer's live parameters beside it, and the books."""

    def __init__(self, rule, codec):
        self.state = state_of(rule, codec)
        self.live = self.state.anchor.copy()
        self.received = np.zeros(SIZE)
        self.committed = np.zeros(SIZE)
        self.sequence = self.num_operations = 0

    def show(self, change):
        if change is not None:
            assert change.dtype == np.float32
            self.live += change

    def do(self, action, argument):
        state, self.num_operations = self.state, self.num_operations + 1
        if action == "work":
            work = normal(argument)
            self.live -= work
            self.received += work
            state.receive_work(work, 10, 2, state.version)
        elif action == "send":
            if state.unsent_tokens and state.pending is None:
                self.sequence += 1
                self.show(state.send(self.sequence)[1])
        elif action == "commit":
            self.commit(argument)
        elif action == "not in roster":
            gradient = state.codec.encode(normal(argument))
            self.show(state.apply([CommittedShard(0, SIZE, gradient, 0.7, False)], 5)[0])
        elif action == "take back":
            self.show(state.take_back())
        elif action == "share":
            state.own_share = 1 / argument
        else:
            before = state.shown()
            if action == "adopt, committed there" and state.pending is not None:
                self.committed += decoded(state.codec, state.pending.encoded)
                state.pending = None
            elif state.pending is not None:
                state.take_back()
            state.adopt(normal(argument, scale=1.0), normal(argument + 1), state.version + 3, 7, b"")
            self.show(state.shown() - before)

    def commit(self, parts):
        state, shards, start = self.state, [], 0
        own = None if state.pending is None else decoded(state.codec, state.pending.encoded)
        for position, (num_blocks, kind) in enumerate([*parts, (SIZE, "with")]):
            end = min(start + num_blocks * BLOCK, SIZE)
            if start == end:
                break
            with_own = kind == "with" and own is not None
            gradient = None if kind == "void" else state.codec.encode(normal(position, end - start))
            shards.append(CommittedShard(start, end, gradient, 0.5, with_own))
            if with_own:
                self.committed[start:end] += own[start:end]
            start = end
        version = state.version
        self.show(state.apply(shards, 5)[0])
        assert state.version == version + 1
        assert state.pending is None

    def unaccounted(self):
        kept = self.committed + self.state.residual
        if self.state.pending is not None:
            kept = kept + decoded(self.state.codec, self.state.pending.encoded)
        return float(np.abs(kept - self.received).max())


@settings(max_examples=60)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.mode}{rule.overlay_gain:g}")
@given(codec=st.sampled_from(CODECS), todo=st.lists(actions, min_size=5, max_size=25))
def test_no_work_is_lost_or_counted_twice_and_the_live_parameters_never_drift(rule, codec, todo):
    peer = Peer(rule, codec)
    with in_small_chunks():
        for action, argument in [("work", 1), ("send", 0), *todo]:
            peer.do(action, argument)
            state = peer.state
            # Every operation adds two float32 numbers below 8 at most, and rounds once.
            assert peer.unaccounted() <= 8 * EPSILON * peer.num_operations
            assert float(np.abs(peer.live - state.shown()).max()) <= 32 * EPSILON * peer.num_operations, action
            # Waiting tokens come with waiting work.
            assert (state.unsent_tokens > 0) == (state.unsent_steps > 0)
            assert state.unsent_tokens <= 10 * (len(todo) + 2)
            if not state.unsent_tokens and state.pending is None and codec == "int4":
                # Only the codec's error may wait without tokens: less than a block's largest value.
                assert float(np.abs(state.residual).max()) < 0.5


@given(st.sampled_from(RULES), st.integers(0, 99))
def test_a_full_cycle_counts_tokens_once(rule, seed):
    state = state_of(rule)
    state.version = 9
    state.receive_work(normal(seed), 100, 10, 8)
    state.receive_work(normal(seed + 1), 50, 5, 9)
    sent, _ = state.send(1)
    assert (sent.tokens, sent.steps, sent.base_version) == (150, 15, 8)
    state.receive_work(normal(seed + 2), 30, 3, 9)
    state.take_back()
    assert (state.unsent_tokens, state.unsent_steps, state.unsent_base_version) == (180, 18, 8)
    sent, _ = state.send(2)
    gradient = state.codec.encode(normal(3, 24))
    rest = state.codec.encode(normal(4, SIZE - 24))
    state.apply([CommittedShard(0, 24, gradient, 0.5, True), CommittedShard(24, SIZE, rest, 0.5, False)], 99)
    assert state.unsent_tokens == round(180 * (SIZE - 24) / SIZE)
    assert (state.unsent_base_version, state.lineage_tokens, state.version) == (8, 99, 10)


def test_work_that_is_too_old_goes_from_its_own_values_alone():
    """The first values were averaged a round ago; the others came back again and again."""
    state, shards = state_of(RULE), [CommittedShard(0, 16, None, 0.5, True), CommittedShard(16, SIZE, None, 0.5, False)]
    for version in range(3):
        state.receive_work(normal(version), 100, 10, version)
        state.send(version)
        state.apply(shards, 1)
    state.receive_work(normal(9), 40, 4, 3)
    assert [(part.end, part.tokens, part.steps, part.base_version) for part in state.unsent_parts] == [
        *((16, 40, 4, 3), (SIZE, 340, 34, 0)),
    ]
    live, kept, before = state.shown(), state.residual.copy(), state.unsent_tokens
    change, tokens = state.drop_late(1)
    assert np.array_equal(state.residual[:16], kept[:16])
    assert not state.residual[16:].any()
    np.testing.assert_allclose(live + change, state.shown(), rtol=1e-6, atol=1e-6)
    assert (state.unsent_tokens, state.unsent_base_version) == (before - tokens, 3)
    assert [(part.end, part.tokens) for part in state.unsent_parts] == [(16, 40), (SIZE, 0)]
    change, _ = state.drop_late(4)
    assert (state.unsent_tokens, state.unsent_parts, state.residual.any()) == (0, (), False)


def test_work_that_is_not_finite_is_not_sent_and_nothing_changes():
    state = state_of(RULE)
    work = normal(1)
    work[3] = float("nan")
    state.receive_work(work, 1, 1, 0)
    with pytest.raises(ValueError, match="nan at position 3"):
        state.send(1)
    assert state.pending is None
    assert state.unsent_tokens == 1


def test_in_mode_streaming_nothing_is_shown_and_nothing_returns():
    """The blend keeps a share of the work in the live parameters, and the next outer gradient contains that."""
    state = state_of(OuterRule("streaming", 0.7, 0.9))
    state.receive_work(normal(1), 10, 2, 0)
    assert state.send(1)[1] is None
    error = state.residual.copy()
    _, num_returned = state.apply([CommittedShard(0, SIZE, None, 0.0, False)], 0)
    assert num_returned == 0
    assert np.array_equal(state.residual, error)
    assert state.unsent_tokens == 0


# ---------------------------------------------------------------------------------------------- reducing a shard


def contributions(codec, seeds, staleness=0):
    return [(index, Terms(10 + seed, 2, staleness), codec.encode(normal(seed, 50))) for index, seed in enumerate(seeds)]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=40))
def test_the_mean_is_the_weighted_mean(seeds):
    codec = make_codec("fp32", BLOCK)
    reduction = reduce_shard(contributions(codec, seeds), RULE, codec, 50, None)
    assert reduction is not None
    weights = [(10 + seed) ** 2 / 2 for seed in seeds]
    pairs = zip(weights, seeds, strict=True)
    mean = sum((weight * normal(seed, 50).astype(np.float64) for weight, seed in pairs), np.zeros(50)) / sum(weights)
    np.testing.assert_allclose(decoded(codec, reduction.encoded), mean, rtol=1e-5, atol=1e-7)


def test_a_mean_beyond_the_codec_is_no_result_and_no_error():
    codec = make_codec("fp32", BLOCK)
    largest = codec.encode(np.full(50, 2.0**126, dtype=np.float32))
    error = keep_error(np.full(50, 2.0**120, dtype=np.float32), BLOCK)
    assert reduce_shard([(0, Terms(1, 1, 0), largest)], RULE, codec, 50, error) is None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.mode} {rule.overlay_gain}")
@pytest.mark.parametrize("own_included", [True, False])
def test_a_change_that_nobody_sees_takes_a_chunk_of_memory_and_moves_the_rest_alike(rule, own_included):
    seen, unseen = (state_of(rule) for _ in range(2))
    discarded = Discarded()
    with in_small_chunks():
        for state, out in ((seen, np.empty(SIZE, dtype=np.float32)), (unseen, discarded)):
            state.receive_work(normal(1), 100, 4, 0)
            sent = state.encode_work(1)
            state.after_send(sent, out)
            shards = [
                CommittedShard(0, 24, sent.encoded.slice_blocks(0, 24), rule.outer_lr, own_included),
                CommittedShard(24, SIZE, None, 0.0, False),
            ]
            assert state.apply(shards, 100, out)[0] is out
    for name in ("anchor", "momentum", "residual"):
        assert np.array_equal(getattr(seen, name), getattr(unseen, name))
    assert seen.version == unseen.version == 1
    assert discarded[0:1].base.nbytes <= 4 * 16
