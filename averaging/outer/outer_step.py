"""Weights, staleness, the outer step and the overlay: what a commit does to one fragment. Pure.

Sign: the outer gradient is start minus end of local training. One fragment on one peer is described by

    x = A - O - r - L

Here x are the live parameters, and A is the committed anchor. O is the overlay: own work that was sent but is not
committed, as it shows. The residual r is own work that is not sent yet: error feedback, returned work, waiting work. L
is what the trainer did since it last handed over work. Every function below keeps this sum true; what it changes on the
right side is returned as the one array to add to x.

Bit-identical on every machine: float32 on the CPU, and separate multiply and add (one rounding each). Contributions are
combined in PeerId order, and everyone applies the encoded broadcast bytes.

Sources: DiLoCo (arXiv 2311.08105) for the outer step. Streaming DiLoCo (arXiv 2501.18512) for blending. Eager Updates
(arXiv 2502.12996) for the overlay `eager`. Token weights from Decoupled DiLoCo (arXiv 2604.21428). Staleness weights
and less momentum under delay from Async Local-SGD (arXiv 2401.09135). The weight of newcomers is this project's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import lru_cache
from typing import Literal

import numpy as np

from averaging.arrays import F32
from averaging.codec import compiled
from averaging.codec.digests import array_digest, digest_of

Mode = Literal["sync", "streaming", "delayed", "eager", "own", "carry"]
VELOCITY_MODES = ("eager", "own")
"""Modes whose overlay needs this peer's velocity, one more float32 vector per fragment."""
Combination = Literal["mean", "trimmed_mean", "centered_clip", "radial_directional"]

CHUNK_VALUES = 1 << 18
"""Values per pass (1 MiB of float32): the working set of a pass stays in the cache."""
DIGEST_CHUNK_BYTES = 1 << 20
"""Chunk of a digest and of a transfer."""
POWER_DIGITS = 40
"""More than twice a double's digits: rounding to a double hides what the last of them may lose."""


