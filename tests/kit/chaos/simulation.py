"""Random faults for whole simulated nodes and trainers: a pure function of the seed."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.kit.simulated.light_work import LIGHT_WORK
from tests.simulator.scenarios.spec import Fault, SimulationSpec, tiny_manifest


def spec_of_seed(seed: int) -> SimulationSpec:
    """A few peers that learn a quadratic, with up to five troubles among them, each with its end."""
    chance = random.Random(f"chaos simulation {seed}")
    num_peers = chance.randint(2, 6)
    sync_every = chance.choice((4, 8))
    manifest = tiny_manifest(
        seed,
        mode=chance.choice(("carry", "eager", "own", "delayed", "sync", "streaming")),
        codec=chance.choice(("int4", "int4", "fp32", "int8", "e3m0")),
        combine=chance.choice(("mean", "mean", "centered_clip")),
        sync_every=sync_every,
        outer_lr=0.3,
        overlap_steps=min(2, sync_every - 1),
    )
    spec = SimulationSpec(
        num_peers,
        chance.randint(30, 70),
        seed,
        manifest,
        step_seconds=(0.4, chance.choice((0.6, 1.5, 4.0))),
        stream_loss=chance.choice((0.0, 0.0, 0.05, 0.2)),
        workload=LIGHT_WORK,
    )
    return replace(spec, faults=_faults(chance, num_peers, spec.training_seconds))


def _faults(chance: random.Random, num_peers: int, training_seconds: float) -> tuple[Fault, ...]:
    """The first peer is spared what kills, so that somebody has seen everything."""
    faults: list[Fault] = []
    for _ in range(chance.randint(0, 5)):
        begin = training_seconds * chance.uniform(0.15, 0.8)
        end = begin + training_seconds * chance.uniform(0.03, 0.3)
        peer = (chance.randrange(num_peers),)
        victim = (chance.randrange(1, num_peers),)
        trouble = chance.choice(("crash", "restart", "partition", "stall", "late", "leader", "reducer"))
        if trouble == "crash":
            faults += [Fault(begin, "crash", victim), Fault(end, "start", victim)]
        elif trouble == "restart":
            faults.append(Fault(begin, "restart_network", peer))
        elif trouble == "partition":
            side = tuple(sorted(chance.sample(range(num_peers), chance.randint(1, num_peers - 1))))
            faults += [Fault(begin, "partition", side), Fault(end, "heal")]
        elif trouble == "stall":
            faults += [Fault(begin, "stall", peer), Fault(end, "resume", peer)]
        elif trouble == "late":
            faults.append(Fault(begin, "start", victim))
        elif num_peers > 3:
            faults.append(Fault(begin, "crash_leader" if trouble == "leader" else "crash_reducer"))
    return tuple(sorted(faults, key=lambda fault: fault.at_seconds))
