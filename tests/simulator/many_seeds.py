"""Many random swarms in several processes, and which of them broke a rule."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from dht.ground.quantities import plural
from tests.simulator.result import SimulationResult
from tests.simulator.scenarios.random_swarms import spec_of_seed
from tests.simulator.simulation import simulate


def run_seeds(seeds: Sequence[int], num_jobs: int) -> int:
    """Simulate many random swarms and print which of them broke a rule. Returns the exit code."""
    began = time.perf_counter()
    num_broken = num_rounds = 0
    with ProcessPoolExecutor(num_jobs, multiprocessing.get_context("forkserver")) as pool:
        for seed, result in zip(seeds, pool.map(_simulated, seeds, chunksize=4), strict=True):
            num_rounds += result.rounds_committed
            num_broken += bool(result.violations)
            for violation in result.violations:
                print(f"seed {seed}: {violation}", flush=True)
    seconds = time.perf_counter() - began
    print(
        f"{plural(len(seeds), 'swarm')}, {plural(num_rounds, 'round')}, {num_broken} broken, {seconds:.0f} s: "
        f"{60 * len(seeds) / seconds:.0f} a minute"
    )
    return 1 if num_broken else 0


def _simulated(seed: int) -> SimulationResult:
    return simulate(spec_of_seed(seed))
