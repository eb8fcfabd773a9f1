"""The mathematics of a commit: it is what the papers say, and the same bits for everybody."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from averaging.arrays import F64
from averaging.codec.digests import array_digest
from averaging.outer.contribution_weights import (
    Terms,
    shard_rates,
    staleness_factor,
    staleness_of,
    weights_of,
)
from averaging.outer.outer_settings import OuterRule
from averaging.outer.outer_step import (
    DIGEST_CHUNK_BYTES,
    anchor_digest,
    digest_of_chunks,
    outer_step_,
    overlay_of,
)

MODES = ("sync", "streaming", "eager", "carry")


def normal(seed, size, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(size, dtype=dtype)


def multiples(low, high, denominator):
    """Multiples of 1 / denominator from low to high.

    Rates and shares are rounded to float32, as are their products in the overlay. With few enough bits nothing is lost
    there, and float64 arrays show what holds exactly.
    """
    steps = st.integers(math.ceil(low * denominator), math.floor(high * denominator))
    return steps.map(lambda number: number / denominator)


def nearest_float32(low, high):
    return st.floats(low, high).map(lambda number: float(np.float32(number)))


# ------------------------------------------------------------------------------- eager updates, in two forms


class Problem:
    """M peers on quadratics of their own: local work depends on where a peer stands, so that errors would grow."""

    def __init__(self, seed, num_peers, num_steps=5):
        self.num_steps = num_steps
        self.curvatures = [np.abs(normal(seed + peer, 6)) + 0.1 for peer in range(num_peers)]
        self.optima = [normal(seed + 100 + peer, 6) for peer in range(num_peers)]

    def outer_gradient(self, peer, start):
        end = start.copy()
        for _ in range(self.num_steps):
            end -= 0.05 * self.curvatures[peer] * (end - self.optima[peer])
        return start - end


def integrated_eager(problem, start, num_peers, num_rounds, delay, eta, beta, share):
    """Kale et al. (arXiv 2502.12996, Algorithm 3): each peer steps on a mix of fresh own and late foreign work."""
    live = [start.copy() for _ in range(num_peers)]
    momenta = [np.zeros_like(start) for _ in range(num_peers)]
    past: list[list[F64]] = []
    trajectory = []
    for now in range(num_rounds):
        past.append([problem.outer_gradient(peer, live[peer]) for peer in range(num_peers)])
        for peer in range(num_peers):
            mixed = past[now][peer] * share
            if now >= delay:
                late = past[now - delay]
                mixed = mixed + sum(late) * share - late[peer] * share
            momenta[peer] = beta * momenta[peer] + mixed
            live[peer] = live[peer] - eta * (mixed + beta * momenta[peer])
        trajectory.append([values.copy() for values in live])
    return trajectory


def anchored_eager(problem, start, num_peers, num_rounds, delay, eta, beta, share):
    """The same with a committed anchor, driven by late means alone, and an overlay of what is under way."""
    rule = OuterRule("eager", eta, beta)
    anchor, momentum = start.copy(), np.zeros_like(start)
    velocities = [np.zeros_like(start) for _ in range(num_peers)]
    pending: list[deque[F64]] = [deque() for _ in range(num_peers)]
    live = [start.copy() for _ in range(num_peers)]
    trajectory = []
    for now in range(num_rounds):
        for peer in range(num_peers):
            pending[peer].append(problem.outer_gradient(peer, live[peer]))
        if now >= delay:
            committed = [pending[peer].popleft() for peer in range(num_peers)]
            outer_step_(anchor, momentum, sum(committed) * share, eta, beta)
            for peer in range(num_peers):
                velocities[peer] = beta * velocities[peer] + committed[peer]
        for peer in range(num_peers):
            live[peer], velocity = anchor.copy(), velocities[peer]
            for work in pending[peer]:
                live[peer] -= overlay_of(rule, work, velocity, share)
                velocity = beta * velocity + work
        trajectory.append([values.copy() for values in live])
    return trajectory


@pytest.mark.parametrize("delay", [1, 2])
@given(
    seed=st.integers(0, 1000),
    num_peers=st.integers(1, 32),
    num_steps=st.integers(1, 40),
    beta=multiples(0, 0.95, 64),
    eta=multiples(0.05, 0.9, 64),
)
def test_anchor_and_overlay_are_eager_updates(delay, seed, num_peers, num_steps, beta, eta):
    """For any M, H, beta and eta that stay the same: the same trajectory up to float64's rounding."""
    share = round(4096 / num_peers) / 4096  # 1 / M, see `multiples`; the same in both forms
    arguments = (Problem(seed, num_peers, num_steps), normal(seed, 6), num_peers, 20, delay, eta, beta, share)
    for integrated, anchored in zip(integrated_eager(*arguments), anchored_eager(*arguments), strict=True):
        for left, right in zip(integrated, anchored, strict=True):
            scale = max(1.0, float(np.abs(left).max()))
            assert float(np.abs(left - right).max()) <= 1e-10 * scale


@given(st.integers(0, 99), nearest_float32(0, 0.99), nearest_float32(0.01, 2))
def test_the_outer_step_is_nesterov_sgd_of_torch(seed, beta, eta):
    """In float64, with rates that are float32 numbers: rates are rounded to those."""
    anchor, momentum = normal(seed, 50), np.zeros(50)
    reference = torch.from_numpy(anchor.copy()).requires_grad_()
    optimizer = torch.optim.SGD([reference], lr=eta, momentum=beta, nesterov=beta > 0)
    for step in range(6):
        gradient = normal(1000 + step, 50)
        reference.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        before = anchor.copy()
        change = outer_step_(anchor, momentum, gradient, eta, beta)
        np.testing.assert_allclose(anchor, reference.detach().numpy(), rtol=1e-12, atol=1e-12)
        assert np.array_equal(change, anchor - before)


