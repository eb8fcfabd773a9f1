"""What goes wrong in one chaos run: a pure function of the seed, printed when the run fails."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from averaging.outer.outer_settings import Mode

FaultKind = Literal[
    "crash",
    "return_with_state",
    "return_empty",
    "leave",
    "partition",
    "heal",
    "stall",
    "resume",
    "reset_line",
    "stale_view",
    "fresh_view",
    "crash_leader",
    "crash_reducer",
    "stall_leader",
]
Lie = Literal["", "poison", "reverse", "forge", "hoard", "mute", "noise"]
Hostility = Literal["boast", "pretend", "inflate", "odd", "sink", "extreme", "constant"]
Sybil = Literal["free_records", "lone_commits"]
"""What a hostile host does under many keys, or as one of them, beside its hostility."""

HOSTILITIES: tuple[Hostility, ...] = get_args(Hostility)
FIRST_HOSTILE_SEED = 100_000
FIRST_SYBIL_SEED = 200_000
"""From here on the hostile hosts of a scenario publish free records as well."""

BLOCK_SIZE = 8
MIN_SHARD_VALUES = 16
"""In place of the real 8192, so that fragments of a few dozen values have several reducers."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to `peers` at a virtual second.

    - crash: kill -9; return_with_state: a new network process on the same memory; return_empty: one without memory.
    - leave: finish what is under way, say goodbye, go.
    - partition: `peers` on one side, all others on the other; heal ends it.
    - stall: nothing passes to or from `peers`, their streams stay open; resume ends it.
    - reset_line: all streams of `peers` break, once.
    - stale_view: `peers` hear no news of the membership and forget nobody; fresh_view ends it.
    - crash_leader, crash_reducer, stall_leader: hit whoever leads (reduces in) the next round of several members.
    """

    at_seconds: float
    kind: FaultKind
    peers: tuple[int, ...] = ()

    def __str__(self) -> str:
        whom = f" {', '.join(map(str, self.peers))}" if self.peers else ""
        return f"{self.at_seconds:6.1f} s  {self.kind}{whom}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One peer: how long it trains between two sends, its line, its clock, when it comes, whether it lies."""

    interval_seconds: float
    upload_bits_per_second: float
    clock_offset_seconds: float
    starts_at_seconds: float
    is_trainer: bool
    lie: Lie | Hostility | Sybil
    further: tuple[Lie | Hostility | Sybil, ...] = ()
    """What a hostile peer does beside `lie`."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. Probabilities are per message or stream; `calm_seconds` of training without faults follow the chaos."""

    seed: int
    mode: Mode
    codec: str
    combine: str
    sizes: tuple[int, ...]
    hard_seconds: float
    staleness_limit: int
    residual_decay: float
    quorum_fraction: float
    announce_seconds: float
    record_delay_seconds: float
    record_loss: float
    latency_seconds: tuple[float, float]
    partition_break_seconds: float
    stream_loss: float
    duplicate: float
    hold: float
    longest_hold_seconds: float
    compute_seconds: float
    chaos_seconds: float
    calm_seconds: float
    profiles: tuple[Profile, ...]
    faults: tuple[Fault, ...]
    hostile_until: Literal["chaos ends", "training ends"] = "chaos ends"
    window_bytes: int = 1024 * 1024

    def describe(self) -> str:
        """The whole scenario, one fact a line."""
        lines = [f"  {field.name} = {getattr(self, field.name)}" for field in fields(self) if field.name not in _LISTS]
        lines += [f"  peer {number}: {_text(profile)}" for number, profile in enumerate(self.profiles)]
        return "\n".join([f"chaos seed {self.seed}", *lines, *(f"  {fault}" for fault in self.faults)])


_LISTS = ("seed", "profiles", "faults")


