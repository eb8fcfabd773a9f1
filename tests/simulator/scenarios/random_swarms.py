"""Small swarms under random faults: a pure function of the seed.

Seeds from `FIRST_HOSTILE_SEED` on have hostile peers, at most a quarter of all; those from `FIRST_KEYS_SEED` on have
hostile hosts that also publish records of further keys.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal, get_args

from tests.simulator.network.lines import LineSettings
from tests.simulator.scenarios.schedule import LIARS_END_BEFORE_SECONDS
from tests.simulator.scenarios.spec import (
    Fault,
    Lie,
    LieKind,
    PeerSpec,
    SimulationSpec,
    Tampering,
    WorkloadSection,
    tiny_manifest,
)

FIRST_HOSTILE_SEED = 100_000
FIRST_KEYS_SEED = 200_000
KEYS_OF_AN_HONEST_PEER = 10
"""Records that one hostile host publishes for each honest member."""
HELD_WITHIN = 0.7
"""Share of the training after which no message is held back: what was held must end before the swarm settles."""

TROUBLES = {
    "crash": 4,
    "restart_network": 3,
    "partition": 4,
    "flap": 1,
    "stall": 2,
    "reset_line": 1,
    "late": 1,
    "leave": 1,
    "sleep": 1,
    "ambush": 3,
}
"""What goes wrong, and how often beside the others."""


def spec_of_seed(seed: int) -> SimulationSpec:
    """The swarm of a seed: whole peers that learn a quadratic of a few dozen values, books beside them."""
    chance = random.Random(f"random swarm {seed}")
    is_hostile = seed >= FIRST_HOSTILE_SEED
    num_honest = chance.choices(range(2, 7), (8, 7, 3, 1, 1))[0] + is_hostile
    lies = _lies(chance, seed, num_honest) if is_hostile else ()
    sync_every = chance.choice((4, 8))
    combine = chance.choices(("mean", "centered_clip"), (3, 1))[0] if not is_hostile else "centered_clip"
    manifest = tiny_manifest(
        seed,
        mode=chance.choices(("carry", "eager", "sync", "streaming"), (4, 2, 2, 2))[0],
        codec=chance.choice(("int4", "fp32")),
        combine=combine,
        sync_every=sync_every,
        num_fragments=chance.choice((1, 1, 2)),
        outer_lr=0.3,
        round_deadline_seconds=chance.choice((15.0, 20.0, 30.0)),
    )
    training_seconds = 0.5 * sync_every * chance.randint(5, 8)
    slowest = chance.choice((0.6, 1.0, 2.5))
    names = range(num_honest + len(lies))
    return SimulationSpec(
        len(names),
        0,
        seed,
        manifest,
        profiles=tuple(_profile(chance, slowest, lies[n - num_honest] if n >= num_honest else None) for n in names),
        faults=_faults(chance, num_honest, len(names), training_seconds),
        duration_seconds=training_seconds,
        latency_seconds=chance.choice(((0.01, 0.05), (0.01, 0.15), (0.1, 0.3))),
        record_delay_seconds=chance.uniform(0.1, 1.5),
        settle_seconds=150.0,
        workload=WorkloadSection(num_values=chance.choice((32, 64, 96)), tokens_per_step=100, learning_rate=0.1),
        ends_with_goodbyes=False,
        keeps_books=True,
        min_shard_values=16,
        compute_seconds=chance.choice((0.0, 0.0, 0.05, 0.5)),
        partition_break_seconds=chance.choice((1.0, 5.0, 15.0)),
        window_bytes=chance.choice((1024, 1024 * 1024)),
        tampering=_tampering(chance, training_seconds),
    )


def without_keys(spec: SimulationSpec) -> SimulationSpec:
    """The same swarm and the same lies without records of further keys."""
    profiles = [
        profile if profile.lie is None else replace(profile, lie=replace(profile.lie, num_keys=0))
        for profile in spec.profiles
    ]
    return replace(spec, profiles=tuple(profiles))


def _lies(chance: random.Random, seed: int, num_honest: int) -> tuple[Lie, ...]:
    num_keys = KEYS_OF_AN_HONEST_PEER * num_honest if seed >= FIRST_KEYS_SEED else 0
    kinds: list[LieKind] = chance.sample(get_args(LieKind), chance.randint(1, num_honest // 3))
    if num_keys and chance.random() < 0.5:
        kinds[0] = "lone_commits"
    return tuple(Lie(kind, num_keys=num_keys) for kind in kinds)


def _profile(chance: random.Random, slowest: float, lie: Lie | None) -> PeerSpec:
    upload = chance.choice((200e3, 2e6, 20e6))
    line = LineSettings(upload, 5 * upload, None, chance.choice((0.0, 0.0, 0.0, 0.05, 0.2)))
    skew = chance.choice((0.0, 0.0, chance.uniform(-5.0, 5.0)))
    return PeerSpec("all" if lie is None else "hostile", line, chance.uniform(0.4, slowest), skew, lie)


def _tampering(chance: random.Random, training_seconds: float) -> Tampering | None:
    if chance.random() < 0.5:
        return None
    hold, duplicate = chance.uniform(0.005, 0.1), chance.uniform(0.01, 0.2)
    return Tampering(hold, duplicate, chance.choice((1.0, 10.0, 60.0)), HELD_WITHIN * training_seconds)


def _faults(chance: random.Random, num_honest: int, num_peers: int, training_seconds: float) -> tuple[Fault, ...]:
    """Up to five troubles and their ends. The first peer never loses its memory: somebody has seen everything."""
    faults = [Fault(round(chance.uniform(0.0, 3.0), 3), "start", (peer,)) for peer in range(num_peers)]
    for _ in range(chance.randint(0, 5)):
        begin = training_seconds * chance.uniform(0.15, 0.8)
        end = begin + training_seconds * chance.uniform(0.03, 0.3)
        peer, victim = (chance.randrange(num_honest),), (chance.randrange(1, num_honest),)
        trouble = chance.choices(tuple(TROUBLES), tuple(TROUBLES.values()))[0]
        if trouble == "crash":
            faults += [Fault(begin, "crash", victim), Fault(end, "start", victim)]
        elif trouble == "partition":
            faults += [Fault(begin, "partition", _side(chance, num_peers)), Fault(end, "heal")]
        elif trouble == "flap":
            side, period = _side(chance, num_peers), chance.uniform(1.0, 4.0)
            while begin < end:
                faults += [Fault(begin, "partition", side), Fault(begin + period / 2, "heal")]
                begin += period
        elif trouble == "stall":
            faults += [Fault(begin, "stall", peer), Fault(end, "resume", peer)]
        elif trouble == "sleep":
            faults += [Fault(begin, "sleep", peer), Fault(end, "wake", peer)]
        elif trouble == "late":
            faults = [fault for fault in faults if fault.kind != "start" or fault.peers != victim]
            faults.append(Fault(begin, "start", victim))
        elif trouble == "leave":
            faults += [Fault(begin, "leave", victim), Fault(end, "start", victim)]
        elif trouble == "ambush" and num_peers > 3:
            faults.append(Fault(begin, chance.choice(("crash_leader", "crash_reducer"))))
        elif trouble in ("restart_network", "reset_line"):
            kind: Literal["restart_network", "reset_line"] = trouble  # type: ignore[assignment]
            faults.append(Fault(begin, kind, peer))
    hostile = tuple(range(num_honest, num_peers))
    if hostile:
        faults.append(Fault(training_seconds - LIARS_END_BEFORE_SECONDS, "crash", hostile))
    return tuple(sorted(faults, key=lambda fault: fault.at_seconds))


def _side(chance: random.Random, num_peers: int) -> tuple[int, ...]:
    return tuple(sorted(chance.sample(range(num_peers), chance.randint(1, num_peers - 1))))
