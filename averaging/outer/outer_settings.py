"""The part of a manifest that decides what a commit does, equal on all peers of a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["sync", "streaming", "eager", "carry"]
Combination = Literal["mean", "centered_clip"]


@dataclass(frozen=True, slots=True)
class OuterRule:
    """The part of the manifest that decides what a commit does. Equal on all peers of a run.

    Attributes:
        mode: how own uncommitted work shows in the live parameters; see `overlay_terms`.
        outer_lr: eta0, learning rate of the outer Nesterov SGD.
        outer_momentum: beta; 0.9 suits lock step, 0.5 any delay.
        overlay_gain: carry: share of own uncommitted work that stays in the live parameters.
        staleness_power: a of rho = (1 + s)^-a.
        staleness_limit: s_max; older contributions weigh nothing.
        token_power: p of n^p (n/h)^q, n tokens from h inner steps; 0: a contribution counts once whatever its size.
        quality_power: q of it; 0: tokens of large and of small batches count the same.
        lag_penalty: kappa of eta = eta0 * mean(rho) / (1 + kappa * max(0, lag - 1)).
        sync_every: H, inner steps of a whole contribution; a commit of fewer takes as much less momentum.
        momentum_lag_penalty: kappa of beta = beta0 / (1 + kappa * max(0, lag - 1)).
        residual_decay: factor on the error feedback that remains after a send.
        combine: how the contributions to a shard become one; see `robust_mean.py` for it and the bounds that follow.
        clip_norm_ratio: longest contribution, in median norms; None: no limit.
        clip_weight_ratio: largest weight, in median weights; None: no limit.
        clip_radius_ratio: centered_clip: longest pull, in median distances.
        audit_fraction: share of the rounds of which somebody recomputes a mean; see `averaging/exchange/audit.py`.
    """

    mode: Mode
    outer_lr: float
    outer_momentum: float
    overlay_gain: float = 1.0
    staleness_power: float = 1.0
    staleness_limit: int = 4
    token_power: float = 1.0
    quality_power: float = 1.0
    lag_penalty: float = 0.0
    momentum_lag_penalty: float = 0.0
    sync_every: int = 1
    residual_decay: float = 1.0
    combine: Combination = "mean"
    clip_norm_ratio: float | None = None
    clip_weight_ratio: float | None = None
    clip_radius_ratio: float = 1.0
    audit_fraction: float = 0.0

    @property
    def is_strict(self) -> bool:
        """Whether claims of other members are checked: where the combination is robust, strangers take part."""
        return self.combine != "mean"
