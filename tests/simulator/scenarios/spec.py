"""What a simulation is asked to do: values only. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from averaging.rounds.shard_plan import MIN_SHARD_VALUES
from peer.config.manifest import AveragingSection, NetworkSection, RunManifest
from peer.config.model_section import ModelSection
from peer.config.section import Section
from peer.config.training_section import TrainingSection
from tests.simulator.network.lines import LineSettings

FaultKind = Literal[
    "start",
    "leave",
    "crash",
    "restart_network",
    "partition",
    "heal",
    "stall",
    "resume",
    "sleep",
    "wake",
    "reset_line",
    "crash_leader",
    "crash_reducer",
]
LieKind = Literal[
    "sign_flipped",
    "scaled",
    "random",
    "constant",
    "nan",
    "inf",
    "replayed",
    "copied",
    "forged_tokens",
    "wrong_mean",
    "drops_members",
    "lone_commits",
    "two_histories",
    "wrong_state",
    "boasts",
    "pretends",
    "inflates",
    "odd_records",
    "flood_records",
    "flood_streams",
    "huge_frames",
    "slow_reads",
    "garbage",
    "old_work",
    "shirks",
    "forges",
    "free_records",
]
"""`tests.simulator.adversaries.liars` says what the first nine send in place of their work,
`tests.simulator.adversaries.insiders` what the others do."""

START_SECONDS = 5.0
"""Peers without a start time of their own start within so many seconds."""


def tiny_manifest(seed: int, **averaging: object) -> RunManifest:
    """A run whose model trains in about a millisecond per inner step: one layer, 3888 parameters, 32 tokens.

    Args:
        averaging: fields of `AveragingSection` that differ from the simulator's own choice.
    """
    section = {"sync_every": 8, "num_fragments": 2, "round_deadline_seconds": 20.0, **averaging}
    return RunManifest(
        name="simulated",
        seed=seed,
        model=ModelSection(num_layers=1, d_model=16, num_heads=2, vocab_size=32, context=16),
        training=TrainingSection(batch_size=4, learning_rate=1e-2, warmup_steps=10),
        averaging=AveragingSection.model_validate(section),
        network=NetworkSection(announce_seconds=5.0),
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to peers at a virtual time, in seconds after the beginning.

    - start: the peers' processes start; of a crashed peer a new process with the same key.
    - leave: the trainer ends and the peer says goodbye in order.
    - crash: kill -9 of trainer and network process; restart_network: of the network process alone, which comes back.
    - partition: `peers` are cut off from all others; heal ends that.
    - stall: nothing passes to or from `peers`, though their streams stay open; resume ends that.
    - reset_line: all streams of `peers` break, once.
    - sleep: nothing of `peers` runs, trainer, network process and timers, while their clocks go on; wake ends that.
    - crash_leader, crash_reducer: kill the peer that leads (or reduces in) a round. It is the first of three or more
      members that starts after `at_seconds`, right at its start. `peers` is not read.
    """

    at_seconds: float
    kind: FaultKind
    peers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lie:
    """What a hostile peer does beside taking part; see `LieKind`."""

    kind: LieKind
    scale: float = 10.0
    num_keys: int = 0
    """Further keys whose records it publishes: they announce members that do no work."""


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """One simulated peer: its line, its speed, its clock and its honesty.

    Attributes:
        step_seconds: time of one inner step; each step varies by a tenth.
        clock_skew_seconds: of its wall clock, ahead when positive.
    """

    group: str
    line: LineSettings
    step_seconds: float
    clock_skew_seconds: float = 0.0
    lie: Lie | None = None


class WorkloadSection(Section):
    """What the peers learn."""

    kind: Literal["quadratic", "gpt"] = Field(
        default="quadratic",
        description="`quadratic` is a bowl with noisy gradients, cheap and equal to the bit on every machine. "
        "`gpt` is the built-in model of `[model]` on a small made-up language",
    )
    num_values: int = Field(default=65_536, ge=16, le=20_000_000, description="quadratic: parameters")
    tokens_per_step: int = Field(
        default=1024, ge=1, le=10**9, description="quadratic: tokens that one inner step counts"
    )
    learning_rate: float = Field(default=0.02, gt=0, le=1, description="quadratic: of the inner gradient descent")
    noise: float = Field(
        default=1.0, ge=0, le=1000, description="quadratic: half width of the gradient's uniform noise"
    )


