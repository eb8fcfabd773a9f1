"""The part of a manifest that determines commits, equal on all peers of a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Mode = Literal["sync", "streaming", "eager", "carry"]
Combination = Literal["mean", "centered_clip"]


@dataclass(frozen=True, slots=True)
class OuterRule:
    """The part of the manifest that determines commits. Equal on all peers of a run.

    Attributes:
        mode: how the live parameters show own uncommitted work; see `overlay_terms`.
        outer_lr: eta0, learning rate of the outer Nesterov SGD.
        outer_momentum: beta; 0.9 suits mode sync, 0.5 any delay.
        overlay_gain: in mode carry, the share of own uncommitted work that stays in the live parameters.
        staleness_limit: s_max; older contributions have no weight.
        sync_every: H, the inner steps of a whole contribution; a commit of fewer steps uses proportionally less
            momentum.
        combine: how the contributions to a shard are combined; see `robust_mean.py`, also for the bounds.
        clip_norm_ratio: longest contribution, in median norms; None: no limit.
        clip_weight_ratio: largest weight, in median weights; None: no limit.
        audit_fraction: share of the rounds in which a member recomputes a mean; see `averaging/exchange/audit.py`.
    """

    mode: Mode
    outer_lr: float
    outer_momentum: float
    overlay_gain: float = 1.0
    staleness_limit: int = 4
    sync_every: int = 1
    combine: Combination = "mean"
    clip_norm_ratio: float | None = None
    clip_weight_ratio: float | None = None
    audit_fraction: float = 0.0

    def of_buffers(self) -> OuterRule:
        """Return the rule for running statistics: the anchor becomes the mean, without momentum, and own work stays
        visible.

        Each peer's statistics follow its data within a few steps from any start. A rate above 1, or momentum, would
        make the anchor oscillate around them because of the delay of a round.
        """
        return replace(self, outer_lr=1.0, outer_momentum=0.0, overlay_gain=1.0)

    @property
    def is_strict(self) -> bool:
        """Whether claims of other members are checked: a robust combination means that strangers take part."""
        return self.combine != "mean"
