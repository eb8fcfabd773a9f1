"""Weights of contributions and the size of a commit's step, by staleness and tokens. Pure.

Sources: staleness weights from Async Local-SGD (arXiv 2401.09135), token weights from Decoupled DiLoCo (arXiv
2604.21428).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from averaging.outer.outer_settings import Mode, OuterRule


@dataclass(frozen=True, slots=True)
class Terms:
    """Numbers that determine the weight of one contribution: tokens, inner steps, staleness in versions."""

    tokens: int
    steps: int
    staleness: int


def staleness_of(mode: Mode, version: int, base_version: int) -> int:
    """Return by how many versions the work is older than its mode implies.

    `base_version` is the version of the anchor in the live parameters when the work began. In mode sync, work that
    began at version r is applied to version r. In all other modes a peer trains while a round travels, so work that
    began at r - 1 is fresh.
    """
    return max(0, version - base_version - staleness_reach(mode, 0))


def staleness_reach(mode: Mode, staleness: int) -> int:
    """Return how many versions before the current one work with this staleness can have begun at most."""
    return staleness if mode == "sync" else staleness + 1


def staleness_factor(staleness: int, rule: OuterRule) -> float:
    """Return rho = 1 / (1 + s), and 0 beyond the limit (arXiv 1903.03934, 2401.09135).

    With K of M peers in a commit, each contribution covers M/K rounds on average, and its weight K/M compensates: other
    powers of 1 + s were worse (benchmarks/log/2026-11-21-convergence.md).
    """
    return 1.0 / (1.0 + staleness) if staleness <= rule.staleness_limit else 0.0


def size_factor(tokens: int, steps: int) -> float:
    """Return n (n/h) for n tokens from h inner steps: quantity times quality (arXiv 2604.21428)."""
    return float(tokens) * (tokens / steps)


def weights_of(terms: Sequence[Terms], rule: OuterRule) -> list[float]:
    """Return the weights w_j = rho_j * n_j * (n_j / h_j), normalised and rounded to float32; all 0 if no contribution
    counts.
    """
    raw = [raw_weight(term, rule) for term in terms]
    total = math.fsum(raw)
    return [float(np.float32(weight / total)) if total > 0 else 0.0 for weight in raw]


def raw_weight(term: Terms, rule: OuterRule) -> float:
    """Return a weight before normalisation; 0 for a contribution without work."""
    if not term.tokens:
        return 0.0
    return staleness_factor(term.staleness, rule) * size_factor(term.tokens, term.steps)


def shard_rates(included: Sequence[Terms], rule: OuterRule) -> tuple[float, float]:
    """Return (outer learning rate, outer momentum) of one shard, from the terms of the contributions in it.

    The mean of rho is weighted by tokens, without contributions beyond the staleness limit. The steps are those of the
    longest contribution, since slow peers intentionally send fewer.
    """
    counted = [term for term in included if term.staleness <= rule.staleness_limit]
    tokens = sum(term.tokens for term in counted)
    rhos = math.fsum(staleness_factor(term.staleness, rule) * term.tokens for term in counted)
    return rates_at(rhos / tokens if tokens else 0.0, rule, max((term.steps for term in counted), default=None))


def rates_at(mean_rho: float, rule: OuterRule, steps: int | None = None) -> tuple[float, float]:
    """Return (eta_r, beta_r), rounded to float32.

    Args:
        steps: inner steps of the longest contribution; None: the steps of a whole one.

    eta_r = eta0 * mean(rho), 0 if no contribution counts. Late rounds step less only through rho.

    beta_r = beta0 * min(1, steps / H). beta0 accounts for the one round of delay in all modes but sync, because it is
    present in all rounds: beta0 is 0.9 in sync and 0.5 otherwise. A few steps, such as those of a leaving peer, cannot
    correct a whole step of momentum, which would carry the anchor too far. The factor min(1, steps / H) is not from a
    paper.
    """
    share = 1.0 if steps is None else min(1.0, steps / rule.sync_every)
    return float(np.float32(rule.outer_lr * mean_rho)), float(np.float32(rule.outer_momentum * share))
