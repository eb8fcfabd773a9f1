"""What a run will ask of this machine and how many rounds it will make, from what its members announce. Pure.

The same arithmetic as `peer plan`, with the run's live trainers as the other homes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dht.records.peer_record import PeerRecord
from peer.config.manifest import RunManifest
from peer.config.peer_config import BaseBits, OptimizerBits
from peer.doctor.doctor_facts import LineFacts, NeedFacts, PaceFacts
from peer.plan.homes import MAX_GROUPS, HomeGroup, PlanProfile
from peer.plan.plan_source import plan_of

_BIT = 1e-6
"""Mbit of a bit."""
UNKNOWN_ROUND_TRIP_SECONDS: Final = 0.05
_ENOUGH_MBIT: Final = 1000.0
"""Of a member's line, where it is not known: no round waits for that member then."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the run asks, and the share of its rounds that this peer makes in time, 0 to 1.

    Attributes:
        pace: how often a fragment has a round, and how much of its work is this peer's.
    """

    needs: NeedFacts
    share_of_rounds: float
    pace: PaceFacts


def predict(manifest: RunManifest, records: Sequence[PeerRecord], home: HomeGroup) -> Prediction:
    """This machine, `own_home`, among the run's live trainers, in the steady state of a run in which nobody fails.

    The share is the smallest of three. They are the work that is ready when its round is, and what the line carries of
    the run's rounds upwards and downwards. Members' upload is what they say, or enough where nobody measured it yet.
    How fast they download no member says: that is taken to be enough.
    """
    groups = _groups(manifest, records, home)
    num_seeds = sum(record.role == "seed" for record in records)
    profile = PlanProfile(peers=(home, *groups), num_seeds=num_seeds)
    plan = plan_of(manifest, profile)
    mine = plan.homes[0]
    trainer, network = mine.trainer_memory, mine.network_memory
    device_bytes = (
        trainer.parameters_bytes
        + trainer.gradients_bytes
        + trainer.optimizer_bytes
        + trainer.reference_bytes
        + trainer.base_bytes
    )
    needs = NeedFacts(
        device_bytes=device_bytes,
        memory_bytes=trainer.total_bytes - device_bytes + network.total_bytes,
        disk_bytes=plan.disk_bytes,
        join_bytes=plan.join_bytes,
        upload_bits_per_second=mine.needed_upload_bits_per_second,
        download_bits_per_second=mine.needed_download_bits_per_second,
        round_seconds=plan.round_seconds,
        round_deadline_seconds=manifest.averaging.round_deadline_seconds,
    )
    by_line = min(1.0, *(1 / share for share in (mine.upload_share, mine.download_share) if share > 0), 1.0)
    pace = PaceFacts(
        interval_seconds=plan.interval_seconds,
        own_steps=mine.sync_every,
        fastest_steps=manifest.averaging.sync_every,
        fastest_step_seconds=min((group.step_seconds for group in groups), default=None),
    )
    return Prediction(needs, min(mine.in_time, by_line), pace)


def own_home(
    step_seconds: float | None, line: LineFacts, base_bits: BaseBits = "full", optimizer_bits: OptimizerBits = "32"
) -> HomeGroup:
    """This machine's part of a plan; a rate that was not measured is that of a usual home.

    Args:
        step_seconds: of one inner step; None: not measured.
    """
    rates = {
        "upload_mbit_per_second": (line.upload_bits_per_second, line.upload_limit_bits_per_second),
        "download_mbit_per_second": (line.download_bits_per_second, line.download_limit_bits_per_second),
    }
    known = {
        name: min(1e6, max(0.01, _BIT * min(rate for rate in pair if rate is not None)))
        for name, pair in rates.items()
        if pair != (None, None)
    }
    round_trip = UNKNOWN_ROUND_TRIP_SECONDS if line.round_trip_seconds is None else line.round_trip_seconds
    return HomeGroup(
        name="this machine",
        count=1,
        step_seconds=min(1e6, max(1e-6, 1.0 if step_seconds is None else step_seconds)),
        round_trip_seconds=min(60.0, round_trip),
        reachable=bool(line.dial_back.reached),
        base_bits=base_bits,
        optimizer_bits=optimizer_bits,
        **known,
    )


def _groups(manifest: RunManifest, records: Sequence[PeerRecord], home: HomeGroup) -> list[HomeGroup]:
    """Live trainers, fastest first, those of like speed in one group; a rate of 0 was not measured yet."""
    step_tokens = manifest.step_tokens
    trainers = [record for record in records if record.role == "trainer" and record.tokens_per_second > 0]
    trainers.sort(key=lambda record: -record.tokens_per_second)
    size = max(1, -(-len(trainers) // (MAX_GROUPS - 1)))
    return [
        HomeGroup(
            name="members",
            count=len(alike),
            step_seconds=min(
                1e6, max(1e-6, step_tokens / statistics.median(record.tokens_per_second for record in alike))
            ),
            upload_mbit_per_second=_mbit([record.upload_bits_per_second for record in alike]),
            download_mbit_per_second=_ENOUGH_MBIT,
            round_trip_seconds=home.round_trip_seconds,
            reachable=any(record.reachable for record in alike),
        )
        for alike in _in_parts(trainers, size)
    ]


def _mbit(bits_per_second: Sequence[float]) -> float:
    known = [rate for rate in bits_per_second if rate > 0]
    return min(1e6, max(0.01, _BIT * statistics.median(known))) if known else _ENOUGH_MBIT


def _in_parts(records: Sequence[PeerRecord], size: int) -> list[Sequence[PeerRecord]]:
    return [records[start : start + size] for start in range(0, len(records), size)]
