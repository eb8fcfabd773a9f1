"""The needs of a run at a usual home. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from peer.config.manifest import RunManifest
from peer.config.peer_config import BaseBits, OptimizerBits
from peer.plan.plan_source import plan_of


@dataclass(frozen=True, slots=True)
class HomeNeeds:
    """The needs of one machine among four equal ones, with one second per step.

    Attributes:
        disk_bytes: checkpoints and the run's files, without the installed software.
        device_bytes: parameters, gradients, optimizer state, one reference copy, and pretrained weights under an
            adapter, without the memory that a step needs for its batch.
        host_bytes: the network process, libraries, and copies while a checkpoint is written.
        upload_bits_per_second, download_bits_per_second: rates on the line at which all rounds keep pace.
    """

    disk_bytes: int
    device_bytes: int
    host_bytes: int
    upload_bits_per_second: float
    download_bits_per_second: float

    @property
    def memory_bytes(self) -> int:
        """Memory of both processes."""
        return self.device_bytes + self.host_bytes

    @property
    def bits_per_second(self) -> float:
        """Rate of the busier direction of the line."""
        return max(self.upload_bits_per_second, self.download_bits_per_second)


def home_needs(manifest: RunManifest, base_bits: BaseBits = "full", optimizer_bits: OptimizerBits = "32") -> HomeNeeds:
    """Count what `manifest` needs of a usual home.

    Raises:
        Incompatible: the run's model cannot be cut as its manifest specifies.
        LocalFault: a library or file from which the shapes are derived is missing.
    """
    plan = plan_of(manifest, base_bits, optimizer_bits)
    home = plan.home
    trainer = home.trainer_memory
    device_bytes = trainer.total_bytes - trainer.checkpoint_bytes - trainer.libraries_bytes
    return HomeNeeds(
        disk_bytes=plan.disk_bytes,
        device_bytes=device_bytes,
        host_bytes=trainer.checkpoint_bytes + trainer.libraries_bytes + home.network_memory.total_bytes,
        upload_bits_per_second=home.needed_upload_bits_per_second,
        download_bits_per_second=home.needed_download_bits_per_second,
    )