def _text(profile: Profile) -> str:
    return (
        f"{'trains' if profile.is_trainer else 'follows'}, sends every {profile.interval_seconds:.1f} s, "
        f"{profile.upload_bits_per_second / 1000:.0f} kbit/s, clock {profile.clock_offset_seconds:+.0f} s"
        + (f", starts at {profile.starts_at_seconds:.1f} s" if profile.starts_at_seconds else "")
        + (f", lies: {', '.join((profile.lie, *profile.further))}" if profile.lie else "")
    )


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed; from `FIRST_HOSTILE_SEED` on a hostile swarm, from `FIRST_SYBIL_SEED` on one whose
    hostile hosts have many keys."""
    scenario = _plain_scenario(seed)
    if seed < FIRST_HOSTILE_SEED:
        return scenario
    return _hostile(scenario) if seed < FIRST_SYBIL_SEED else _with_keys(_hostile(scenario))


def without_records(scenario: Scenario) -> Scenario:
    """The same scenario in which each hostile host has one key, and does all else that it did."""
    profiles = [
        replace(profile, lie=profile.further[0], further=profile.further[1:])
        if profile.lie == "free_records"
        else profile
        for profile in scenario.profiles
    ]
    return replace(scenario, profiles=tuple(profiles))


def _with_keys(scenario: Scenario) -> Scenario:
    """The hostile hosts publish free records, half of them with lone commits, beside what they do anyway."""
    chance = random.Random(f"chaos keys {scenario.seed}")
    profiles = []
    for profile in scenario.profiles:
        if profile.lie:
            beside = (profile.lie, *profile.further) if chance.random() < 0.7 else ()
            lone: tuple[Sybil, ...] = ("lone_commits",) if chance.random() < 0.5 or not beside else ()
            profile = replace(profile, lie="free_records", further=(*lone, *beside))
        profiles.append(profile)
    return replace(scenario, profiles=tuple(profiles))


def _hostile(scenario: Scenario) -> Scenario:
    """The same swarm, honest, among strangers, with hostile peers: one for three honest ones at most."""
    chance = random.Random(f"chaos hostile {scenario.seed}")
    honest = [replace(profile, lie="") for profile in scenario.profiles]
    while len(honest) < 3:
        honest.append(replace(honest[-1], is_trainer=True, starts_at_seconds=0.0))
    count = chance.randint(1, len(honest) // 3)
    return replace(
        scenario,
        combine=chance.choice(("trimmed_mean", "centered_clip", "centered_clip", "radial_directional")),
        profiles=(*honest, *(_hostile_profile(chance, scenario) for _ in range(count))),
        hostile_until=chance.choice(("chaos ends", "training ends")),
        window_bytes=chance.choice((1024, 1024 * 1024)),
    )


def _hostile_profile(chance: random.Random, scenario: Scenario) -> Profile:
    kinds = chance.sample(HOSTILITIES, chance.choice((1, 1, 2, 3)))
    return Profile(
        interval_seconds=scenario.profiles[0].interval_seconds * chance.uniform(0.5, 2.0),
        upload_bits_per_second=chance.choice((200e3, 20e6)),
        clock_offset_seconds=chance.choice((0.0, chance.uniform(-60.0, 60.0))),
        starts_at_seconds=chance.choice((0.0, chance.uniform(0.0, 0.5) * scenario.chaos_seconds)),
        is_trainer=chance.random() < 0.9,
        lie=kinds[0],
        further=tuple(kinds[1:]),
    )


def _plain_scenario(seed: int) -> Scenario:
    chance = random.Random(f"chaos {seed}")
    num_peers = chance.choices(range(2, 10), (4, 5, 4, 3, 2, 1, 1, 1))[0]
    interval = chance.choice((3.0, 4.0, 6.0))
    chaos_seconds = interval * chance.randint(6, 14)
    is_lossy = chance.random() < 0.3
    tampers = chance.random() < 0.5
    mode: Mode = chance.choices(("carry", "eager", "own", "delayed", "sync", "streaming"), weights=(4, 2, 1, 2, 2, 2))[
        0
    ]  # type: ignore[assignment]
    profiles = _profiles(chance, num_peers, interval, chaos_seconds)
    return Scenario(
        seed=seed,
        mode=mode,
        codec=chance.choices(("fp32", "int4", "int8", "e3m0", "int2"), (5, 3, 1, 1, 1))[0],
        combine=chance.choices(("mean", "trimmed_mean", "centered_clip", "radial_directional"), (7, 1, 1, 1))[0],
        sizes=tuple(chance.choice((20, 40, 72)) for _ in range(chance.choice((1, 1, 2)))),
        hard_seconds=chance.choice((15.0, 20.0, 30.0)),
        staleness_limit=chance.choice((1, 2, 4)),
        residual_decay=chance.choice((1.0, 1.0, 1.0, 0.9)),
        quorum_fraction=chance.choice((0.25, 0.5, 0.5, 0.75)),
        announce_seconds=interval * chance.uniform(0.6, 1.0),
        record_delay_seconds=chance.uniform(0.1, 1.5),
        record_loss=chance.choice((0.0, 0.0, 0.2)),
        latency_seconds=chance.choice(((0.01, 0.05), (0.01, 0.15), (0.1, 0.3))),
        partition_break_seconds=chance.choice((1.0, 5.0, 15.0)),
        stream_loss=chance.uniform(0.02, 0.3) if is_lossy else 0.0,
        duplicate=chance.uniform(0.01, 0.2) if tampers else 0.0,
        hold=chance.uniform(0.005, 0.1) if tampers else 0.0,
        longest_hold_seconds=chance.choice((1.0, 10.0, 120.0)),
        compute_seconds=chance.choice((0.0, 0.0, 0.05, 0.5)),
        chaos_seconds=chaos_seconds,
        calm_seconds=5 * interval,
        profiles=profiles,
        faults=_faults(chance, profiles, interval, chaos_seconds),
    )


def _profiles(chance: random.Random, num_peers: int, interval: float, chaos_seconds: float) -> tuple[Profile, ...]:
    slowest = chance.choice((1.0, 1.0, 3.0, 10.0))
    liar = chance.randrange(1, num_peers) if num_peers >= 4 and chance.random() < 0.3 else None
    skewed = chance.random() < 0.3
    profiles = []
    for number in range(num_peers):
        is_late = number > 0 and chance.random() < 0.15
        profiles.append(
            Profile(
                interval_seconds=interval * (1.0 if number == 0 else chance.uniform(1.0, slowest)),
                upload_bits_per_second=chance.choice((20e3, 200e3, 2e6, 20e6)),
                clock_offset_seconds=chance.uniform(-60.0, 60.0) if skewed else 0.0,
                starts_at_seconds=chance.uniform(0.1, 0.9) * chaos_seconds if is_late else 0.0,
                is_trainer=number == 0 or chance.random() < 0.93,
                lie=_lie(chance) if number == liar else "",
            )
        )
    return tuple(profiles)


def _lie(chance: random.Random) -> Lie:
    return chance.choice(("poison", "reverse", "forge", "hoard", "mute", "noise"))


def _faults(
    chance: random.Random, profiles: tuple[Profile, ...], interval: float, chaos_seconds: float
) -> tuple[Fault, ...]:
    """Up to six troubles and what ends them. Peer 0 never loses its memory: somebody has seen everything."""
    faults: list[Fault] = []
    others = range(1, len(profiles))
    for _ in range(chance.randint(0, 6)):
        begin = chance.uniform(0.05, 1.0) * chaos_seconds
        end = min(begin + interval * chance.choice((0.3, 1.0, 2.0, 5.0)), chaos_seconds)
        trouble = chance.choices(
            ("crash", "leave", "partition", "flap", "stall", "reset_line", "stale_view", "ambush"),
            (4, 1, 4, 1, 2, 1, 2, 3),
        )[0]
        peer = (chance.randrange(len(profiles)),)
        if trouble == "crash":
            faults.append(Fault(begin, "crash", peer))
            how = "return_with_state" if peer == (0,) else chance.choice((*_RETURNS, ""))
            if how:
                faults.append(Fault(end, how, peer))  # type: ignore[arg-type]
        elif trouble == "leave" and others:
            faults.append(Fault(begin, "leave", (chance.choice(others),)))
        elif trouble == "partition":
            faults += [Fault(begin, "partition", _side(chance, len(profiles))), Fault(end, "heal")]
        elif trouble == "flap":
            side, period = _side(chance, len(profiles)), chance.uniform(0.5, interval)
            while begin < end:
                faults += [Fault(begin, "partition", side), Fault(begin + period / 2, "heal")]
                begin += period
        elif trouble == "stall":
            faults += [Fault(begin, "stall", peer), Fault(end, "resume", peer)]
        elif trouble == "reset_line":
            faults.append(Fault(begin, "reset_line", peer))
        elif trouble == "stale_view":
            faults += [Fault(begin, "stale_view", peer), Fault(end, "fresh_view", peer)]
        elif trouble == "ambush":
            faults.append(Fault(begin, chance.choice(("crash_leader", "crash_reducer", "stall_leader"))))
    return tuple(sorted(faults, key=lambda fault: (fault.at_seconds, fault.kind, fault.peers)))


_RETURNS: tuple[FaultKind, ...] = ("return_with_state", "return_empty")


def _side(chance: random.Random, num_peers: int) -> tuple[int, ...]:
    return tuple(sorted(chance.sample(range(num_peers), chance.randint(1, num_peers - 1))))
