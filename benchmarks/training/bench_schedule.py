"""Rates of all peers under churn, and whether a peer that comes at the end raises the loss: swarms in virtual time.

    python -m benchmarks.training.bench_schedule [--steps 400] [--seeds 0,1,2] [--figure rates.svg] [--json]

One peer trains a model of two layers of width 64 along a cosine. When 95 % of it are over, a second one joins, which
has the anchors and a new optimizer. The validation loss of the anchors is measured from there on, for 40 % of the
cosine's steps. Arms: nobody joins; somebody does. The combination is the mean. `--figure` draws the rates of six peers
instead.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine import machine
from peer.config.learning_rate_schedule import ScheduleSection
from peer.config.manifest import RunManifest
from peer.config.model_section import ModelSection
from peer.config.training_section import TrainingSection
from peer.events.peer_events import Event, TrainingProgressed
from tests.simulator.network.lines import LineSettings
from tests.simulator.peer import EPOCH_SECONDS
from tests.simulator.scenarios.spec import Fault, PeerSpec, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

ARMS = ("nobody joins", "run's clock")
STEP_SECONDS = 0.5
JOINS_AT = 0.95
TOKENS_PER_STEP = 8 * 32
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#e08e1b", "#7a5195", "#444444")

Rates = dict[int, list[tuple[float, float]]]
"""Peer -> (virtual second, learning rate), in order."""


@dataclass(frozen=True, slots=True)
class Row:
    """One arm and seed; losses of the anchors in nats per token."""

    arm: str
    seed: int
    at_joining: float
    highest: float
    last: float
    violations: int


def late_joiner(arm: str, num_steps: int, seed: int, num_measurements: int = 54) -> Row:
    """Simulate one arm; the cosine has `num_steps` inner steps of one peer."""
    cosine = ScheduleSection(kind="cosine", tokens=num_steps * TOKENS_PER_STEP)
    training = TrainingSection(
        batch_size=8,
        learning_rate=5e-3,
        warmup_steps=20,
        schedule=cosine,
    )
    manifest = tiny_manifest(seed, combine="mean").model_copy(
        update={
            "model": ModelSection(num_layers=2, d_model=64, num_heads=2, vocab_size=32, context=32),
            "training": training,
        }
    )
    profile = PeerSpec("all", LineSettings(2e7, 1e8, None, 0.0), STEP_SECONDS)
    joins_at = JOINS_AT * num_steps * STEP_SECONDS
    duration = joins_at + 0.4 * num_steps * STEP_SECONDS
    faults = [Fault(0.0, "start", (0,))]
    if arm != "nobody joins":
        faults.append(Fault(joins_at, "start", (1,)))
    spec = SimulationSpec(
        *(2, 0, seed, manifest, tuple(faults)),
        profiles=(profile, profile),
        duration_seconds=duration,
        num_measurements=num_measurements,
    )
    result = simulate(spec)
    before = [one.loss for one in result.losses if one.hours * 3600 <= joins_at]
    after = [one.loss for one in result.losses if one.hours * 3600 > joins_at]
    return Row(arm, seed, before[-1], max(after), after[-1], len(result.violations))


def rates_under_churn(minutes: float, seed: int) -> tuple[Rates, RunManifest, int]:
    """Six peers along a cosine: (rates, manifest, violations). See docs/organiser/schedule.md for who does what."""
    tokens = int(minutes * 60 / STEP_SECONDS * 64 * 2.8)
    schedule = ScheduleSection(kind="cosine", tokens=tokens)
    manifest = tiny_manifest(seed)
    manifest = manifest.model_copy(update={"training": manifest.training.model_copy(update={"schedule": schedule})})
    speeds = (0.5, 0.6, 0.8, 3.0, 0.7, 0.5)
    profiles = tuple(PeerSpec("all", LineSettings(2e7, 1e8, None, 0.0), seconds) for seconds in speeds)
    end = 60 * minutes
    faults = (
        Fault(0.0, "start", (0, 1, 3, 4)),
        Fault(0.3 * end, "start", (2,)),
        Fault(0.4 * end, "crash", (4,)),
        Fault(0.5 * end, "start", (4,)),
        Fault(0.55 * end, "partition", (1,)),
        Fault(0.62 * end, "heal", (1,)),
        Fault(0.91 * end, "start", (5,)),
    )
    rates: Rates = {index: [] for index in range(len(speeds))}

    def on_event(index: int, event: Event) -> None:
        if isinstance(event.fact, TrainingProgressed) and event.fact.learning_rate is not None:
            rates[index].append((event.at - EPOCH_SECONDS, event.fact.learning_rate))

    spec = SimulationSpec(6, 0, seed, manifest, faults, profiles=profiles, duration_seconds=end)
    return rates, manifest, len(simulate(spec, on_event).violations)


def drawn(rates: Rates, peak: float) -> str:
    """An SVG of 720 x 300 with one line for each peer."""
    left, top, width, height = 60, 16, 640, 230
    end = max(at for points in rates.values() for at, _ in points)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 300" font-family="sans-serif" font-size="12">',
        '<rect width="720" height="300" fill="#fff"/>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = top + height * (1 - share)
        parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for minute in range(0, int(end / 60) + 1, 2):
        x = left + width * 60 * minute / end
        parts.append(f'<text x="{x:.1f}" y="{top + height + 16}" text-anchor="middle">{minute}</text>')
    parts.append(f'<text x="{left + width}" y="{top + height + 32}" text-anchor="end">minutes</text>')
    for index, points in rates.items():
        place, previous = [], -1e9
        for at, rate in points:
            # A peer that was away begins a line of its own.
            command = "M" if at - previous > 15 else "L"
            place.append(f"{command}{left + width * at / end:.1f} {top + height * (1 - rate / peak):.1f}")
            previous = at
        parts.append(f'<path d="{"".join(place)}" fill="none" stroke="{COLOURS[index]}" stroke-width="1.5"/>')
        parts.append(f'<text x="{left + 70 * index}" y="294" fill="{COLOURS[index]}">peer {index}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Measure and print. Returns 1 when an invariant of the simulation did not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="inner steps of the cosine, from 100 to 100 000")
    parser.add_argument("--seeds", default="0,1,2", help="whole numbers with commas between them")
    parser.add_argument("--figure", metavar="FILE", help="draw the rates of six peers under churn here, as SVG")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    seeds = given.seeds.split(",")
    if not 100 <= given.steps <= 100_000:
        parser.error(f"--steps is {given.steps}; expected 100 to 100 000")
    if not all(seed.isdecimal() for seed in seeds):
        parser.error(f"--seeds is {given.seeds!r}; expected whole numbers with commas between them")
    if given.figure:
        rates, manifest, violations = rates_under_churn(14.0, int(seeds[0]))
        Path(given.figure).write_text(drawn(rates, manifest.training.learning_rate), encoding="utf-8")
        print(f"{given.figure}: {sum(map(len, rates.values()))} rates of {len(rates)} peers")
        return 1 if violations else 0
    rows = [late_joiner(arm, given.steps, int(seed)) for seed in seeds for arm in ARMS]
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "machine": machine()}, indent=2))
    else:
        print("seed  arm           loss at 95 %  highest after  last")
        for row in rows:
            print(f"{row.seed:4}  {row.arm:12} {row.at_joining:13.4f} {row.highest:14.4f} {row.last:.4f}")
    return 1 if any(row.violations for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
