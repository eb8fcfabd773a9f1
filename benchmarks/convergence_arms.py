"""What `convergence.py` compares: an arm (one way of training together), the task all arms share, and an outcome."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_args

from averaging.outer import Mode, OuterRule
from peer.data import Corpus
from peer.manifest import ModelSection, TrainingSection

DATA_PARALLEL = "data_parallel"
MODES = (*get_args(Mode), DATA_PARALLEL)


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
            the own work in it, <g, D_i> / <D_i, D_i>: what the commit is expected to keep of own work.
        momentum_lookahead: share of eta beta^2 m, the part of the next outer step that is certain already, that the
            live parameters show beforehand.
        residual_shown: share of the error feedback that the live parameters show until it is sent; a peer shows all
            of it.
        error_feedback: False drops what encoding loses, at the sender and at the reducer.
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
    own_weight: float = 1.0
    codec: str = "int4"
    block_size: int = 128
    error_feedback: bool = True
    error_feedback_decay: float = 1.0
    residual_shown: float = 1.0
    missing_share: float = 0.0
    staleness_power: float = 1.0
    staleness_limit: int = 4
    lag_penalty: float = 0.0
    merge_alpha: float = 0.5

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r}; expected one of {', '.join(MODES)}")
        if self.num_peers < 1 or self.sync_every < 1 or self.num_fragments < 1 or self.delay_rounds < 0:
            raise ValueError("expected num_peers, sync_every, num_fragments of at least 1 and no negative delay_rounds")
        if not 0 <= self.missing_share < 1:
            raise ValueError(f"missing_share {self.missing_share}; expected 0 to below 1")

    @property
    def delay_steps(self) -> int:
        """Inner steps between a send and its commit."""
        return round(self.delay_rounds * self.sync_every)

    def rule(self, progress: float = 0.0) -> OuterRule:
        """The outer rule at `progress` (0 to 1) of the run."""
        gain = self.overlay_gain
        if self.overlay_gain_end is not None:
            gain += (self.overlay_gain_end - gain) * progress
        mode: Mode = next(mode for mode in get_args(Mode) if mode == self.mode)
        return OuterRule(
            mode=mode,
            outer_lr=self.outer_lr,
            outer_momentum=self.outer_momentum,
            overlay_gain=gain,
            own_weight=self.own_weight,
            staleness_power=self.staleness_power,
            staleness_limit=self.staleness_limit,
            lag_penalty=self.lag_penalty,
            residual_decay=self.error_feedback_decay if self.error_feedback else 0.0,
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

    @property
    def num_steps(self) -> int:
        """Inner steps of each replica."""
        assert self.training.total_steps is not None, "the number of steps is the length of the run"
        return self.training.total_steps


@dataclass(frozen=True)
class Outcome:
    """One run of one arm.

    Attributes:
        curve: (inner step, held-out loss of the anchor in nats per token); the last one after everything was committed.
        live_loss: held-out loss of the first replica's live parameters at the end, before that.
        diverged_at: inner step at which work was no longer finite; the loss is then NaN.
        bytes_per_peer: encoded contributions sent by one peer.
        projection: mean over commits and peers of <g, D_i> / <D_i, D_i>, g the committed mean.
    """

    curve: tuple[tuple[int, float], ...]
    live_loss: float
    diverged_at: int | None
    bytes_per_peer: int
    num_commits: int
    projection: float = float("nan")

    @property
    def loss(self) -> float:
        """Held-out loss at the end, NaN when the run diverged."""
        return float("nan") if self.diverged_at is not None else self.curve[-1][1]


def with_length(training: TrainingSection, num_steps: int) -> TrainingSection:
    """The same settings with a cosine over `num_steps`."""
    return replace_model(training, total_steps=num_steps, warmup_steps=min(training.warmup_steps, num_steps // 10))


def replace_model(section: TrainingSection, **changes: object) -> TrainingSection:
    """A section with some fields changed, checked again."""
    return type(section).model_validate({**section.model_dump(), **changes})
