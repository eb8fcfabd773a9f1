"""How much a contribution counts, and how fast a commit steps: by staleness and tokens. Pure.

Sources: staleness weights and less momentum under delay from Async Local-SGD (arXiv 2401.09135), token weights from
Decoupled DiLoCo (arXiv 2604.21428).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache

import numpy as np

from averaging.outer.outer_settings import Mode, OuterRule

POWER_DIGITS = 40
"""More than twice a double's digits: rounding to a double hides what the last of them may lose."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides the weight of one contribution: tokens, inner steps, staleness in versions."""

    tokens: int
    steps: int
    staleness: int


def staleness_of(mode: Mode, version: int, base_version: int) -> int:
    """Whole versions that the work is older than its mode implies.

    `base_version` is the anchor in the live parameters when the work began. In lock step work that began at version r
    is applied to version r. Every other mode trains on while a round travels, so work that began at r - 1 is fresh.
    """
    return max(0, version - base_version - staleness_reach(mode, 0))


def staleness_reach(mode: Mode, staleness: int) -> int:
    """How many versions before the current one work of that staleness began at most."""
    return staleness if mode == "sync" else staleness + 1


def staleness_factor(staleness: int, rule: OuterRule) -> float:
    """rho = (1 + s)^-a, and 0 beyond the limit (arXiv 1903.03934, 2401.09135)."""
    if staleness > rule.staleness_limit:
        return 0.0
    return portable_power(1.0 + staleness, -rule.staleness_power)


def size_factor(tokens: int, steps: int, rule: OuterRule) -> float:
    """n^p (n/h)^q. With p = q = 1 it is quantity times quality (arXiv 2604.21428). With p = q = 0 everybody counts the
    same, as in DiLoCo (arXiv 2311.08105).
    """
    return portable_power(float(tokens), rule.token_power) * portable_power(tokens / steps, rule.quality_power)


@lru_cache(maxsize=8192)
def portable_power(base: float, exponent: float) -> float:
    """base^exponent for base > 0, the same bits on every machine.

    The last bit of pow() depends on the C library. Decimal's ln and exp are correctly rounded by definition.
    """
    if exponent in (-1.0, 0.0, 1.0):
        return 1.0 if exponent == 0 else base if exponent > 0 else 1.0 / base
    context = Context(prec=POWER_DIGITS)
    return float(context.exp(context.multiply(Decimal(exponent), context.ln(Decimal(base)))))


def weights_of(terms: Sequence[Terms], rule: OuterRule) -> list[float]:
    """Weights w_j = rho_j * n_j^p * (n_j / h_j)^q, normalised, rounded to float32; all 0 when nothing counts."""
    raw = [raw_weight(term, rule) for term in terms]
    total = math.fsum(raw)
    return [float(np.float32(weight / total)) if total > 0 else 0.0 for weight in raw]


def raw_weight(term: Terms, rule: OuterRule) -> float:
    """A weight before it is normalised; 0 where a contribution holds no work."""
    if not term.tokens:
        return 0.0
    return staleness_factor(term.staleness, rule) * size_factor(term.tokens, term.steps, rule)


def shard_rates(included: Sequence[Terms], rule: OuterRule) -> tuple[float, float]:
    """(outer learning rate, outer momentum) of one shard, from the terms of the contributions in it.

    The means of rho and of the staleness are weighted by tokens. Contributions beyond the staleness limit count in
    neither. Steps are those of the longest contribution, since slow peers send fewer by intention.
    """
    rho = _token_mean(included, rule, [staleness_factor(term.staleness, rule) for term in included])
    rounds_late = _token_mean(included, rule, [term.staleness for term in included])
    steps = max((term.steps for term in included if term.staleness <= rule.staleness_limit), default=None)
    return rates_at(rho, rounds_late, rule, steps)


def rates_at(mean_rho: float, rounds_late: float, rule: OuterRule, steps: int | None = None) -> tuple[float, float]:
    """(eta_r, beta_r), rounded to float32.

    Args:
        rounds_late: the mean staleness, which is the lag less one round.
        steps: inner steps of the longest contribution; None: as many as in a whole one.

    eta_r = eta0 * mean(rho) / (1 + kappa * max(0, lag - 1)), 0 when nothing counts. A lower rate under delay: arXiv
    2502.12996, table 2.

    beta_r = beta0 * min(1, steps / H) / (1 + kappa * max(0, lag - 1)). Momentum on stale work is what makes late
    updates oscillate (arXiv 2401.09135). The one round of delay that every mode but sync implies is beta0's business,
    because it is there in every round. It is 0.9 in lock step, 0.5 otherwise. A few steps, as of a peer that leaves, do
    not correct a whole step of momentum. It would carry the anchor past what was learned. That factor is ours.
    """
    outer_lr = rule.outer_lr * mean_rho / (1.0 + rule.lag_penalty * rounds_late)
    share = 1.0 if steps is None else min(1.0, steps / rule.sync_every)
    outer_momentum = rule.outer_momentum * share / (1.0 + rule.momentum_lag_penalty * rounds_late)
    return float(np.float32(outer_lr)), float(np.float32(outer_momentum))


def _token_mean(terms: Sequence[Terms], rule: OuterRule, values: Sequence[float]) -> float:
    """Mean of a number per contribution, weighted by tokens, over those within the staleness limit; 0 without any."""
    tokens = [term.tokens if term.staleness <= rule.staleness_limit else 0 for term in terms]
    total = sum(tokens)
    return math.fsum(value * count for value, count in zip(values, tokens, strict=True)) / total if total else 0.0
