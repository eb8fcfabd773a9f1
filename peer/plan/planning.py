"""What a run will ask of a home: bytes, rates, round times, utilisation, memory, disk, time to so many tokens. Pure.

Everything is the steady state of a run in which nobody fails. Each fragment has one round per interval, everybody is in
it, and peers are as fast as the profile says. Bytes are those on the line, TCP and IP headers included. What is an
estimate is called one; docs/organiser/planning.md says how each figure comes about and what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from averaging.codec.codec import Codec
from averaging.outer.fragment_schedule import effective_sync_every
from averaging.rounds.leader_ranking import num_turns
from averaging.wire.messages import MAX_ROSTER
from dht.records.key_levels import SECONDS_PER_KEY, SPLIT_ABOVE, level_for
from dht.records.peer_record import MAX_PEER_RECORD_BYTES
from peer.config.averaging_rules import codec_of, codecs_of
from peer.config.manifest import RunManifest
from peer.memory.base_bits import base_num_bytes
from peer.memory.least_memory import FLOAT_BYTES
from peer.plan.homes import HomeGroup, PlanProfile
from peer.plan.memory_needs import NetworkMemory, TrainerMemory, disk_bytes, network_memory, trainer_memory
from peer.plan.round_seconds import LINE_SHARE, MemberLink, MemberTraffic, busy_seconds, round_seconds, round_traffic

RECORD_HOLDERS = 5
"""Members that keep a copy of each peer record (`dht.kademlia.dht_node.NUM_REPLICAS`)."""
RECORD_READS = 2
"""Copies of the records that each look reads (`dht.kademlia.dht_store.NUM_HOLDERS_READ`)."""
LOOKS_PER_ANNOUNCEMENT = 2


@dataclass(frozen=True, slots=True)
class HomePlan:
    """What the run asks of each home of one group.

    Attributes:
        sync_every: H of a machine of this speed.
        utilisation: share of the time in inner steps; below 1 in mode `sync` only, for only there a step waits.
        in_time: share of its work that gets into the round it was meant for; the rest goes into a later one.
        needed_upload_bits_per_second, needed_download_bits_per_second: on the line, for all rounds to keep pace.
        upload_share, download_share: those as a share of its line; above 1 it is too slow.
        upload_bytes_per_hour, download_bytes_per_hour: of the rounds, at the pace that the lines allow.
        record_bytes_per_hour: up and down each, at most; an estimate.
        tokens_per_second: of one home.
    """

    name: str
    count: int
    sync_every: int
    utilisation: float
    in_time: float
    needed_upload_bits_per_second: float
    needed_download_bits_per_second: float
    upload_share: float
    download_share: float
    upload_bytes_per_hour: float
    download_bytes_per_hour: float
    record_bytes_per_hour: float
    tokens_per_second: float
    trainer_memory: TrainerMemory
    network_memory: NetworkMemory


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The whole answer.

    Attributes:
        interval_seconds: between two rounds of the same fragment.
        round_seconds: of the largest fragment, from the last offer to the commit; without codec and averaging.
        contribution_bits_per_parameter, result_bits_per_parameter: of those that cross, frame headers included.
        goal_tokens: the profile's, or the run's own where the profile names none.
        goal_seconds: until all peers together have trained on the goal's tokens.
        disk_bytes: checkpoints that are kept, and one being written.
        join_bytes: what a newcomer downloads.
    """

    num_parameters: int
    fragment_sizes: tuple[int, ...]
    num_peers: int
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
    homes: tuple[HomePlan, ...]
    warnings: tuple[str, ...]