# ------------------------------------------------------------------------------------- weights and staleness

terms = st.builds(Terms, st.integers(1, 2**40), st.integers(1, 2**20), st.integers(0, 8))
rules = st.builds(
    OuterRule,
    st.sampled_from(MODES),
    st.floats(0.01, 2),
    st.floats(0, 0.95),
    staleness_limit=st.integers(0, 6),
)


@given(st.lists(terms, min_size=1, max_size=12), rules)
def test_weights_are_shares_of_what_counts(all_terms, rule):
    weights = weights_of(all_terms, rule)
    counts = [term.staleness <= rule.staleness_limit for term in all_terms]
    assert sum(weights) == pytest.approx(1.0 if any(counts) else 0.0, abs=1e-5)
    for weight, counted in zip(weights, counts, strict=True):
        assert 0 <= weight <= 1
        assert counted or weight == 0
        assert weight == float(np.float32(weight))


@given(st.integers(1, 10**6), st.integers(1, 1000), st.integers(2, 9))
def test_more_tokens_and_more_tokens_a_step_weigh_more(tokens, steps, factor):
    rule = OuterRule("carry", 0.7, 0.5)
    more_steps = weights_of([Terms(tokens * factor, steps * factor, 0), Terms(tokens, steps, 0)], rule)
    larger_batch = weights_of([Terms(tokens * factor, steps, 0), Terms(tokens, steps, 0)], rule)
    assert more_steps[0] / more_steps[1] == pytest.approx(factor, rel=1e-5)
    assert larger_batch[0] / larger_batch[1] == pytest.approx(factor**2, rel=1e-5)


@given(rules, st.integers(0, 8))
def test_older_work_never_weighs_more(rule, staleness):
    assert 0 <= staleness_factor(staleness + 1, rule) <= staleness_factor(staleness, rule) <= 1
    assert staleness_factor(0, rule) == 1
    assert (staleness_factor(staleness, rule) == 0) == (staleness > rule.staleness_limit)


@given(rules, st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 99)), min_size=1, max_size=9))
def test_fresh_work_gets_the_whole_outer_lr_and_late_work_less(rule, work):
    fresh = [Terms(tokens, steps, 0) for tokens, steps in work]
    assert shard_rates(fresh, rule)[0] == pytest.approx(rule.outer_lr, rel=1e-6)
    late = [Terms(tokens, steps, 1) for tokens, steps in work]
    if rule.staleness_limit >= 1:
        expected = rule.outer_lr / 2
        assert shard_rates(late, rule)[0] == pytest.approx(expected, rel=1e-6)
    assert shard_rates([*fresh, *late], rule)[0] <= shard_rates(fresh, rule)[0]


@given(rules, st.lists(terms, min_size=1, max_size=8), st.integers(1, 1000))
def test_a_round_of_few_steps_takes_as_much_less_momentum(rule, all_terms, sync_every):
    whole, (outer_lr, beta) = shard_rates(all_terms, rule), shard_rates(all_terms, replace(rule, sync_every=sync_every))
    steps = [term.steps for term in all_terms if term.staleness <= rule.staleness_limit]
    assert outer_lr == whole[0]
    assert beta == pytest.approx(whole[1] * min(1, max(steps, default=sync_every) / sync_every), rel=1e-6)
    assert beta == float(np.float32(beta))


def test_staleness_counts_from_what_the_mode_implies():
    assert [staleness_of("sync", 7, base) for base in (7, 6, 4, 9)] == [0, 1, 3, 0]
    for mode in MODES[1:]:
        assert [staleness_of(mode, 7, base) for base in (7, 6, 5, 3)] == [0, 0, 1, 3]


# --------------------------------------------------------------------------------------- overlays and digests


@given(st.integers(0, 99), multiples(0.1, 1, 64), multiples(0.1, 0.9, 64), multiples(0, 1, 4096))
def test_each_mode_shows_what_it_says(seed, eta, beta, share):
    work, velocity = normal(seed, 10), normal(seed + 1, 10)

    def overlay(mode, **options):
        rule = OuterRule(mode, eta, beta, **options)
        found = overlay_of(rule, work, velocity, share)
        return np.zeros(10) if found is None else found

    for mode in ("sync", "streaming"):
        assert not overlay(mode).any()
    assert np.array_equal(overlay("carry", overlay_gain=share), work * share)
    eager = eta * share * (work + beta * (beta * velocity + work))
    np.testing.assert_allclose(overlay("eager"), eager, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_values", [1, 8, DIGEST_CHUNK_BYTES // 4, DIGEST_CHUNK_BYTES // 4 + 1])
def test_a_digest_covers_every_bit_of_anchor_and_momentum(num_values):
    anchor, momentum = normal(1, num_values, np.float32), normal(2, num_values, np.float32)
    digest = anchor_digest(anchor, momentum)
    step = DIGEST_CHUNK_BYTES // 4
    parts = [values[start : start + step] for values in (anchor, momentum) for start in range(0, num_values, step)]
    chunks = [array_digest(part) for part in parts]
    assert digest_of_chunks(chunks) == digest == anchor_digest(anchor.copy(), momentum.copy())
    assert anchor_digest(momentum, anchor) != digest
    for values in (anchor, momentum):
        value = values[-1]
        values[-1] = np.nextafter(value, np.float32(np.inf))
        assert anchor_digest(anchor, momentum) != digest
        values[-1] = value
    assert anchor_digest(anchor, momentum) == digest
