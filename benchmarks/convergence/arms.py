"""What this benchmark compares: an arm (one way of training together), the task all arms share, and an outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from averaging.outer.outer_settings import Combination, Mode, OuterRule
from peer.config.averaging_rules import ROBUST_CLIP_RATIOS
from peer.config.model_section import ModelSection
from peer.config.training_section import TrainingSection
from peer.trainer.data.corpus import Corpus

DATA_PARALLEL = "data_parallel"
Lie = Literal["negated", "noise", "nan"]
CHOICES: dict[str, tuple[str, ...]] = {
    "mode": (*get_args(Mode), DATA_PARALLEL),
    "combine": get_args(Combination),
    "lie": get_args(Lie),
    "optimizer": ("adamw", "muon"),
}


@dataclass(frozen=True)
class Arm:
    """One way of training together. Fields are named as in the manifest's averaging section where it has them.

    Attributes:
        mode: an averaging mode, or data_parallel: gradients averaged at every step, the same data.
        num_peers: M.
        delay_rounds: rounds between a send and its commit; 0 commits at once.
        missing_share: chance that a contribution misses its round and its work goes back.
        overlay_gain_end: the gain moves in a straight line from overlay_gain to it; absent: constant.
        adaptive_gain: above 0, the gain is this times eta (1 + beta) times the projection of the last committed mean on
            this peer's work in it, <g, D_i> / <D_i, D_i>: what the commit is expected to keep of own work.
        momentum_lookahead: share of eta beta^2 m, the part of the next outer step that is certain already, that the
            live parameters show beforehand.
        residual_shown: share of the error feedback that the live parameters show until it is sent; a peer shows all
            of it.
        own_weight: eager: the share that own work is shown with, in place of its share of the last commit.
        error_feedback: False drops what encoding loses, at the sender and at the reducer.
        optimizer: the inner one, adamw or muon (see `peer.trainer.model.inner_optimizer`).
        inner_lr_scale: factor on the inner learning rate of the task.
        beta2: AdamW's decay of the second moment.
        pull: share of the local displacement that the inner steps of one round take back (a proximal term,
            arXiv 1812.06127); 0: none.
        num_slow: that many peers, the last ones, are `slow_factor` times slower than the others.
        adapts_sync_every: slow peers send as often as the others, after fewer steps; False: after `sync_every` of
            their own steps, so in every `slow_factor`-th round.
        num_liars: that many peers, the last ones, send what `lie` says in place of their work: negated (-10 times
            it), noise (Gaussian, 10 times as long) or nan (scales that are not numbers).
    """

    mode: str = "carry"
    num_peers: int = 4
    sync_every: int = 20
    num_fragments: int = 1
    delay_rounds: float = 1.0
    outer_lr: float = 0.7
    outer_momentum: float = 0.5
    overlay_gain: float = 0.7
    overlay_gain_end: float | None = None
    adaptive_gain: float = 0.0
    momentum_lookahead: float = 0.0
    own_weight: float | None = None
    codec: str = "int4"
    block_size: int = 128
    error_feedback: bool = True
    residual_shown: float = 1.0
    missing_share: float = 0.0
    staleness_limit: int = 4
    merge_alpha: float = 0.5
    combine: str = "mean"
    optimizer: str = "adamw"
    inner_lr_scale: float = 1.0
    beta2: float = 0.95
    pull: float = 0.0
    num_slow: int = 0
    slow_factor: float = 6.0
    adapts_sync_every: bool = True
    num_liars: int = 0
    lie: str = "negated"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r}; expected one of {', '.join(choices)}")
        if self.num_peers < 1 or self.sync_every < 1 or self.num_fragments < 1 or self.delay_rounds < 0:
            raise ValueError("expected num_peers, sync_every, num_fragments of at least 1 and no negative delay_rounds")
        if not 0 <= self.missing_share < 1:
            raise ValueError(f"missing_share {self.missing_share}; expected 0 to below 1")
        for name in ("num_slow", "num_liars"):
            if not 0 <= getattr(self, name) < self.num_peers:
                raise ValueError(f"{name} {getattr(self, name)}; expected 0 to below num_peers {self.num_peers}")
        if self.slow_factor < 1 or self.inner_lr_scale <= 0 or not 0 <= self.pull <= 1:
            raise ValueError("expected slow_factor of at least 1, inner_lr_scale above 0 and pull from 0 to 1")

    @property
    def delay_steps(self) -> int:
        """Inner steps between a send and its commit."""
        return round(self.delay_rounds * self.sync_every)

    def has_step(self, index: int, step: int) -> bool:
        """Whether replica `index` is done with an inner step at `step` of the fastest ones, counted from 1."""
        factor = self.slow_factor if index >= self.num_peers - self.num_slow else 1.0
        return int(step / factor) > int((step - 1) / factor)

    def lies(self, index: int) -> bool:
        """Whether replica `index` sends what `lie` says."""
        return index >= self.num_peers - self.num_liars

    def rule(self, progress: float = 0.0) -> OuterRule:
        """The outer rule at `progress` (0 to 1) of the run."""
        gain = self.overlay_gain
        if self.overlay_gain_end is not None:
            gain += (self.overlay_gain_end - gain) * progress
        mode: Mode = next(mode for mode in get_args(Mode) if mode == self.mode)
        combine: Combination = next(name for name in get_args(Combination) if name == self.combine)
        norm_ratio, weight_ratio = (None, None) if combine == "mean" else ROBUST_CLIP_RATIOS
        return OuterRule(
            mode=mode,
            outer_lr=self.outer_lr,
            outer_momentum=self.outer_momentum,
            overlay_gain=gain,
            staleness_limit=self.staleness_limit,
            combine=combine,
            clip_norm_ratio=norm_ratio,
            clip_weight_ratio=weight_ratio,
        )

    def changes_from(self, other: Arm) -> str:
        """The fields that differ from `other`, as they are written on the command line."""
        pairs = [(field.name, getattr(self, field.name), getattr(other, field.name)) for field in fields(self)]
        return ",".join(f"{name}={mine}" for name, mine, theirs in pairs if mine != theirs or name == "mode")


@dataclass(frozen=True)
class Task:
    """What all arms have in common: model, data, inner optimizer, length and how the loss is measured."""

    model: ModelSection
    training: TrainingSection
    corpus: Corpus
    evaluation_batches: int
    num_steps: int
    """Inner steps of each replica."""

    def rate_share(self, step: int) -> float:
        """Share of the peak rate at inner step `step`: after the warm-up a cosine down to a tenth."""
        warmup = self.training.warmup_steps
        done = min(1.0, max(0.0, (step - warmup) / max(1, self.num_steps - warmup)))
        return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Outcome:
    """One run of one arm.

    Attributes:
        curve: (inner step, validation loss of the anchor in nats per token); the last one after all was committed.
        live_loss: validation loss of the first replica's live parameters at the end, before that.
        diverged_at: inner step at which work was no longer finite; the loss is then NaN.
        bytes_per_peer: encoded contributions sent by one peer.
        projection: mean over commits and peers of <g, D_i> / <D_i, D_i>, g the committed mean.
        averaged_loss: validation loss of the mean of the anchors (data_parallel: parameters) at every `sync_every`
            steps of the last quarter of the run.
        num_refused: contributions that were left out through their senders' fault.
    """

    curve: tuple[tuple[int, float], ...]
    live_loss: float
    diverged_at: int | None
    bytes_per_peer: int
    num_commits: int
    projection: float = float("nan")
    averaged_loss: float = float("nan")
    num_refused: int = 0

    @property
    def loss(self) -> float:
        """Validation loss at the end, NaN when the run diverged."""
        return float("nan") if self.diverged_at is not None else self.curve[-1][1]


def with_length(training: TrainingSection, num_steps: int) -> TrainingSection:
    """The same settings with a warm-up of at most a tenth of `num_steps`."""
    return replace_model(training, warmup_steps=min(training.warmup_steps, num_steps // 10))


def replace_model(section: TrainingSection, **changes: object) -> TrainingSection:
    """A section with some fields changed, checked again."""
    return type(section).model_validate({**section.model_dump(), **changes})
