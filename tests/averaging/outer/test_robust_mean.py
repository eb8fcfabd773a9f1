"""Robust combinations: what liars can do to a small problem, honest members that look odd, and exactness."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import make_codec
from averaging.outer.contribution_weights import Terms, shard_rates, weights_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.outer.robust_mean import (
    EXACT_VALUES,
    SUM_CHUNK_VALUES,
    bounded_weights,
    combine,
    inner_products,
    limits_in_classes,
    pairwise_sum,
)
from averaging.outer.shard_mean import keep_error, reduce_shard
from tests.kit.averages.codec_data import decoded
from tests.kit.tiers import sampled

MEAN = OuterRule("sync", 0.7, 0.5)
FREE_CLIP = replace(MEAN, combine="centered_clip")
CLIPPED = replace(MEAN, combine="centered_clip", clip_norm_ratio=2.0, clip_weight_ratio=3.0)
BLOCK = 16
FRESH = Terms(160, 10, 0)


def normal(seed, size=50, scale=1.0):
    return scale * np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def group(values, terms=None, codec_name="fp32"):
    codec = make_codec(codec_name, BLOCK)
    terms = terms or [FRESH] * len(values)
    pairs = zip(values, terms, strict=True)
    return codec, [(index, one_terms, codec.encode(one)) for index, (one, one_terms) in enumerate(pairs)]


def combined(rule, values, terms=None, codec_name="fp32"):
    codec, contributions = group(values, terms, codec_name)
    result = combine(contributions, rule, codec, values[0].size)
    assert result.values.dtype == np.float32
    return result


def name_of(rule):
    return rule.combine


# --- liars in a small problem ---

NUM_PEERS, NUM_ROUNDS, NUM_STEPS = 8, 30, 10


@functools.cache
def samples():
    chance = np.random.default_rng(0)
    truth = chance.standard_normal(64, dtype=np.float32)
    inputs = chance.standard_normal((1024, 64), dtype=np.float32)
    return inputs, (sigmoid(inputs @ truth) > chance.random(1024)).astype(np.float32)


def sigmoid(values):
    return 0.5 + 0.5 * np.tanh(0.5 * values)


def descend(point, chance):
    """Local steps of logistic regression with weight decay."""
    inputs, labels = samples()
    for _ in range(NUM_STEPS):
        chosen = chance.integers(0, len(labels), 16)
        errors = sigmoid(inputs[chosen] @ point) - labels[chosen]
        point = point - 0.3 * (inputs[chosen].T @ errors / 16 + 2e-3 * point)
    return point


def loss_at(point):
    inputs, labels = samples()
    logits = inputs @ point
    return float(np.mean(np.logaddexp(0, logits) - labels * logits) + 1e-3 * np.square(point).sum())


def fragment_states(rule, codec):
    return [FragmentState(rule, codec, *np.zeros((3, 64), dtype=np.float32)) for _ in range(NUM_PEERS)]


def poisoned(encoded):
    """No number: a NaN where the scale of the first block was."""
    payload = bytearray(b"".join(bytes(part) for part in encoded.pack()))
    payload[0:4] = b"\xff" * 4
    return EncodedBlocks.unpack(encoded.codec, encoded.block_size, encoded.num_values, bytes(payload))


ATTACKS = {
    "reversed": lambda work, _: -10 * work,
    "reversed quietly": lambda work, _: -3 * work,
    "noise": lambda work, chance: 100 * np.linalg.norm(work) / 8 * chance.standard_normal(64, dtype=np.float32),
    "zeros": lambda work, _: 0 * work,
}


@functools.cache
def final_loss(rule, attack="", num_liars=0):
    codec, chance = make_codec("int4", BLOCK), np.random.default_rng(2)
    states = fragment_states(rule, codec)
    liars = {2, 5} if num_liars == 2 else {2} if num_liars else set()
    for round_ in range(NUM_ROUNDS):
        contributions = []
        for index, state in enumerate(states):
            start = state.shown()
            state.receive_work(start - descend(start, chance), NUM_STEPS * 16, NUM_STEPS, state.version)
            sent, _ = state.send(round_ + 1)
            encoded = sent.encoded
            if index in liars:
                encoded = (
                    poisoned(encoded)
                    if attack == "nan"
                    else codec.encode(ATTACKS[attack](decoded(codec, encoded), chance))
                )
            contributions.append((index, Terms(sent.tokens, sent.steps, 0), encoded))
        reduction = reduce_shard(contributions, rule, codec, 64, None)
        assert reduction is not None
        outer_lr, _ = shard_rates([contributions[index][1] for index in reduction.included], rule)
        for index, state in enumerate(states):
            # A liar does not care whether it was left out.
            is_in = index in reduction.included or index in liars
            state.apply([CommittedShard(0, 64, reduction.encoded, outer_lr, is_in)], 1)
    return loss_at(states[0].anchor)


def test_robustness_costs_little_without_liars():
    assert final_loss(CLIPPED) <= 1.03 * final_loss(MEAN)


@pytest.mark.parametrize("num_liars", sampled([2, 1], one_in=2))
@pytest.mark.parametrize("attack", ["reversed", "noise", "zeros", "nan"])
def test_a_robust_combination_hardly_notices_liars(attack, num_liars):
    assert final_loss(CLIPPED, attack, num_liars) <= 1.05 * final_loss(MEAN)


def test_liars_below_the_refusal_do_limited_harm():
    assert final_loss(CLIPPED, "reversed quietly", 2) <= 1.12 * final_loss(MEAN)
    assert final_loss(MEAN, "reversed quietly", 2) >= 2 * final_loss(MEAN)


# --- honest members that look odd ---


def late_and_fresh():
    """Five fresh members and three that are two versions late: the same way, three times as far, of the same weight."""
    way = normal(1)
    values = [way + normal(seed, scale=0.2) for seed in range(10, 15)]
    values += [3 * way + normal(seed, scale=0.2) for seed in range(15, 18)]
    return way, values, [FRESH] * 5 + [Terms(480, 30, 2)] * 3


@pytest.mark.parametrize(
    "rule", [replace(MEAN, clip_norm_ratio=1.5), replace(CLIPPED, clip_norm_ratio=None)], ids=name_of
)
def test_an_honest_late_peer_does_not_look_like_an_attacker(rule):
    """Were it measured by the fresh ones, its work would be cut; by its own class, it is not."""
    way, values, terms = late_and_fresh()
    assert weights_of(terms, rule) == pytest.approx([1 / 8] * 8, rel=1e-6)
    unlimited = float(combined(MEAN, values, terms).values @ way)
    in_classes = combined(rule, values, terms)
    as_if_fresh = combined(rule, values, [FRESH] * 8)
    assert in_classes.included == tuple(range(8))
    assert not in_classes.refused
    assert float(in_classes.values @ way) > 0.97 * unlimited
    assert float(as_if_fresh.values @ way) < 0.92 * unlimited


def test_a_fast_machine_is_not_refused():
    """Twenty times the steps between two sends, and so twenty times the way."""
    result = combined(
        CLIPPED, [*(normal(seed) for seed in range(5)), normal(9, scale=20.0)], [FRESH] * 5 + [Terms(3200, 200, 0)]
    )
    assert result.included == tuple(range(6))


def test_liars_who_share_a_staleness_do_not_make_their_own_limit():
    terms = [FRESH] * 5 + [Terms(160, 10, 3)] * 3
    limits = limits_in_classes([1.0] * 5 + [1e6] * 3, terms, 2.0)
    assert limits == [2.0] * 5 + [2.0 * 4] * 3
    result = combined(MEAN_LIMITED, [normal(seed) for seed in range(5)] + [normal(9, scale=1e6)] * 3, terms)
    assert result.included == (0, 1, 2, 3, 4)
    assert {refusal.offence for refusal in result.refused} == {"beyond_norm"}


MEAN_LIMITED = replace(MEAN, clip_norm_ratio=2.0)


@pytest.mark.parametrize("rule", [MEAN, MEAN_LIMITED, CLIPPED], ids=name_of)
@pytest.mark.parametrize("codec_name", ["fp32", "int4"])
def test_refusals_name_their_members(rule, codec_name):
    codec, contributions = group([normal(seed) for seed in range(7)], codec_name=codec_name)
    contributions[3] = (3, FRESH, poisoned(contributions[3][2]))
    contributions[5] = (5, FRESH, codec.encode(normal(5, scale=100.0)))
    result = combine(contributions, rule, codec, 50)
    expected = [(3, "undecodable")] + ([(5, "beyond_norm")] if rule is not MEAN else [])
    assert [(refusal.member, refusal.offence) for refusal in result.refused] == expected
    assert set(result.included) == set(range(7)) - {member for member, _ in expected}
    others = [one for one in contributions if one[0] in result.included]
    assert np.array_equal(combine(others, rule, codec, 50).values, result.values)


def flipped(values, position, bit=30):
    """The same values, with one bit of one of them the other way round."""
    bits = values.copy().view(np.uint32)
    bits[position] ^= np.uint32(1 << bit)
    return bits.view(np.float32)


@pytest.mark.parametrize("rule", [MEAN, MEAN_LIMITED, CLIPPED], ids=name_of)
@pytest.mark.parametrize("codec_name", ["fp32", "int4"])
@pytest.mark.parametrize("num_members", [2, 4, 64])
@pytest.mark.parametrize("usual", [1e-2, 1e-9, 1e-18])
def test_a_flipped_exponent_in_one_contribution_moves_nobody(rule, codec_name, num_members, usual):
    values = [normal(seed, scale=np.float32(usual)) for seed in range(num_members)]
    others = combined(rule, [*values[:1], *values[2:]], codec_name=codec_name).values
    values[1] = flipped(values[1], 7)
    result = combined(rule, values, codec_name=codec_name)
    assert [(refusal.member, refusal.offence) for refusal in result.refused] == [(1, "beyond_norm")]
    assert np.array_equal(result.values, others)


@pytest.mark.parametrize("codec_name", ["fp32", "int4"])
def test_a_contribution_is_not_refused_for_its_size_alone(codec_name):
    values = [normal(1, scale=np.float32(1e-3)), normal(2, scale=np.float32(1e15)), np.zeros(50, dtype=np.float32)]
    assert combined(MEAN, values, codec_name=codec_name).included == (0, 1, 2)


def test_a_mean_that_no_contributions_give_is_not_broadcast():
    """A bit may flip in the reducer's memory, too: in the error that it carries from its earlier broadcasts."""
    codec, contributions = group([normal(1), normal(2)], codec_name="int4")
    carried = keep_error(flipped(normal(3, scale=0.01), 9), BLOCK)
    assert reduce_shard(contributions, MEAN, codec, 50, carried) is None


