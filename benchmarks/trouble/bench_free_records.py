"""What many keys of one host cost the rounds of honest members, in virtual time: attack and control, seed by seed.

    python -m benchmarks.trouble.bench_free_records [--seeds 0:100] [--small | --nodes] [--json]

Each seed is a random swarm with hostile hosts, up to a quarter of all, that publish ten records for each honest member.
Half of them also send commits of each key alone; most do other harm as well. Its control is the same swarm without the
records of further keys. Chaos runs play the exchange with random faults (`tests/kit/chaos`), which move a seed's rounds
far more than the records do. `--small` plays 4 to 8 honest members without faults, and the control once more in other
random numbers: by as much as the two controls differ, a seed says nothing. `--nodes` plays whole nodes and trainers
without faults, which takes several times as long and also gives losses.

Printed for each seed: rounds with honest work a minute in both, and how often an honest member applied a round in which
only liars were. With `--nodes` also the validation loss of attack and control, the highest of the second half.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from statistics import median

from benchmarks.machine import machine
from tests.kit.chaos.record_pairs import in_other_numbers, small_scenario_of
from tests.kit.chaos.record_storm import Storm, play
from tests.kit.chaos.scenario import FIRST_SYBIL_SEED, Scenario, scenario_of, without_records
from tests.kit.chaos.world import Outcome, run_scenario


@dataclass(frozen=True)
class Comparison:
    """One seed: attack beside control."""

    seed: int
    rounds_per_minute: float
    rounds_per_minute_of_control: float
    followed_liars: int
    """Rounds of liars alone, counted at each honest member that applied one though it could know better."""
    followed_liars_of_control: int
    loss_ratio: float | None
    violations: tuple[str, ...]
    violations_of_control: tuple[str, ...]
    rounds_per_minute_again: float | None = None
    """Of the control in other random numbers."""

    @property
    def rate(self) -> float:
        """Of the control's rounds."""
        return self.rounds_per_minute / max(self.rounds_per_minute_of_control, 1e-9)


def compare_small(seed: int) -> Comparison:
    """One small swarm without faults beside its two controls."""
    scenario = small_scenario_of(seed)
    again = run_scenario(in_other_numbers(without_records(scenario)))
    return replace(compare_exchanges(seed, scenario), rounds_per_minute_again=again.rounds_per_minute)


def compare_exchanges(seed: int, scenario: Scenario) -> Comparison:
    """One chaos run beside its control."""
    attack, control = run_scenario(scenario), run_scenario(without_records(scenario))
    return Comparison(
        seed,
        attack.rounds_per_minute,
        control.rounds_per_minute,
        attack.seen["followed liars"],
        control.seen["followed liars"],
        None,
        _violations(attack),
        _violations(control),
    )


def _violations(outcome: Outcome) -> tuple[str, ...]:
    return tuple(f"{invariant}: {what}" for invariant, what in outcome.violations)


def compare_nodes(seed: int) -> Comparison:
    """One swarm of whole nodes beside its control."""
    storm = Storm.of_seed(seed)
    attack, control = play(storm, with_records=True), play(storm, with_records=False)
    return Comparison(
        seed,
        attack.rounds_per_minute,
        control.rounds_per_minute,
        len(attack.lone),
        len(control.lone),
        attack.highest_loss / control.highest_loss,
        attack.violations,
        control.violations,
    )


def spread(comparisons: list[Comparison]) -> str:
    """Of all seeds' rounds together, and how they are spread."""
    rates = sorted(one.rate for one in comparisons if one.rounds_per_minute_of_control)
    of_all = sum(one.rounds_per_minute for one in comparisons) / sum(
        one.rounds_per_minute_of_control for one in comparisons
    )
    return (
        f"{of_all:.3f} together, median {median(rates):.2f}, lowest twentieth {rates[len(rates) // 20]:.2f}, "
        f"lowest hundredth {rates[len(rates) // 100]:.2f}, lowest {rates[0]:.2f}; {sum(rate < 0.9 for rate in rates)} "
        f"below .9"
    )


def summary(comparisons: list[Comparison]) -> str:
    """Some lines about all seeds."""
    lines = [f"{len(comparisons)} seeds; rounds a minute, of the control's: {spread(comparisons)}"]
    if again := [
        replace(one, rounds_per_minute=one.rounds_per_minute_again)
        for one in comparisons
        if one.rounds_per_minute_again is not None
    ]:
        lines.append(f"the control in other random numbers: {spread(again)}")
    lines += [
        f"followed liars: in {sum(one.followed_liars > 0 for one in comparisons)} seeds; "
        f"in {sum(one.followed_liars_of_control > 0 for one in comparisons)} controls",
    ]
    losses = [one.loss_ratio for one in comparisons if one.loss_ratio is not None]
    if losses:
        lines.append(f"loss, of the control's: median {median(losses):.2f}, highest {max(losses):.3g}")
    broken = [one for one in comparisons if one.violations]
    num_broken_controls = sum(bool(one.violations_of_control) for one in comparisons)
    lines.append(f"violations in {len(broken)} seeds and in {num_broken_controls} controls")
    return "\n".join([*lines, *(f"  seed {one.seed}: {one.violations[0][:160]}" for one in broken[:10])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--small", action="store_true", help="small swarms without faults, with two controls each")
    kinds.add_argument("--nodes", action="store_true", help="whole nodes and trainers, with losses")
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
        if options.small:
            one = compare_small(seed)
        elif options.nodes:
            one = compare_nodes(seed)
        else:
            one = compare_exchanges(seed, scenario_of(FIRST_SYBIL_SEED + seed))
        comparisons.append(one)
        if options.json:
            continue
        loss = "" if one.loss_ratio is None else f", loss {one.loss_ratio:.2f} of the control's"
        print(
            f"seed {seed}: {one.rounds_per_minute:.1f} rounds a minute, {one.rate:.2f} of the control's; "
            f"followed liars {one.followed_liars}, control {one.followed_liars_of_control}{loss}",
            flush=True,
        )
    if options.json:
        print(json.dumps({"machine": machine(), "seeds": [asdict(one) for one in comparisons]}))
    else:
        print(summary(comparisons))


if __name__ == "__main__":
    main()
