"""What passes between two sites, by the number of peers at each: whole nodes in virtual time.

    python -m benchmarks.bench_sites [--per-site 2,4,8] [--minutes 6] [--values 262144] [--json]

Each site has a fast network inside (0.5 ms); between the sites there are 40 ms, and every peer uploads 100 Mbit/s. All
that the peers of one site send to the other is counted, records excepted. That is offers, contributions, means,
commits, and what a peer that missed a round fetches.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass

from benchmarks.machine import machine
from tests.simulator.scenarios.scenario import Scenario
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.simulation import simulate


@dataclass(frozen=True, slots=True)
class Row:
    """One size. Bytes per committed round, of all peers together."""

    per_site: int
    rounds: int
    share_of_rounds: float
    abroad_bytes: float
    all_bytes: float
    violations: int


def measure(per_site: int, minutes: float, num_values: int, seed: int) -> Row:
    """Simulate two sites of `per_site` peers each."""
    group = {"count": per_site, "upload_mbit_per_second": 100, "latency_ms": 20}
    averaging = {"sync_every": 20, "num_fragments": 1}
    scenario = Scenario.model_validate(
        {
            "duration_minutes": minutes,
            "workload": {"num_values": num_values},
            "averaging": averaging,
            "network": {"same_site_latency_ms": 0.5},
            "groups": {site: {**group, "site": site} for site in ("east", "west")},
        }
    )
    result = simulate(spec_of(scenario, seed))
    rounds = max(1, result.rounds_committed)
    abroad = sum(one.bytes_abroad * one.num_started for one in result.groups)
    share = sum(one.share_of_rounds for one in result.groups) / len(result.groups)
    in_all = sum(result.bytes_up) / rounds
    return Row(per_site, result.rounds_committed, share, abroad / rounds, in_all, len(result.violations))


def main() -> int:
    """Measure and print. Returns 1 when an invariant of the simulation did not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--per-site", default="2,4,8", help="peers at each site, from 1 to 64")
    parser.add_argument("--minutes", type=float, default=6.0, help="of virtual time, from 1 to 600")
    parser.add_argument("--values", type=int, default=262_144, help="of the one fragment, 16 to 20 000 000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = given.per_site.split(",")
    if not all(size.isdigit() and 1 <= int(size) <= 64 for size in sizes):
        parser.error(f"--per-site is {given.per_site!r}; expected whole numbers from 1 to 64 with commas between them")
    if not 1 <= given.minutes <= 600 or not 16 <= given.values <= 20_000_000:
        parser.error("--minutes from 1 to 600 and --values from 16 to 20 000 000 are expected")
    rows = [measure(int(size), given.minutes, given.values, given.seed) for size in sizes]
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "machine": machine()}, indent=2))
    else:
        print("per site  rounds  share of rounds  kB abroad/round  kB in all/round")
        for row in rows:
            print(
                f"{row.per_site:8} {row.rounds:7} {row.share_of_rounds:16.1%} {row.abroad_bytes / 1e3:16.0f} "
                f"{row.all_bytes / 1e3:16.0f}"
            )
    return 1 if any(row.violations for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
