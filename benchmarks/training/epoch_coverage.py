"""How much of one epoch a swarm reads, and how much of it twice, while peers crash and join.

    python -m benchmarks.training.epoch_coverage --peers 32 --crash 0.333 --epoch-seconds 3600 --seeds 3

The walks and views are the product's (`peer/data_division`). Records are announced and looked at every 10 s, and they
live 100 s.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from dht.records.data_reading import NUM_UNITS, Reading
from peer.data_division.others_reading import NOBODY, ReadingView, key_of, view_of
from peer.data_division.unit_choice import UnitWalk

ANNOUNCE_SECONDS = 10.0
LIFE_SECONDS = 100.0


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of one epoch, when the last live peer has left it.

    Attributes:
        seconds: since it began.
        covered: share of the blocks that somebody read.
        repeated: reads beyond the first of a block, as a share of all blocks.
    """

    seconds: float
    covered: float
    repeated: float


def simulate_epoch(
    *,
    num_peers: int = 32,
    crash_fraction: float = 1 / 3,
    num_newcomers: int = 0,
    num_blocks: int = 200_000,
    epoch_seconds: float = 3600.0,
    speed_ratio: float = 8.0,
    tick_seconds: float = 2.0,
    seed: int = 0,
) -> Coverage:
    """One epoch of a swarm.

    Args:
        crash_fraction: share of the first peers that ends without a word, each at a random time of the epoch.
        num_newcomers: join at random times.
        epoch_seconds: how long the epoch would take without crashes.
        speed_ratio: of the fastest to the slowest; speeds are log-uniform between them.
    """
    chance = np.random.default_rng(seed)
    total = num_peers + num_newcomers
    speeds = np.exp(chance.uniform(0, np.log(speed_ratio), total))
    speeds *= num_blocks / epoch_seconds / speeds[:num_peers].sum()
    names = [f"peer {seed} {number}" for number in range(total)]
    walks = [UnitWalk(key_of(name)) for name in names]
    ends, starts = np.full(total, np.inf), np.zeros(total)
    crashed = chance.choice(num_peers, round(num_peers * crash_fraction), replace=False)
    ends[crashed] = chance.uniform(0, epoch_seconds, len(crashed))
    starts[num_peers:] = chance.uniform(0, 0.9 * epoch_seconds, num_newcomers)
    announces, looks = (starts + chance.uniform(0, ANNOUNCE_SECONDS, total) for _ in range(2))
    credit, counts = np.zeros(total), np.zeros(num_blocks, np.int64)
    records: dict[int, tuple[float, Reading]] = {}
    views: list[ReadingView] = [NOBODY] * total
    bounds = [num_blocks * unit // NUM_UNITS for unit in range(NUM_UNITS + 1)]

    def size_of(epoch: int, unit: int) -> int:
        return bounds[unit + 1] - bounds[unit]

    now = 0.0
    while True:
        now += tick_seconds
        alive = [peer for peer in range(total) if starts[peer] <= now < ends[peer]]
        if all(walks[peer].epoch for peer in alive):
            extra = int(counts.sum() - np.count_nonzero(counts))
            return Coverage(now, float(np.mean(counts > 0)), extra / num_blocks)
        for peer in alive:
            if now >= announces[peer]:
                announces[peer] += ANNOUNCE_SECONDS
                records[peer] = now, walks[peer].reading(0)
            if now >= looks[peer]:
                looks[peer] += ANNOUNCE_SECONDS
                live = [
                    (names[other], reading)
                    for other, (at, reading) in records.items()
                    if other != peer and now - at < LIFE_SECONDS
                ]
                views[peer] = view_of(live, 0, walks[peer].epoch)
            credit[peer] += speeds[peer] * tick_seconds
            num_due = int(credit[peer])
            credit[peer] -= num_due
            for span in walks[peer].next_blocks(num_due, size_of, views[peer]) or []:
                if span.epoch == 0:
                    first = bounds[span.unit] + span.first
                    counts[first : first + span.count] += 1


def main() -> None:
    """Print a row per case and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=32)
    parser.add_argument("--crash", type=float, default=1 / 3)
    parser.add_argument("--newcomers", type=int, default=0)
    parser.add_argument("--epoch-seconds", type=float, default=3600.0)
    parser.add_argument("--seeds", type=int, default=3)
    choices = parser.parse_args()
    print("| seed | crash | newcomers | epoch, s | ends after, s | covered | repeated |\n|---|---|---|---|---|---|---|")
    for seed in range(choices.seeds):
        found = simulate_epoch(
            num_peers=choices.peers,
            crash_fraction=choices.crash,
            num_newcomers=choices.newcomers,
            epoch_seconds=choices.epoch_seconds,
            seed=seed,
        )
        print(
            f"| {seed} | {choices.crash:.0%} | {choices.newcomers} | {choices.epoch_seconds:.0f} | "
            f"{found.seconds:.0f} | {found.covered:.2%} | {found.repeated:.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