def test_a_sum_in_chunks_has_the_bits_of_the_whole_and_counts_blocks_from_its_beginning():
    codec = make_codec("int4", block_size=BLOCK)
    num_values = SUM_CHUNK_VALUES + 3 * BLOCK + 5
    parts = [(codec.encode(normal(seed, num_values)), 0.25 + seed) for seed in range(5)]

    def times(part):
        total = np.zeros(num_values, dtype=np.float32)
        codec.decode_accumulate(*part, total)
        return total

    first, second, third, fourth, fifth = map(times, parts)
    assert np.array_equal(pairwise_sum(codec, parts, num_values), ((first + second) + (third + fourth)) + fifth)
    scales = bytearray(parts[3][0].scales)
    scales[-2:] = b"\xff\xff"
    last_block = -(-num_values // BLOCK) - 1
    (refusal,) = combine([(0, FRESH, replace(parts[3][0], scales=scales))], MEAN, codec, num_values).refused
    assert f"of block {last_block};" in refusal.what
    with pytest.raises(ValueError, match="values; expected"):
        pairwise_sum(codec, [(codec.encode(normal(1, num_values + BLOCK)), 1.0)], num_values)


# --- few members, equal members ---


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 999)), min_size=1, max_size=2))
def test_one_or_two_members_give_the_weighted_mean(members):
    values, terms = [normal(seed) for seed, _ in members], [Terms(tokens, 7, 0) for _, tokens in members]
    expected = combined(MEAN, values, terms).values
    assert np.array_equal(combined(CLIPPED, values, terms).values, expected)


