"""`peer simulate`: from its flags to the summary."""

from __future__ import annotations

import dataclasses
import json
import sys
import time

from dht.ground.errors import EXIT_INTERRUPTED
from dht.ground.quantities import plural, seconds_text
from peer.simulation.result import summary_of
from peer.simulation.scenarios.scenario import load_scenario
from peer.simulation.scenarios.schedule import spec_of
from peer.simulation.scenarios.spec import SimulationSpec, plan_churn, tiny_manifest
from peer.simulation.simulation import Progress, simulate

REDRAW_SECONDS = 0.3
"""Real time between two looks of the progress line."""


def run_simulation(num_peers: int, inner_steps: int, seed: int, churn: float, as_json: bool) -> int:
    """Simulate equal peers with a tiny model and print what happened. Returns 0 when every invariant held, else 1."""
    spec = SimulationSpec(num_peers, inner_steps, seed, tiny_manifest(seed))
    spec = dataclasses.replace(spec, faults=plan_churn(num_peers, spec.training_seconds, churn, seed))
    return _run(spec, as_json)


def run_scenario(name_or_path: str, seed: int | None, as_json: bool) -> int:
    """Simulate what a scenario says and print what happened. Returns 0 when every invariant held, else 1.

    Raises:
        UsageFault: there is no such scenario, or something in its file is wrong.
    """
    scenario = load_scenario(name_or_path)
    return _run(spec_of(scenario, scenario.seed if seed is None else seed), as_json)


def _run(spec: SimulationSpec, as_json: bool) -> int:
    line = _ProgressLine()
    try:
        result = simulate(spec, on_progress=line.show)
    except KeyboardInterrupt:
        line.clear()
        print(f"peer: Interrupted after {seconds_text(line.done_seconds)} of virtual time.", file=sys.stderr)
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