def plan_run(
    manifest: RunManifest, profile: PlanProfile, sizes: tuple[int, ...], num_orthogonalised: int = 0
) -> RunPlan:
    """What `manifest` asks of the homes in `profile`.

    Args:
        sizes: values of each fragment.
        num_orthogonalised: parameters of which the run's optimizer keeps one velocity in place of two moments.
    """
    section = manifest.averaging
    codec = codec_of(manifest)
    lines, first_members = _members(profile)
    rounds = _rounds(sizes, codecs_of(manifest, len(sizes)), lines, profile.num_seeds)
    step_tokens = manifest.step_tokens
    fastest_seconds = min(group.step_seconds for group in profile.peers)
    slowest_round = max(round_.seconds for round_ in rounds)
    local_seconds = [
        effective_sync_every(section.sync_every, 1 / group.step_seconds, 1 / fastest_seconds) * group.step_seconds
        for group in profile.peers
    ]
    pace = section.sync_every * fastest_seconds
    if section.mode == "sync":
        interval = max(local_seconds) + sum(round_.seconds for round_ in rounds)
    else:
        interval = max(pace, _busy_seconds(rounds, lines))
    homes = []
    for group, member, own_seconds in zip(profile.peers, first_members, local_seconds, strict=True):
        is_sync = section.mode == "sync"
        utilisation = own_seconds / interval if is_sync else 1.0
        in_time = 1.0 if is_sync else min(1.0, pace / own_seconds, pace / interval)
        traffic = [round_.traffic[member] for round_ in rounds]
        bytes_up = sum(part.bytes_up for part in traffic) / LINE_SHARE
        bytes_down = sum(part.bytes_down for part in traffic) / LINE_SHARE
        # In mode sync the line has the whole wait for itself: that wait is in the utilisation.
        needed_within = interval if is_sync else pace
        needed_up, needed_down = 8 * bytes_up / needed_within, 8 * bytes_down / needed_within
        homes.append(
            HomePlan(
                name=group.name,
                count=group.count,
                sync_every=round(own_seconds / group.step_seconds),
                utilisation=utilisation,
                in_time=in_time,
                needed_upload_bits_per_second=needed_up,
                needed_download_bits_per_second=needed_down,
                upload_share=needed_up / group.line.upload_bits_per_second,
                download_share=needed_down / group.line.download_bits_per_second,
                upload_bytes_per_hour=3600 / interval * bytes_up,
                download_bytes_per_hour=3600 / interval * bytes_down,
                record_bytes_per_hour=_record_bytes_per_hour(
                    profile.num_peers + profile.num_seeds, manifest.network.announce_seconds
                ),
                tokens_per_second=step_tokens / group.step_seconds * utilisation,
                trainer_memory=trainer_memory(
                    sum(sizes), num_orthogonalised, base_num_bytes(manifest, group.base_bits), group.optimizer_bits
                ),
                network_memory=network_memory(sizes, codec, section.mode, traffic, len(lines)),
            )
        )
    # Of all members and fragments: a member that reduces a small fragment whole sends nothing of it.
    crossing = [part for round_ in rounds for part in round_.traffic] if len(lines) > 1 else []
    num_crossing = sum(part.values for part in crossing)
    tokens_per_second = sum(home.count * home.tokens_per_second for home in homes)
    goal_tokens = profile.goal.tokens
    if "tokens" not in profile.goal.model_fields_set:
        goal_tokens = manifest.training.schedule.tokens or goal_tokens
    return RunPlan(
        num_parameters=sum(sizes),
        fragment_sizes=sizes,
        num_peers=profile.num_peers,
        interval_seconds=interval,
        round_seconds=slowest_round,
        rounds_per_hour=3600 / interval * len(sizes),
        contribution_bits_per_parameter=_bits(sum(part.contribution_bytes_up for part in crossing), num_crossing),
        result_bits_per_parameter=_bits(sum(part.result_bytes_down for part in crossing), num_crossing),
        tokens_per_second=tokens_per_second,
        goal_tokens=goal_tokens,
        goal_seconds=goal_tokens / tokens_per_second,
        disk_bytes=max(
            disk_bytes(sizes, codec, section.mode, num_orthogonalised, optimizer_bits=group.optimizer_bits)
            for group in profile.peers
        )
        + sum(file.bytes for file in manifest.files),
        join_bytes=2 * FLOAT_BYTES * sum(sizes) + sum(file.bytes for file in manifest.files),
        homes=tuple(homes),
        warnings=tuple(_warnings(manifest, profile, homes, slowest_round)),
    )


@dataclass(frozen=True, slots=True)
class _Round:
    traffic: tuple[MemberTraffic, ...]
    seconds: float