@dataclass(frozen=True, slots=True)
class OuterRule:
    """The part of the manifest that decides what a commit does. Equal on all peers of a run.

    Attributes:
        mode: how own uncommitted work shows in the live parameters; see `overlay_terms`.
        outer_lr: eta0, learning rate of the outer Nesterov SGD.
        outer_momentum: beta; 0.9 suits lock step, 0.5 any delay.
        overlay_gain: carry: share of own uncommitted work that stays in the live parameters.
        own_weight: own: weight of this peer's contribution in the predicted step.
        staleness_power: a of rho = (1 + s)^-a.
        staleness_limit: s_max; older contributions weigh nothing.
        token_power: p of n^p (n/h)^q, n tokens from h inner steps; 0: a contribution counts once whatever its size.
        quality_power: q of it; 0: tokens of large and of small batches count the same.
        newcomer_rounds: rounds in which a newcomer weighs less: j / (newcomer_rounds + 1) in its j-th one.
        lag_penalty: kappa of eta = eta0 * mean(rho) / (1 + kappa * max(0, lag - 1)).
        momentum_lag_penalty: kappa of beta = beta0 / (1 + kappa * max(0, lag - 1)).
        residual_decay: factor on the error feedback that remains after a send.
        combine: how the contributions to a shard become one; see `robust_mean.py` for it and the bounds that follow.
        clip_norm_ratio: longest contribution, in median norms; None: no limit.
        clip_weight_ratio: largest weight, in median weights; None: no limit.
        trim_fraction: trimmed_mean: share of the members left out at each end.
        clip_radius_ratio: centered_clip: longest pull, in median distances.
        audit_fraction: share of the rounds of which somebody recomputes a mean; see `averaging/exchange/audit.py`.
    """

    mode: Mode
    outer_lr: float
    outer_momentum: float
    overlay_gain: float = 1.0
    own_weight: float = 1.0
    staleness_power: float = 1.0
    staleness_limit: int = 4
    token_power: float = 1.0
    quality_power: float = 1.0
    newcomer_rounds: int = 0
    lag_penalty: float = 0.0
    momentum_lag_penalty: float = 0.0
    residual_decay: float = 1.0
    combine: Combination = "mean"
    clip_norm_ratio: float | None = None
    clip_weight_ratio: float | None = None
    trim_fraction: float = 0.25
    clip_radius_ratio: float = 1.0
    audit_fraction: float = 0.0

    def of_buffers(self) -> OuterRule:
        """The same for running statistics: the anchor becomes the mean, without momentum, and own work stays shown.

        Each peer's statistics follow its data within a few steps, whatever they were. Any rate above 1, and any
        momentum, would swing around them with the delay of a round.
        """
        return replace(
            self,
            outer_lr=1.0,
            outer_momentum=0.0,
            overlay_gain=1.0,
            residual_decay=1.0,
            lag_penalty=0.0,
            momentum_lag_penalty=0.0,
        )

    @property
    def is_strict(self) -> bool:
        """Whether nobody's claims are believed: where the combination is a robust one, strangers take part."""
        return self.combine != "mean"


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides the weight of one contribution: tokens, inner steps, staleness in versions, earlier rounds."""

    tokens: int
    steps: int
    staleness: int
    num_rounds: int = 0


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


def newcomer_factor(num_rounds: int, rule: OuterRule) -> float:
    """nu = min(1, (num_rounds + 1) / (newcomer_rounds + 1)): a peer's first rounds weigh less.

    A newcomer's inner optimizer is cold, and a stranger should not decide much at once. The ramp is ours and from
    no paper. `num_rounds` is the peer's own claim, bounded by the fragment's version.
    So no peer gains more than the weight of one that was there from the start. A liar only skips its own warm-up,
    and the swarm is where it would be without one.
    """
    return min(1.0, (num_rounds + 1) / (rule.newcomer_rounds + 1))


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
    """Weights w_j = nu_j * rho_j * n_j^p * (n_j / h_j)^q, normalised, rounded to float32; all 0 when nothing counts."""
    raw = [raw_weight(term, rule) for term in terms]
    total = math.fsum(raw)
    return [float(np.float32(weight / total)) if total > 0 else 0.0 for weight in raw]


def raw_weight(term: Terms, rule: OuterRule) -> float:
    """A weight before it is normalised."""
    return (
        staleness_factor(term.staleness, rule)
        * size_factor(term.tokens, term.steps, rule)
        * newcomer_factor(term.num_rounds, rule)
    )


def shard_rates(included: Sequence[Terms], rule: OuterRule) -> tuple[float, float]:
    """(outer learning rate, outer momentum) of one shard, from the terms of the contributions in it.

    The means of rho and of the staleness are weighted by tokens. Contributions beyond the staleness limit count in
    neither.
    """
    rho = _token_mean(included, rule, [staleness_factor(term.staleness, rule) for term in included])
    return rates_at(rho, _token_mean(included, rule, [term.staleness for term in included]), rule)


def rates_at(mean_rho: float, rounds_late: float, rule: OuterRule) -> tuple[float, float]:
    """(eta_r, beta_r), rounded to float32; `rounds_late` is the mean staleness, which is the lag less one round.

    eta_r = eta0 * mean(rho) / (1 + kappa * max(0, lag - 1)), 0 when nothing counts. A lower rate under delay: arXiv
    2502.12996, table 2.

    beta_r = beta0 / (1 + kappa * max(0, lag - 1)). Momentum on stale work is what makes late updates oscillate (arXiv
    2401.09135). The one round of delay that every mode but sync implies is beta0's business, because it is there in
    every round. It is 0.9 in lock step, 0.5 otherwise.
    """
    outer_lr = rule.outer_lr * mean_rho / (1.0 + rule.lag_penalty * rounds_late)
    outer_momentum = rule.outer_momentum / (1.0 + rule.momentum_lag_penalty * rounds_late)
    return float(np.float32(outer_lr)), float(np.float32(outer_momentum))


def _token_mean(terms: Sequence[Terms], rule: OuterRule, values: Sequence[float]) -> float:
    """Mean of a number per contribution, weighted by tokens, over those within the staleness limit; 0 without any."""
    tokens = [term.tokens if term.staleness <= rule.staleness_limit else 0 for term in terms]
    total = sum(tokens)
    return math.fsum(value * count for value, count in zip(values, tokens, strict=True)) / total if total else 0.0


def outer_step_(anchor: F32, momentum: F32, gradient: F32, outer_lr: float, outer_momentum: float) -> F32:
    """Nesterov SGD in place: m <- beta m + g; A <- A - eta (g + beta m). Returns the change of A.

    All arrays: float32 [n]. Each operation rounds once, so the result does not depend on the machine.
    """
    momentum *= np.float32(outer_momentum)
    momentum += gradient
    step = momentum * np.float32(outer_momentum)
    step += gradient
    step *= np.float32(outer_lr)
    before = anchor.copy()
    anchor -= step
    return np.subtract(anchor, before, out=before)


def outer_step_into(
    anchor: F32, momentum: F32, gradient: F32, outer_lr: float, outer_momentum: float, change: F32
) -> None:
    """`outer_step_`, with the change of A in `change`: compiled where it can be, the same bits anywhere.

    All arrays: float32 [n], contiguous, without overlap.
    """
    kernels = compiled.kernels()
    if kernels is None:
        change[:] = outer_step_(anchor, momentum, gradient, outer_lr, outer_momentum)
    else:
        kernels.outer_step(anchor, momentum, gradient, outer_lr, outer_momentum, change)


def overlay_terms(rule: OuterRule, num_pending: int, outer_lr: float, own_share: float) -> list[tuple[float, float]]:
    """Coefficients (on the work itself, on this peer's velocity after it) of each pending contribution in the overlay
    O.

    The velocity of pending contribution k is u_k = beta u_(k-1) + D_k, and O = sum_k (a_k D_k + b_k u_k).

    - sync, streaming, delayed: O = 0; sent work disappears until its round is committed.
    - eager (arXiv 2502.12996, Algorithm 3 in anchor form): O = eta c (D + beta u), c its share of the weights.
    - own: the same with `own_weight` in place of c.
    - carry: O = overlay_gain * D; local progress stays in the live parameters while the round travels.

    Replicas i and j that trained nothing since differ by `O_j - O_i` and their residuals alone. The difference does not
    grow with the number of rounds, whatever eta, weights and members did from round to round. With |.| any norm, c_i
    this peer's share (own: `own_weight`) and D_i^k its work of the k-th last round. D_i^0 is that in flight, and D is 0
    where it was not committed. For a peer without work in flight all are 0, and so is its O:

    - eager, own: |O_i - O_j| <= eta0 / (1 - beta) * max_k |c_i D_i^k - c_j D_j^k|. For O_i is the sum of the D_i^k,
      with coefficients of at most `eta0 c_i beta^k` for k > 0, and `eta0 c_i (1 + beta)` for k = 0.
    - carry: |O_i - O_j| <= overlay_gain * |D_i^0 - D_j^0|.
    """
    if rule.mode == "carry":
        return [(rule.overlay_gain, 0.0)] * num_pending
    if rule.mode in VELOCITY_MODES:
        share = own_share if rule.mode == "eager" else rule.own_weight
        return [(outer_lr * share, outer_lr * share * rule.outer_momentum)] * num_pending
    return [(0.0, 0.0)] * num_pending


def overlay_of(
    rule: OuterRule, pending: Sequence[F32], velocity: F32 | None, outer_lr: float, own_share: float
) -> F32 | None:
    """The overlay O, float32 [n], or None when it is zero.

    Args:
        pending: own sent and uncommitted work, oldest first, each [n].
        velocity: own velocity u after the last committed own work, [n]; needed by eager and own.
    """
    overlay: F32 | None = None
    running = velocity
    for work, (on_work, on_velocity) in zip(
        pending, overlay_terms(rule, len(pending), outer_lr, own_share), strict=True
    ):
        if on_velocity:
            assert running is not None, "eager overlays need this peer's velocity"
            running = running * np.float32(rule.outer_momentum)
            running += work
        for coefficient, term in ((on_work, work), (on_velocity, running)):
            if coefficient and term is not None:
                part = term * np.float32(coefficient)
                overlay = part if overlay is None else np.add(overlay, part, out=overlay)
    return overlay


def anchor_digest(anchor: F32, momentum: F32, known: Mapping[int, tuple[bytes, bytes]] | None = None) -> bytes:
    """32-byte digest of (A, m): BLAKE3 over the BLAKE3 of each MiB of their little-endian float32 bytes.

    The two levels let a joiner check every chunk as it arrives.

    Args:
        anchor, momentum: float32 [n], contiguous.
        known: per chunk the digests of its A and m, where they are known already.
    """
    digests = []
    step = DIGEST_CHUNK_BYTES // 4
    for part, values in enumerate((anchor, momentum)):
        for index, start in enumerate(range(0, values.size, step)):
            chunk = values[start : start + step]
            digests.append(known[index][part] if known and index in known else array_digest(chunk))
    return digest_of_chunks(digests)


def digest_of_chunks(digests: Sequence[bytes]) -> bytes:
    """The anchor digest that belongs to these chunk digests."""
    return digest_of(b"".join(digests))