@pytest.mark.parametrize("rule", [MEAN, MEAN_LIMITED, CLIPPED], ids=name_of)
def test_nothing_gives_nothing(rule):
    codec = make_codec("int4", BLOCK)
    assert combine([], rule, codec, 50).included == ()
    assert reduce_shard([(0, Terms(1, 1, 9), codec.encode(normal(0)))], rule, codec, 50, None) is None
    zeros = combined(rule, [np.zeros(50, dtype=np.float32)] * 4)
    assert zeros.included == (0, 1, 2, 3)
    assert np.array_equal(zeros.values, np.zeros(50))


# --- the arithmetic ---


def centered_clip_by_the_book(values, weights):
    points = np.stack(values).astype(np.float64)
    center = np.median(points, axis=0)
    distances = np.sort(np.linalg.norm(points - center, axis=1))
    radius = distances[(len(distances) - 1) // 2]
    for _ in range(20):
        offsets = points - center
        shares = np.minimum(radius / np.maximum(np.linalg.norm(offsets, axis=1), 1e-30), 1.0) * np.array(weights)
        center = center + (offsets * shares[:, None]).sum(axis=0)
    return center


@given(st.integers(0, 10**6), st.integers(3, 9))
def test_centered_clip_equals_its_definition(seed, num_members):
    values = [normal(seed + index, scale=1.0 + index % 3) for index in range(num_members)]
    terms = [Terms(100 + 10 * index, 10, 0) for index in range(num_members)]
    expected = centered_clip_by_the_book(values, weights_of(terms, FREE_CLIP))
    # Distances come from offsets of nine bits here.
    assert np.allclose(combined(FREE_CLIP, values, terms).values, expected, atol=5e-3)


@pytest.mark.parametrize("num_values", [1, 50, EXACT_VALUES, 3 * EXACT_VALUES])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 2.0**64])
def test_inner_products_are_the_same_in_every_order(num_values, scale):
    chance = np.random.default_rng(num_values)
    rows = (scale * chance.standard_normal((7, num_values)) ** 3).astype(np.float32)
    rows[3] = 0.0
    found = inner_products(rows, np.empty_like(rows))
    blocks = rows.reshape(7, -1, min(num_values, EXACT_VALUES))
    order = chance.permutation(blocks.shape[2])
    assert np.array_equal(inner_products(blocks[:, :, order].reshape(rows.shape), np.empty_like(rows)), found)
    exact = rows.astype(np.float64) @ rows.astype(np.float64).T
    lengths = np.sqrt(np.diag(exact))
    assert (np.abs(found - exact) <= 0.02 * np.outer(lengths, lengths)).all()


@given(st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=20), st.floats(1, 10))
def test_no_weight_exceeds_its_multiple_of_the_median(weights, ratio):
    total = sum(weights)
    bounded = bounded_weights([weight / total for weight in weights], ratio)
    assert sum(bounded) == pytest.approx(1.0, rel=1e-5)
    assert max(bounded) <= ratio * sorted(bounded)[(len(bounded) - 1) // 2] * (1 + 1e-5)
    order = sorted(range(len(weights)), key=weights.__getitem__)
    assert all(bounded[low] <= bounded[high] * (1 + 1e-6) for low, high in itertools.pairwise(order))


def test_who_claims_a_million_times_the_tokens_decides_nothing():
    values = [normal(seed, scale=0.1) + 1 for seed in range(7)] + [-(normal(9, scale=0.1) + 1)]
    terms = [FRESH] * 7 + [Terms(160_000_000, 10, 0)]
    assert float(combined(MEAN, values, terms).values.mean()) < -0.9
    assert float(combined(CLIPPED, values, terms).values.mean()) > 0.4
