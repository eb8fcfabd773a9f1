"""What many keys of one host cost the rounds of honest members, in virtual time: attack and control, seed by seed.

    python -m benchmarks.trouble.bench_free_records [--seeds 0:100] [--seconds N] [--json]

Each seed is a random swarm of whole peers (`tests.simulator.scenarios.random_swarms`) with hostile hosts, up to a
quarter of all. Each of them publishes ten records for each honest member. Half of them also send commits of each key
alone; most do other harm as well. Its control is the same swarm, lies and faults without the records of further keys.
`--calm` leaves the faults out, because a crash that comes a second earlier moves a seed's rounds by more than the
records do.

Printed for each seed: commits in both, how often an honest member followed rounds that only hostile peers led and were
in, and the loss of the heaviest anchors. A follower that could reach an honest member that it knew is counted apart
from one that was alone with liars: no rule can help the second one before it meets others.

Equal swarms end with other losses if only their network has another seed, because each has few rounds. So the loss of
one seed says nothing alone. It counts as harmed if it is above `NOTED_RATIO` of its control's, and above the losses of
`NUM_FURTHER` more controls with other seeds of the network, by more than those differ among each other. All seeds
together are compared by the mean logarithm of attack / control, with twice its standard error.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from math import exp, inf, log, sqrt
from statistics import mean, median, stdev

from benchmarks.machine import machine
from tests.simulator.result import SimulationResult
from tests.simulator.scenarios.random_swarms import FIRST_KEYS_SEED, spec_of_seed, without_keys
from tests.simulator.scenarios.spec import SimulationSpec
from tests.simulator.simulation import simulate

NOTED_RATIO = 1.25
"""Of a control's loss: above, more controls are simulated."""
NUM_FURTHER = 4
OTHER_SEEDS = 10**9


@dataclass(frozen=True)
class Comparison:
    """One seed: attack beside control."""

    seed: int
    rounds: int
    rounds_of_control: int
    followed_liars: int
    """Rounds of hostile peers alone, counted at each honest member that followed one and could reach an honest one."""
    followed_liars_of_control: int
    alone_with_liars: int
    """The same at members that could not."""
    loss_ratio: float
    is_harmed: bool
    """Whether the loss is beyond what the network's seed explains."""
    violations: tuple[str, ...]
    violations_of_control: tuple[str, ...]


def compare(seed: int, is_calm: bool) -> Comparison:
    """One swarm beside its control."""
    spec = spec_of_seed(FIRST_KEYS_SEED + seed)
    spec = calm(spec) if is_calm else spec
    attack, control = simulate(spec), simulate(without_keys(spec))
    ratio = _gain(attack) / _gain(control)
    return Comparison(
        seed,
        attack.rounds_committed,
        control.rounds_committed,
        attack.events.get("followed liars", 0),
        control.events.get("followed liars", 0),
        attack.events.get("alone with liars", 0),
        ratio,
        ratio > NOTED_RATIO and _is_beyond_noise(attack, control, without_keys(spec)),
        attack.violations,
        control.violations,
    )


def calm(spec: SimulationSpec) -> SimulationSpec:
    """The same swarm without faults: everybody starts, and hostile peers are cut off at the end."""
    hostile = {index for index, profile in enumerate(spec.profiles) if profile.lie is not None}
    faults = [
        one for one in spec.faults if one.kind == "start" or (one.kind == "crash" and hostile.issuperset(one.peers))
    ]
    return replace(spec, faults=tuple(faults), tampering=None)


def _is_beyond_noise(attack: SimulationResult, control: SimulationResult, spec: SimulationSpec) -> bool:
    further = [simulate(replace(spec, seed=spec.seed + number * OTHER_SEEDS)) for number in range(1, 1 + NUM_FURTHER)]
    losses = [_gain(one) for one in (control, *further)]
    return _gain(attack) > max(losses) + (max(losses) - min(losses))


def _gain(result: SimulationResult) -> float:
    return max(result.loss_last, 1e-9) / result.loss_first


def summary(comparisons: list[Comparison]) -> str:
    """Some lines about all seeds."""
    rates = sorted(one.rounds / max(1, one.rounds_of_control) for one in comparisons)
    together = sum(one.rounds for one in comparisons) / max(1, sum(one.rounds_of_control for one in comparisons))
    followed = [sum(one.followed_liars > 0 for one in comparisons)]
    followed.append(sum(one.followed_liars_of_control > 0 for one in comparisons))
    losses = [log(one.loss_ratio) for one in comparisons]
    error = 2 * stdev(losses) / sqrt(len(losses)) if len(losses) > 1 else inf
    harmed = [one.seed for one in comparisons if one.is_harmed]
    num_alone = sum(one.alone_with_liars > 0 for one in comparisons)
    broken = [one for one in comparisons if one.violations]
    num_broken_controls = sum(bool(one.violations_of_control) for one in comparisons)
    lines = [
        f"{len(comparisons)} seeds; rounds, of the control's: {together:.3f} together, median {median(rates):.2f}, "
        f"lowest twentieth {rates[len(rates) // 20]:.2f}, lowest {rates[0]:.2f}",
        f"followed liars: in {followed[0]} seeds; in {followed[1]} controls; alone with liars: in {num_alone} seeds",
        f"loss, of the control's: {exp(mean(losses)):.3f} ({exp(mean(losses) - error):.3f} to "
        f"{exp(mean(losses) + error):.3f}); beyond noise in seeds {harmed or 'none'}",
        f"violations in {len(broken)} seeds and in {num_broken_controls} controls",
    ]
    return "\n".join([*lines, *(f"  seed {one.seed}: {one.violations[0][:160]}" for one in broken[:10])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further seed after so long")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    first, colon, end = options.seeds.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        parser.error(f"--seeds {options.seeds}; expected FIRST:END with FIRST < END, such as 0:100")
    began, comparisons = time.monotonic(), []
    for seed in range(int(first), int(end)):
        if time.monotonic() - began > options.seconds:
            break
        one = compare(seed, options.calm)
        comparisons.append(one)
        if not options.json:
            print(
                f"seed {seed}: {one.rounds} rounds, control {one.rounds_of_control}; followed liars "
                f"{one.followed_liars}, control {one.followed_liars_of_control}; alone with liars "
                f"{one.alone_with_liars}; loss {one.loss_ratio:.2f} of the control's" + ", harmed" * one.is_harmed,
                flush=True,
            )
    if options.json:
        print(json.dumps({"machine": machine(), "seeds": [asdict(one) for one in comparisons]}))
    else:
        print(summary(comparisons))


if __name__ == "__main__":
    main()
