"""From a scenario to one simulation: every peer's profile and what happens to it when. Pure.

Each peer draws from a random number generator of its own, so that one more peer in one group changes no other peer.
Times are rounded to milliseconds: a logarithm may differ in its last bit between machines.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from peer.config.manifest import NetworkSection, RunManifest
from tests.simulator.network.lines import LineSettings
from tests.simulator.scenarios.scenario import GroupSection, Scenario
from tests.simulator.scenarios.spec import Fault, FaultKind, Lie, PeerSpec, SimulationSpec, tiny_manifest

NUM_MEASUREMENTS = 24
"""Points of the loss curve."""
LIARS_END_BEFORE_SECONDS = 1.0
"""Liars are cut off so long before training ends: alone at work, their commits would become the heaviest."""


def spec_of(scenario: Scenario, seed: int) -> SimulationSpec:
    """The simulation that a scenario describes, with this seed in place of its own."""
    profiles: list[PeerSpec] = []
    faults: list[Fault] = []
    members: dict[str, list[int]] = {}
    manifest = _manifest_of(scenario, seed)
    is_quadratic = scenario.workload.kind == "quadratic"
    tokens_per_step = scenario.workload.tokens_per_step if is_quadratic else manifest.step_tokens
    for name, group in scenario.groups.items():
        members[name] = list(range(len(profiles), len(profiles) + group.count))
        for number, index in enumerate(members[name]):
            randomness = random.Random(f"{seed} group {name} {number}")
            profiles.append(_profile(name, group, tokens_per_step, randomness))
            faults += _life_of(group, index, 60 * scenario.duration_minutes, randomness)
    for partition in scenario.partitions.values():
        cut_off = tuple(index for name in partition.groups for index in members[name])
        faults.append(Fault(60 * partition.from_minute, "partition", cut_off))
        faults.append(Fault(60 * partition.to_minute, "heal"))
    for stall in scenario.stalls.values():
        silent = tuple(index for name in stall.groups for index in members[name][: stall.num_peers])
        faults.append(Fault(60 * stall.from_minute, "stall", silent))
        faults.append(Fault(60 * stall.to_minute, "resume", silent))
    network = scenario.network
    return SimulationSpec(
        num_peers=len(profiles),
        inner_steps=0,
        seed=seed,
        manifest=manifest,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_seconds)),
        record_delay_seconds=network.record_delay_seconds,
        settle_seconds=60 * scenario.settle_minutes,
        profiles=tuple(profiles),
        duration_seconds=60 * scenario.duration_minutes,
        same_site_latency_seconds=(
            None if network.same_site_latency_ms is None else network.same_site_latency_ms / 1000
        ),
        workload=scenario.workload,
        num_measurements=NUM_MEASUREMENTS,
        ends_with_goodbyes=False,
    )


def _manifest_of(scenario: Scenario, seed: int) -> RunManifest:
    tiny = tiny_manifest(seed)
    return RunManifest(
        name="simulated",
        seed=seed,
        model=scenario.model or tiny.model,
        training=scenario.training or tiny.training,
        averaging=scenario.averaging,
        network=NetworkSection(announce_seconds=scenario.network.announce_seconds),
    )


def _profile(name: str, group: GroupSection, tokens_per_step: int, randomness: random.Random) -> PeerSpec:
    upload = 1e6 * randomness.uniform(*group.upload_mbit_per_second)
    download = 5 * upload
    if group.download_mbit_per_second is not None:
        download = 1e6 * randomness.uniform(*group.download_mbit_per_second)
    if group.tokens_per_second is not None:
        step_seconds = tokens_per_step / randomness.uniform(*group.tokens_per_second)
    else:
        step_seconds = randomness.uniform(*(group.step_seconds or (1.0, 1.0)))
    latency_seconds = randomness.uniform(*group.latency_ms) / 1000
    return PeerSpec(
        name,
        LineSettings(upload, download, latency_seconds, group.stream_loss, group.site),
        step_seconds,
        randomness.uniform(*group.clock_skew_seconds),
        None if group.lie is None else Lie(group.lie, group.lie_scale, group.num_keys),
    )


def _life_of(group: GroupSection, index: int, end: float, randomness: random.Random) -> Iterator[Fault]:
    """What happens to one peer until training ends: starts, pauses, crashes, the last goodbye."""
    now = 60 * randomness.uniform(*group.joins_at_minute)
    leaves_at = math.inf if group.leaves_at_minute is None else 60 * randomness.uniform(*group.leaves_at_minute)
    if group.lie is not None and leaves_at >= end - LIARS_END_BEFORE_SECONDS:
        yield Fault(end - LIARS_END_BEFORE_SECONDS, "crash", (index,))
    horizon = min(end, leaves_at)
    if now >= horizon:
        return
    yield _at(now, "start", index)
    while True:
        pause_at = math.inf if group.online_minutes is None else now + 60 * randomness.uniform(*group.online_minutes)
        crash_at = now + _exponential(group.crashes_per_hour, randomness)
        here_until = min(pause_at, crash_at, horizon)
        yield from _naps(group, index, now, here_until, randomness)
        restart_at = now + _exponential(group.network_crashes_per_hour, randomness)
        while restart_at < here_until:
            yield _at(restart_at, "restart_network", index)
            restart_at += _exponential(group.network_crashes_per_hour, randomness)
        if here_until == horizon:
            break
        away_minutes = group.returns_after_minutes if crash_at < pause_at else group.offline_minutes
        yield _at(here_until, "crash" if crash_at < pause_at else "leave", index)
        if away_minutes is None:
            return
        now = here_until + 60 * randomness.uniform(*away_minutes)
        if now >= horizon:
            return
        yield _at(now, "start", index)
    if leaves_at < end:
        yield _at(leaves_at, "leave", index)


def _naps(group: GroupSection, index: int, now: float, until: float, randomness: random.Random) -> Iterator[Fault]:
    """Sleep and waking of a machine; the last sleep ends in time."""
    while group.awake_minutes is not None and group.asleep_minutes is not None:
        asleep_at = now + 60 * randomness.uniform(*group.awake_minutes)
        now = asleep_at + 60 * randomness.uniform(*group.asleep_minutes)
        if now >= until:
            return
        yield _at(asleep_at, "sleep", index)
        yield _at(now, "wake", index)


def _exponential(per_hour: float, randomness: random.Random) -> float:
    """Seconds until the next of events that come `per_hour` times an hour on average."""
    return -math.log(1.0 - randomness.random()) * 3600 / per_hour if per_hour else math.inf


def _at(seconds: float, kind: FaultKind, index: int) -> Fault:
    return Fault(round(seconds, 3), kind, (index,))