def _rounds(
    sizes: Sequence[int], codecs: Sequence[Codec], lines: Sequence[MemberLink], num_listeners: int
) -> list[_Round]:
    made: dict[tuple[int, str], _Round] = {}
    for size, codec in zip(sizes, codecs, strict=True):
        if (size, codec.name) not in made:
            seconds = round_seconds(round_traffic(size, codec, lines, num_listeners), lines)
            traffic = round_traffic(size, codec, lines, num_listeners, seconds)
            made[size, codec.name] = _Round(traffic, seconds)
    return [made[size, codec.name] for size, codec in zip(sizes, codecs, strict=True)]


def _busy_seconds(rounds: Sequence[_Round], lines: Sequence[MemberLink]) -> float:
    """How long one round of each fragment keeps the busiest line busy, or the longest of them takes."""
    of_members = (sum(busy_seconds(one.traffic[number], line) for one in rounds) for number, line in enumerate(lines))
    return max(*of_members, *(one.seconds for one in rounds))


def _members(profile: PlanProfile) -> tuple[list[MemberLink], list[int]]:
    """The lines of a round's contributors, and the number of the first member of each group."""
    counts = [group.count for group in profile.peers]
    if profile.num_peers > MAX_ROSTER:
        counts = [max(1, count * MAX_ROSTER // profile.num_peers) for count in counts]
        while sum(counts) > MAX_ROSTER:
            counts[counts.index(max(counts))] -= 1
    lines: list[MemberLink] = []
    first_members = []
    for group, count in zip(profile.peers, counts, strict=True):
        first_members.append(len(lines))
        lines += [group.line] * count
    return lines, first_members


def _record_bytes_per_hour(num_members: int, announce_seconds: float) -> float:
    """At most: each announcement goes to all holders, and each look reads every record from some of them, or a part."""
    announcements = 3600 / announce_seconds
    reads = RECORD_READS * num_members
    if level_for(num_members, 0):
        keys_in_turn = math.ceil(announce_seconds / LOOKS_PER_ANNOUNCEMENT / SECONDS_PER_KEY)
        reads = min(reads, (RECORD_READS + keys_in_turn) * SPLIT_ABOVE)
    copies = RECORD_HOLDERS + LOOKS_PER_ANNOUNCEMENT * reads
    return announcements * copies * MAX_PEER_RECORD_BYTES if num_members > 1 else 0.0


def _warnings(
    manifest: RunManifest, profile: PlanProfile, homes: Sequence[HomePlan], slowest_round: float
) -> list[str]:
    section = manifest.averaging
    said = []
    for home, group in zip(homes, profile.peers, strict=True):
        said += _line_warnings(home, group)
    if slowest_round > section.round_deadline_seconds:
        said.append(
            f"a round takes {slowest_round:.0f} s and round_deadline_seconds is {section.round_deadline_seconds:g}: "
            "rounds would end before all work is there; raise it or use more fragments"
        )
    if profile.num_peers > MAX_ROSTER:
        turns = num_turns(profile.num_peers)
        said.append(
            f"{profile.num_peers} peers contribute in {turns} turns: the figures are those of a round in which a peer "
            "contributes, beside each kind of home with its share"
        )
        if turns > section.staleness_limit + 1:
            said.append(
                f"work waits up to {turns} versions for its turn and averaging.staleness_limit is "
                f"{section.staleness_limit}: older work is dropped; raise it to {turns - 1}"
            )
    if profile.num_peers > 1 and not any(group.reachable for group in profile.peers):
        said.append("nobody is reachable: members cannot dial each other, and no round can close")
    return said


def _line_warnings(home: HomePlan, group: HomeGroup) -> list[str]:
    said = []
    for share, way, rate in (
        (home.upload_share, "upload", group.upload_mbit_per_second),
        (home.download_share, "download", group.download_mbit_per_second),
    ):
        if share > 1:
            said.append(
                f"the {way} of {home.name} ({rate:g} Mbit/s) is {share:.2g} times too slow for rounds at this pace; "
                "raise sync_every, or let slower lines join a run with a smaller model"
            )
    return said


def _bits(num_bytes: int, num_values: int) -> float:
    return 8 * num_bytes / num_values if num_values else 0.0
