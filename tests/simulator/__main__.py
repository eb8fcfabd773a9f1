"""`python -m tests.simulator`: from its flags to the summary."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence

from dht.ground.errors import EXIT_INTERRUPTED, UsageFault
from dht.ground.quantities import plural, seconds_text
from tests.simulator.many_seeds import run_seeds
from tests.simulator.result import summary_of
from tests.simulator.scenarios.random_swarms import spec_of_seed
from tests.simulator.scenarios.scenario import SHIPPED, list_scenarios, load_scenario
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.scenarios.spec import SimulationSpec, plan_churn, tiny_manifest
from tests.simulator.simulation import Progress, simulate

REDRAW_SECONDS = 0.3
"""Real time between two looks of the progress line."""
EQUAL_PEERS = {"peers": 32, "steps": 200, "churn": 0.1}
"""What a simulation without a scenario has."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print what happened. Returns 0 when every invariant held, 1 when one did not, 2 after a mistake."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description="Run a swarm in virtual time.")
    parser.add_argument("scenario", nargs="?", help=f"{', '.join(SHIPPED)}, random, or the path of a scenario.toml")
    parser.add_argument("--seed", type=int, help="same seed, same trace; default: the scenario's")
    parser.add_argument("--seeds", metavar="FIRST:END", help="with random: many seeds; prints those that break a rule")
    parser.add_argument("--jobs", type=int, default=1, help="with --seeds: processes; default 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", action="store_true", help="print the shipped scenarios")
    parser.add_argument("--peers", type=int, help="without a scenario: equal peers; default 32")
    parser.add_argument("--steps", type=int, help="without a scenario: inner steps of the fastest; default 200")
    parser.add_argument("--churn", type=float, help="without a scenario: share that crashes or comes late; default 0.1")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        return list_scenarios(chosen.json)
    sizes = {name: getattr(chosen, name) for name in EQUAL_PEERS}
    if chosen.scenario is not None and set(sizes.values()) != {None}:
        parser.error("--peers, --steps and --churn are given beside a scenario; expected them in its file")
    if chosen.scenario is None:
        sizes = {name: EQUAL_PEERS[name] if value is None else value for name, value in sizes.items()}
        return run(equal_peers(sizes["peers"], sizes["steps"], sizes["churn"], chosen.seed or 0), chosen.json)
    if chosen.scenario == "random":
        if chosen.seeds is None:
            return run(spec_of_seed(chosen.seed or 0), chosen.json)
        first, colon, end = chosen.seeds.partition(":")
        if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            parser.error(f"--seeds {chosen.seeds}; expected FIRST:END with FIRST < END, such as 0:1000")
        return run_seeds(range(int(first), int(end)), chosen.jobs)
    try:
        scenario = load_scenario(chosen.scenario)
    except UsageFault as error:
        parser.error(str(error))
    return run(spec_of(scenario, scenario.seed if chosen.seed is None else chosen.seed), chosen.json)


def equal_peers(num_peers: int, inner_steps: int, churn: float, seed: int) -> SimulationSpec:
    """Equal peers with a tiny model, of which the share `churn` crashes or comes late."""
    spec = SimulationSpec(num_peers, inner_steps, seed, tiny_manifest(seed))
    return dataclasses.replace(spec, faults=plan_churn(num_peers, spec.training_seconds, churn, seed))


def run(spec: SimulationSpec, as_json: bool) -> int:
    """Run one simulation and print its summary. Returns the exit code."""
    line = _ProgressLine()
    try:
        result = simulate(spec, on_progress=line.show)
    except KeyboardInterrupt:
        line.clear()
        print(f"Interrupted after {seconds_text(line.done_seconds)} of virtual time.", file=sys.stderr)
        return EXIT_INTERRUPTED
    line.clear()
    print(json.dumps(dataclasses.asdict(result)) if as_json else summary_of(result))
    return 1 if result.violations else 0


class _ProgressLine:
    """One line on standard error that is drawn over again, on a terminal only."""

    def __init__(self) -> None:
        self.done_seconds = 0.0
        self._is_terminal = sys.stderr.isatty()
        self._began_at = time.perf_counter()
        self._drawn_at = self._began_at

    def show(self, progress: Progress) -> None:
        """Say how far the simulation is."""
        self.done_seconds = progress.done_seconds
        now = time.perf_counter()
        if not self._is_terminal or now - self._drawn_at < REDRAW_SECONDS:
            return
        self._drawn_at = now
        share = min(1.0, progress.done_seconds / progress.training_seconds)
        text = (
            f"{share:4.0%} of {seconds_text(progress.training_seconds)} of virtual time, "
            f"{plural(progress.num_live_peers, 'peer')}, {plural(progress.rounds_committed, 'round')}, "
            f"{now - self._began_at:.0f} s"
        )
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
