"""What a run asks of a usual home, in four figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from peer.config.manifest import RunManifest
from peer.plan.homes import PlanProfile
from peer.plan.plan_source import plan_of


@dataclass(frozen=True, slots=True)
class HomeNeeds:
    """Of one machine, as `peer plan` says it for its usual homes (four alike, a second for each step).

    Attributes:
        disk_bytes: checkpoints and the run's files; installed software comes on top.
        memory_bytes: of both processes; what a step needs for its batch comes on top.
        bits_per_second: the busier direction of the line.
    """

    disk_bytes: int
    memory_bytes: int
    bits_per_second: float


def home_needs(manifest: RunManifest) -> HomeNeeds:
    """What `manifest` asks of a usual home.

    Raises:
        ValueError: the run's model cannot be cut as its manifest says.
        LocalFault: something that its shapes follow from is not here.
    """
    plan = plan_of(manifest, PlanProfile())
    (home,) = plan.homes
    return HomeNeeds(
        disk_bytes=plan.disk_bytes,
        memory_bytes=home.trainer_memory.total_bytes + home.network_memory.total_bytes,
        bits_per_second=max(home.needed_upload_bits_per_second, home.needed_download_bits_per_second),
    )
