"""The needs of a run at home: bytes, rates, round times, utilisation, memory, disk, time to a number of tokens. Pure.

Everything is the steady state of a run of `NUM_HOMES` usual homes in which nothing fails. Each fragment has one round
per interval, and every home is in it. Bytes are those on the line, TCP and IP headers included. Docstrings
mark the estimates; docs/organiser/planning.md explains each figure and its limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from averaging.codec.codec import Codec
from dht.records.peer_record import MAX_PEER_RECORD_BYTES
from peer.config.averaging_rules import codec_of, codecs_of
from peer.config.manifest import RunManifest
from peer.config.peer_config import BaseBits, OptimizerBits
from peer.memory.base_bits import base_num_bytes
from peer.memory.least_memory import FLOAT_BYTES
from peer.plan.memory_needs import NetworkMemory, TrainerMemory, disk_bytes, network_memory, trainer_memory
from peer.plan.round_seconds import LINE_SHARE, MemberLink, MemberTraffic, busy_seconds, round_seconds, round_traffic

NUM_HOMES = 4
STEP_SECONDS = 1.0
"""Duration of one inner step on each machine."""
LINE = MemberLink(upload_bits_per_second=20e6, download_bits_per_second=100e6, latency_seconds=0.02)
"""The line of each home."""
GOAL_TOKENS = 10**9
"""Goal of a run that sets no number of tokens."""

RECORD_HOLDERS = 5
"""Members that keep a copy of each peer record (`dht.kademlia.dht_node.NUM_REPLICAS`)."""
RECORD_READS = 2
"""Copies of the records that each lookup reads (`dht.kademlia.dht_store.NUM_HOLDERS_READ`)."""
LOOKS_PER_ANNOUNCEMENT = 2


@dataclass(frozen=True, slots=True)
class HomePlan:
    """The needs of the run at each home.

    Attributes:
        utilisation: share of the time spent in inner steps; below 1 in mode `sync` only, where a step waits.
        in_time: share of the work that is included in its intended round; the rest goes into a later one.
        needed_upload_bits_per_second, needed_download_bits_per_second: rates on the line at which all rounds keep pace.
        upload_share, download_share: those rates as a share of the line; above 1 the line is too slow.
        upload_bytes_per_hour, download_bytes_per_hour: traffic of the rounds, at the pace that the lines allow.
        record_bytes_per_hour: traffic of records, in each direction, at most; an estimate.
    """

    utilisation: float
    in_time: float
    needed_upload_bits_per_second: float
    needed_download_bits_per_second: float
    upload_share: float
    download_share: float
    upload_bytes_per_hour: float
    download_bytes_per_hour: float
    record_bytes_per_hour: float
    trainer_memory: TrainerMemory
    network_memory: NetworkMemory


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The whole plan.

    Attributes:
        interval_seconds: time between two rounds of the same fragment.
        round_seconds: time for the largest fragment, from the last offer to the commit, without codec and averaging.
        contribution_bits_per_parameter, result_bits_per_parameter: bits per transferred parameter, including headers.
        goal_tokens: the run's own goal, or `GOAL_TOKENS`.
        goal_seconds: time until all homes together have trained on the goal's tokens.
        disk_bytes: size of the kept checkpoints and one being written.
        join_bytes: bytes that a newcomer downloads.
    """

    num_parameters: int
    fragment_sizes: tuple[int, ...]
    interval_seconds: float
    round_seconds: float
    rounds_per_hour: float
    contribution_bits_per_parameter: float
    result_bits_per_parameter: float
    tokens_per_second: float
    goal_tokens: int
    goal_seconds: float
    disk_bytes: int
    join_bytes: int
    home: HomePlan
    warnings: tuple[str, ...]


