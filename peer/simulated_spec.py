"""What a simulation is asked to do and what it found: values only. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from peer.manifest import AveragingSection, DataSection, ModelSection, NetworkSection, RunManifest, TrainingSection

FaultKind = Literal[
    "start", "crash", "restart_network", "partition", "heal", "stall", "resume", "crash_leader", "crash_reducer"
]


def tiny_manifest(seed: int, **averaging: object) -> RunManifest:
    """A run whose model trains in about a millisecond per inner step: one layer, 3888 parameters, 32 tokens.

    Args:
        averaging: fields of `AveragingSection` that differ from the simulator's own choice.
    """
    section = {"sync_every": 8, "num_fragments": 2, "block_size": 16, "round_deadline_seconds": 20.0, **averaging}
    return RunManifest(
        name="simulated",
        seed=seed,
        model=ModelSection(num_layers=1, d_model=16, num_heads=2, vocab_size=32, context=16),
        data=DataSection(evaluation_batches=4),
        training=TrainingSection(batch_size=4, learning_rate=1e-2, warmup_steps=10, weight_decay=0.0),
        averaging=AveragingSection.model_validate(section),
        network=NetworkSection(announce_seconds=5.0),
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to peers at a virtual time, in seconds after the beginning.

    - start: the peers' processes start; of a crashed peer a new process with the same key.
    - crash: kill -9 of trainer and network process; restart_network: of the network process alone, which comes back.
    - partition: `peers` are cut off from all others; heal ends that.
    - stall: nothing passes to or from `peers`, though their streams stay open; resume ends that.
    - crash_leader, crash_reducer: kill whoever leads (or reduces in) the first round of at least three members that
      starts after `at_seconds`, right at its start. `peers` is not read.
    """

    at_seconds: float
    kind: FaultKind
    peers: tuple[int, ...] = ()


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

    @property
    def training_seconds(self) -> float:
        """Virtual time during which peers train."""
        return START_SECONDS + self.inner_steps * self.step_seconds[0]


START_SECONDS = 5.0
"""Peers without an own start time start within so many seconds."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What happened. `violations` is empty when every invariant held.

    Attributes:
        rounds_committed: different (fragment, version, leader) that anybody saw committed.
        rounds_failed: different (fragment, version, attempt) that anybody gave up.
        staleness: versions late -> number of contributions sent.
        loss_first, loss_last: held-out loss of the initial parameters and of the final anchors, nats per token.
        versions: final anchor version per fragment.
        trace_hash: SHA-256 over all events in order; equal for equal specs on one machine.
    """

    num_peers: int
    num_live_peers: int
    seed: int
    inner_steps: int
    tokens: int
    rounds_committed: int
    rounds_failed: int
    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]
    staleness: Mapping[int, int]
    loss_first: float
    loss_last: float
    anchors_equal: bool
    versions: tuple[int, ...]
    events: Mapping[str, int]
    trace_hash: str
    virtual_seconds: float
    real_seconds: float
    violations: tuple[str, ...] = field(default=())


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
