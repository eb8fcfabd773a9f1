"""Whether memory stays flat: resident memory over a thousand committed and a thousand failed rounds.

    python -m benchmarks.bench_memory [--rounds 1000] [--peers 3] [--values 200000] [--json]

The exchanges of all peers run in this one process over a simulated network in virtual time. So a leak of one peer shows
as many times over as there are peers. A failed round: all peers are cut off from each other as soon as it has begun. It
lasts long enough for every deadline to pass, and then they meet again. What is printed is the memory after each tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

from averaging.rounds.round_facts import AttemptEnded, RoundCommitted, RoundStarted
from benchmarks.machine import machine
from tests.kit.rounds.exchange_swarm import Swarm, now, scenario

CUT_SECONDS = 20.0
"""Streams across a cut break after 15 s, and a silent leader is left before that."""
MEET_SECONDS = 60.0
POINTS = 10


def resident_mb() -> float:
    """Of this process, now."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


class Curve:
    """Memory after each tenth of a number of rounds, and what became of them."""

    def __init__(self, num_rounds: int) -> None:
        self.num_rounds = num_rounds
        self.points: list[tuple[int, float]] = [(0, resident_mb())]
        self.num_committed = 0
        self.num_failures = 0

    def note(self, swarm: Any, number: int) -> None:
        """Count what the peers reported of round `number` (from 1), and forget it."""
        for peer in swarm.peers.values():
            self.num_failures += sum(isinstance(report, AttemptEnded) for report in peer.reports)
        first = next(iter(swarm.peers.values()))
        self.num_committed += sum(isinstance(report, RoundCommitted) for report in first.reports)
        for peer in swarm.peers.values():
            peer.reports.clear()
        swarm.tasks = [task for task in swarm.tasks if not task.done()]
        if number % max(1, self.num_rounds // POINTS) == 0:
            self.points.append((number, resident_mb()))
            print(f"{number} rounds: {self.points[-1][1]:.1f} MB", file=sys.stderr, flush=True)

    def facts(self) -> dict[str, Any]:
        """For the output. `growth_mb`: from the first tenth, when everything has its size, to the end."""
        return {
            "rounds": self.num_rounds,
            "commits_seen_by_one_peer": self.num_committed,
            "failed_attempts": self.num_failures,
            "resident_mb": self.points,
            "growth_mb": self.points[-1][1] - self.points[1][1],
        }


async def everybody_works(swarm: Any, seed: int) -> None:
    """One interval's work of every peer."""
    for number, peer in enumerate(swarm.live()):
        await peer.work(0, seed + number)


async def committed_rounds(swarm: Any, curve: Curve) -> None:
    """Rounds in which nothing goes wrong."""
    for number in range(1, curve.num_rounds + 1):
        await everybody_works(swarm, 10 * number)
        await asyncio.sleep(10.0)
        curve.note(swarm, number)


async def failed_rounds(swarm: Any, curve: Curve) -> None:
    """Rounds that are cut in the middle; the peers meet again before the next one."""
    names = sorted(swarm.peers)
    for number in range(1, curve.num_rounds + 1):
        await everybody_works(swarm, 10 * number)
        end = now() + CUT_SECONDS
        while now() < end and not _has_begun(swarm):  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.01)
        swarm.network.partition(*([name] for name in names))
        await asyncio.sleep(CUT_SECONDS)
        swarm.network.heal()
        await swarm.settle(MEET_SECONDS / 2)
        curve.note(swarm, number)


def _has_begun(swarm: Any) -> bool:
    return any(isinstance(report, RoundStarted) for peer in swarm.peers.values() for report in peer.reports)


def main() -> int:
    parser = argparse.ArgumentParser(description="Resident memory over many rounds.")
    parser.add_argument("--rounds", type=int, default=1000, help="of each kind (default 1000)")
    parser.add_argument("--peers", type=int, default=3, help="peers (default 3)")
    parser.add_argument("--values", type=int, default=200_000, help="parameters (default 200 000)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    if options.rounds < POINTS or options.peers < 2 or options.values < 1:
        parser.error(f"expected at least {POINTS} rounds, 2 peers and 1 value")
    found: dict[str, Any] = {}
    for kind, play in (("committed", committed_rounds), ("failed", failed_rounds)):

        async def run(kind: str = kind, play: Any = play) -> Any:
            swarm = Swarm(options.peers, sizes=(options.values,))  # type: ignore[no-untyped-call]
            await everybody_works(swarm, 1)
            await asyncio.sleep(30.0)
            curve = Curve(options.rounds)
            await play(swarm, curve)
            found[kind] = curve.facts()
            return swarm

        scenario(run)  # type: ignore[no-untyped-call]
    result = {
        "command": " ".join(["python -m benchmarks.bench_memory", *sys.argv[1:]]),
        "machine": machine(),
        "peers": options.peers,
        "values": options.values,
        **found,
    }
    if options.json:
        print(json.dumps(result))
        return 0
    print(result["command"])
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    for kind, facts in found.items():
        curve_text = " ".join(f"{megabytes:.0f}" for _, megabytes in facts["resident_mb"])
        print(f"{kind:10} {facts['rounds']} rounds of {options.peers} peers, {options.values} values each")
        print(f"           commits {facts['commits_seen_by_one_peer']}, failed attempts {facts['failed_attempts']}")
        print(f"           resident MB after each tenth: {curve_text}; growth {facts['growth_mb']:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
