"""Small swarms without faults beside hosts of many keys: a pair is one with the records, and one without.

Faults of a chaos scenario move its dozen rounds by half when they come a second earlier. Here all that differs within a
pair is the records. As much as a control differs from itself `in_other_numbers` is chance.
"""

from __future__ import annotations

import random
from dataclasses import replace

from averaging.outer.outer_settings import Mode
from tests.kit.chaos.scenario import FIRST_SYBIL_SEED, Profile, Scenario, scenario_of

MODES: tuple[Mode, ...] = ("carry", "eager", "sync", "streaming")
SECONDS = 90.0
"""Of training, from the start of the run on."""
OTHER_NUMBERS = 1_000_000_000


def small_scenario_of(seed: int) -> Scenario:
    """Four to eight honest trainers, and one or two hostile hosts: at most a quarter, with ten keys per trainer."""
    chance = random.Random(f"record pairs {seed}")
    base = scenario_of(FIRST_SYBIL_SEED + seed)
    num_honest, interval = chance.randint(4, 8), chance.choice((3.0, 4.0, 6.0))
    slowest = chance.choice((1.0, 1.0, 2.0))
    honest = [
        Profile(
            interval_seconds=interval * chance.uniform(1.0, slowest),
            upload_bits_per_second=chance.choice((200e3, 2e6, 20e6)),
            clock_offset_seconds=0.0,
            starts_at_seconds=chance.choice((0.0, 0.0, chance.uniform(0.0, interval))),
            is_trainer=True,
            lie="",
        )
        for _ in range(num_honest)
    ]
    hostile = [profile for profile in base.profiles if profile.lie][: num_honest // 3]
    hostile = [
        replace(
            profile, interval_seconds=interval, starts_at_seconds=chance.choice((0.0, 0.0, chance.uniform(0.0, 40.0)))
        )
        for profile in hostile
    ]
    return replace(
        base,
        mode=chance.choice(MODES),
        codec=chance.choice(("fp32", "int4")),
        sizes=(chance.choice((20, 40)),),
        announce_seconds=interval * chance.uniform(0.6, 1.0),
        record_loss=0.0,
        stream_loss=0.0,
        duplicate=0.0,
        hold=0.0,
        window_bytes=1024 * 1024,
        chaos_seconds=SECONDS - 5 * interval,
        calm_seconds=5 * interval,
        profiles=(*honest, *hostile),
        faults=(),
        hostile_until="training ends",
    )


def in_other_numbers(scenario: Scenario) -> Scenario:
    """The same swarm and the same lies with another initial anchor, other lines, and other timing."""
    return replace(scenario, seed=scenario.seed + OTHER_NUMBERS)