LIGHT_WORK = WorkloadSection(num_values=200, tokens_per_step=64, learning_rate=0.05, noise=0.2)
"""What simulated peers learn where another thing is looked at: inner steps cost a tenth of the built-in model's.

A step has as many tokens as `tiny_manifest` has; the loss halves in some twenty steps of one peer.
"""


GPT_WORKLOAD = WorkloadSection(kind="gpt")


@dataclass(frozen=True, slots=True)
class Tampering:
    """What happens to messages of rounds on their way, as when they took different relays.

    Attributes:
        hold, duplicate: probability that a message comes later, or once more later.
        longest_hold_seconds: how much later at most.
        until_seconds: none are held from then on.
    """

    hold: float
    duplicate: float
    longest_hold_seconds: float
    until_seconds: float


@dataclass(frozen=True, slots=True)
class SimulationSpec:
    """One simulation. Equal specs give equal results, event for event.

    Attributes:
        inner_steps: that the fastest peer can take before training ends; slower ones take fewer.
        seed: of everything that is random.
        faults: what goes wrong, see `Fault`; peers without a "start" start within the first seconds.
        step_seconds: range of the time one inner step takes; each peer has its own from it.
        stream_loss: probability that a stream breaks soon after it was opened.
        settle_seconds: after training, how long the swarm may take at most until all anchors are equal.
        profiles: one for each peer; empty: drawn from `step_seconds` and `upload_bits_per_second`.
        duration_seconds: of training; None: as long as `inner_steps` take.
        workload: what is learned: a quadratic, or the manifest's model on a made-up language.
        num_measurements: of the validation loss during training, evenly spread.
        ends_with_goodbyes: whether everybody leaves in order at the end, which is checked, or just stops.
        keeps_books: whether `tests.simulator.books` checks every event of every round.
        min_shard_values: a fragment has one reducer for so many values.
        compute_seconds: how long heavy arithmetic takes at most, while other events happen.
    """

    num_peers: int
    inner_steps: int
    seed: int
    manifest: RunManifest
    faults: tuple[Fault, ...] = ()
    step_seconds: tuple[float, float] = (0.4, 0.8)
    latency_seconds: tuple[float, float] = (0.01, 0.12)
    upload_bits_per_second: tuple[float, float] = (2e6, 50e6)
    stream_loss: float = 0.0
    record_delay_seconds: float = 0.5
    settle_seconds: float = 180.0
    profiles: tuple[PeerSpec, ...] = ()
    duration_seconds: float | None = None
    same_site_latency_seconds: float | None = None
    workload: WorkloadSection = GPT_WORKLOAD
    num_measurements: int = 0
    ends_with_goodbyes: bool = True
    keeps_books: bool = False
    min_shard_values: int = MIN_SHARD_VALUES
    compute_seconds: float = 0.0
    partition_break_seconds: float = 15.0
    window_bytes: int = 1024 * 1024
    tampering: Tampering | None = None

    @property
    def training_seconds(self) -> float:
        """Virtual time during which peers train."""
        if self.duration_seconds is not None:
            return self.duration_seconds
        return START_SECONDS + self.inner_steps * self.step_seconds[0]

    def profile(self, index: int) -> PeerSpec:
        """Peer `index` as it is for the whole simulation."""
        if self.profiles:
            return self.profiles[index]
        upload = random.Random(f"{self.seed} line {index}").uniform(*self.upload_bits_per_second)
        step_seconds = random.Random(f"{self.seed} speed {index}").uniform(*self.step_seconds)
        return PeerSpec("all", LineSettings(upload, 5 * upload, None, self.stream_loss), step_seconds)


def plan_churn(num_peers: int, training_seconds: float, share: float, seed: int) -> tuple[Fault, ...]:
    """Faults for `share` of the peers: in turn one comes late, one crashes and returns, one crashes for good.

    The first peer is spared, so that somebody has seen everything.
    """
    randomness = random.Random(f"{seed} churn")
    chosen = randomness.sample(range(1, num_peers), min(num_peers - 1, round(share * num_peers)))
    faults = []
    for number, peer in enumerate(chosen):
        at = training_seconds * randomness.uniform(0.2, 0.6)
        if number % 3 == 0:
            faults.append(Fault(at, "start", (peer,)))
        else:
            faults.append(Fault(at, "crash", (peer,)))
            if number % 3 == 1:
                faults.append(Fault(at + training_seconds * randomness.uniform(0.05, 0.3), "start", (peer,)))
    return tuple(sorted(faults, key=lambda fault: fault.at_seconds))