def plan_run(
    manifest: RunManifest,
    sizes: tuple[int, ...],
    num_orthogonalised: int = 0,
    base_bits: BaseBits = "full",
    optimizer_bits: OptimizerBits = "32",
) -> RunPlan:
    """Count what `manifest` needs of a usual home.

    Args:
        sizes: number of values of each fragment.
        num_orthogonalised: parameters of which the run's optimizer keeps one velocity instead of two moments.
        base_bits, optimizer_bits: as for `peer join`.
    """
    section, codec = manifest.averaging, codec_of(manifest)
    is_sync = section.mode == "sync"
    rounds = _rounds(sizes, codecs_of(manifest, len(sizes)))
    slowest_round = max(round_.seconds for round_ in rounds)
    pace = section.sync_every * STEP_SECONDS
    interval = pace + sum(round_.seconds for round_ in rounds) if is_sync else max(pace, _busy_seconds(rounds))
    utilisation = pace / interval if is_sync else 1.0
    traffic = [round_.traffic[0] for round_ in rounds]
    bytes_up = sum(part.bytes_up for part in traffic) / LINE_SHARE
    bytes_down = sum(part.bytes_down for part in traffic) / LINE_SHARE
    # In mode sync the line is free during the whole wait, which is part of the utilisation.
    needed_within = interval if is_sync else pace
    needed_up, needed_down = 8 * bytes_up / needed_within, 8 * bytes_down / needed_within
    home = HomePlan(
        utilisation=utilisation,
        in_time=1.0 if is_sync else pace / interval,
        needed_upload_bits_per_second=needed_up,
        needed_download_bits_per_second=needed_down,
        upload_share=needed_up / LINE.upload_bits_per_second,
        download_share=needed_down / LINE.download_bits_per_second,
        upload_bytes_per_hour=3600 / interval * bytes_up,
        download_bytes_per_hour=3600 / interval * bytes_down,
        record_bytes_per_hour=_record_bytes_per_hour(manifest.network.announce_seconds),
        trainer_memory=trainer_memory(
            sum(sizes), num_orthogonalised, base_num_bytes(manifest, base_bits), optimizer_bits
        ),
        network_memory=network_memory(sizes, codec, section.mode, traffic, NUM_HOMES),
    )
    # Over all members and fragments, because a member that reduces a complete small fragment sends none of it.
    crossing = [part for round_ in rounds for part in round_.traffic]
    num_crossing = sum(part.values for part in crossing)
    tokens_per_second = NUM_HOMES * manifest.step_tokens / STEP_SECONDS * utilisation
    goal_tokens = manifest.training.schedule.tokens or GOAL_TOKENS
    file_bytes = sum(file.bytes for file in manifest.files)
    return RunPlan(
        num_parameters=sum(sizes),
        fragment_sizes=sizes,
        interval_seconds=interval,
        round_seconds=slowest_round,
        rounds_per_hour=3600 / interval * len(sizes),
        contribution_bits_per_parameter=_bits(sum(part.contribution_bytes_up for part in crossing), num_crossing),
        result_bits_per_parameter=_bits(sum(part.result_bytes_down for part in crossing), num_crossing),
        tokens_per_second=tokens_per_second,
        goal_tokens=goal_tokens,
        goal_seconds=goal_tokens / tokens_per_second,
        disk_bytes=disk_bytes(sizes, codec, section.mode, num_orthogonalised, optimizer_bits=optimizer_bits)
        + file_bytes,
        join_bytes=2 * FLOAT_BYTES * sum(sizes) + file_bytes,
        home=home,
        warnings=tuple(_warnings(manifest, home, slowest_round)),
    )


@dataclass(frozen=True, slots=True)
class _Round:
    traffic: tuple[MemberTraffic, ...]
    seconds: float


def _rounds(sizes: Sequence[int], codecs: Sequence[Codec]) -> list[_Round]:
    lines = [LINE] * NUM_HOMES
    made: dict[tuple[int, str], _Round] = {}
    for size, codec in zip(sizes, codecs, strict=True):
        if (size, codec.name) not in made:
            seconds = round_seconds(round_traffic(size, codec, lines), lines)
            made[size, codec.name] = _Round(round_traffic(size, codec, lines, seconds), seconds)
    return [made[size, codec.name] for size, codec in zip(sizes, codecs, strict=True)]


def _busy_seconds(rounds: Sequence[_Round]) -> float:
    """Return how long one round of each fragment keeps the busiest line busy, or the longest of the rounds if
    longer.
    """
    of_members = (sum(busy_seconds(one.traffic[number], LINE) for one in rounds) for number in range(NUM_HOMES))
    return max(*of_members, *(one.seconds for one in rounds))


def _record_bytes_per_hour(announce_seconds: float) -> float:
    """Return an upper bound: each announcement goes to all holders, and each lookup reads every record from some of
    them.
    """
    copies = RECORD_HOLDERS + LOOKS_PER_ANNOUNCEMENT * RECORD_READS * NUM_HOMES
    return 3600 / announce_seconds * copies * MAX_PEER_RECORD_BYTES


def _warnings(manifest: RunManifest, home: HomePlan, slowest_round: float) -> list[str]:
    warnings = [
        f"the {way} of a usual home ({rate / 1e6:g} Mbit/s) is {share:.2g} times too slow for rounds at this pace; "
        "raise sync_every, or choose a smaller model"
        for share, way, rate in (
            (home.upload_share, "upload", LINE.upload_bits_per_second),
            (home.download_share, "download", LINE.download_bits_per_second),
        )
        if share > 1
    ]
    deadline = manifest.averaging.round_deadline_seconds
    if slowest_round > deadline:
        warnings.append(
            f"a round takes {slowest_round:.0f} s, but round_deadline_seconds is {deadline:g}, so rounds would end "
            "before all work arrives; raise round_deadline_seconds, or use more fragments"
        )
    return warnings


def _bits(num_bytes: int, num_values: int) -> float:
    return 8 * num_bytes / num_values if num_values else 0.0
