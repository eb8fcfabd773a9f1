"""The digest of the next anchor is worked out early, and is never another one than that of the anchor itself."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from averaging.codec.codec import make_codec
from averaging.fragment.next_anchor_digest import CHUNK_VALUES, DigestAhead, StepKey
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.outer_step import anchor_digest, outer_step_, outer_step_into
from averaging.outer.own_contributions import CommittedShard
from tests.kit.averages.codec_data import same_bits

NUM_VALUES = 3 * CHUNK_VALUES + 1000
CUTS = [(0, 200_064), (200_064, 600_064), (600_064, NUM_VALUES)]
CODEC = make_codec("int4")
RULE = OuterRule("sync", 0.7, 0.9)


def normal(seed, size=NUM_VALUES):
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def state_of():
    return FragmentState(RULE, CODEC, normal(1), normal(2), np.zeros(NUM_VALUES, dtype=np.float32))


def shards_of(rate=0.7):
    encoded = CODEC.encode(normal(3))
    found = []
    for number, (start, end) in enumerate(CUTS):
        gradient = encoded.slice_blocks(start, end - start)
        key = StepKey(start, end, bytes([number]) * 16, rate, 0.9)
        found.append((key, gradient, CommittedShard(start, end, gradient, rate, True, 0.9)))
    return found


def ahead_of(state, shards, order):
    ahead = DigestAhead(CODEC, NUM_VALUES)
    ahead.begin(0)
    for number in order:
        key, gradient, _ = shards[number]
        ahead.add(key, gradient)
        ahead.work(state, ahead.ready())
    return ahead


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2]])
def test_chunks_known_early_are_those_of_the_anchor_that_follows(order):
    state, shards = state_of(), shards_of()
    before = anchor_digest(state.anchor, state.momentum)
    known = ahead_of(state, shards, order).known(0, [key for key, _, _ in shards])
    assert anchor_digest(state.anchor, state.momentum) == before, "looking ahead moved the anchor"
    assert len(known) == (4 if len(order) == 3 else 3)
    state.apply([shard for _, _, shard in shards], 1)
    assert state.refresh_digest(known) == anchor_digest(state.anchor, state.momentum)


class _SlowKey(StepKey):
    """In the middle of whose comparison another result arrives, as it may where threads take turns."""

    __slots__ = ()
    arrives: ClassVar[list] = []

    def __getattribute__(self, name):
        if name == "start" and (arrives := type(self).arrives):
            arrives.pop()()
        return super().__getattribute__(name)


def test_results_may_arrive_while_earlier_ones_are_hashed():
    state, shards = state_of(), shards_of()
    ahead = DigestAhead(CODEC, NUM_VALUES)
    ahead.begin(0)
    for number, (key, gradient, _) in enumerate(shards[1:]):
        slow = _SlowKey(key.start, key.end, key.digest, key.outer_lr, key.outer_momentum)
        ahead.add(slow if number == 0 else key, gradient)
    _SlowKey.arrives.append(lambda: ahead.add(shards[0][0], shards[0][1]))
    ahead.work(state, ahead.ready())
    assert not _SlowKey.arrives
    ahead.work(state, ahead.ready())
    state.apply([shard for _, _, shard in shards], 1)
    known = ahead.known(0, [key for key, _, _ in shards])
    assert state.refresh_digest(known) == anchor_digest(state.anchor, state.momentum)


def test_what_the_commit_says_otherwise_is_not_known():
    state, shards = state_of(), shards_of()
    ahead = ahead_of(state, shards, [0, 1, 2])
    keys = [key for key, _, _ in shards]
    # Another mean, other rates, or a void shard: whatever touches its chunks is hashed anew.
    for changed in (StepKey(*CUTS[1], b"x" * 16, 0.7, 0.9), StepKey(*CUTS[1], keys[1].digest, 0.6, 0.9), None):
        commit = [keys[0], keys[2]] + ([changed] if changed else [])
        assert set(ahead.known(0, commit)) == {3}
    assert ahead.known(1, keys) == {}
    ahead.begin(1)
    assert ahead.known(0, keys) == ahead.known(1, keys) == {}
    assert ahead.ready() == []


def test_a_second_mean_of_the_same_values_changes_nothing():
    state, shards = state_of(), shards_of()
    ahead = ahead_of(state, shards, [0, 1, 2])
    liar = StepKey(100_096, 300_032, b"y" * 16, 0.7, 0.9)
    ahead.add(liar, CODEC.encode(normal(5, liar.end - liar.start)))
    assert ahead.ready() == []
    assert len(ahead.known(0, [key for key, _, _ in shards])) == 4


def test_means_that_cannot_be_decoded_are_left_to_the_commit():
    state, (first, second, third) = state_of(), shards_of()
    broken = CODEC.unpack(CUTS[0][1], b"\xff" * CODEC.encoded_num_bytes(CUTS[0][1]))
    ahead = ahead_of(state, [(first[0], broken, None), second, third], [0, 1, 2])
    assert ahead.ready() == []
    assert set(ahead.known(0, [first[0], second[0], third[0]])) == {1, 2, 3}


@pytest.mark.parametrize(("outer_lr", "beta"), [(0.7, 0.9), (0.4, 0.5), (1.0, 0.0), (0.0, 0.3)])
def test_the_compiled_outer_step_has_the_bits_of_the_reference(outer_lr, beta):
    rates = [float(np.float32(rate)) for rate in (outer_lr, beta)]
    exponents = np.random.default_rng(4).integers(-30, 30, 10_001, dtype=np.int32)
    anchor, momentum, gradient = (np.ldexp(normal(seed, 10_001), exponents) for seed in (1, 2, 3))
    expected = [anchor.copy(), momentum.copy()]
    expected.append(outer_step_(*expected, gradient.copy(), *rates))
    change = np.empty(10_001, dtype=np.float32)
    outer_step_into(anchor, momentum, gradient, *rates, change)
    for got, wanted in zip((anchor, momentum, change), expected, strict=True):
        assert same_bits(got, wanted)
