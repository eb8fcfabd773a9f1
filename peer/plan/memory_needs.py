"""The memory and disk space that a peer of a run needs, from the sizes of its fragments. Pure.

Sizes of our own data are computed; the memory of libraries was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from averaging.codec.codec import Codec
from averaging.fragment.broadcast_errors import MOST_OF_AVERAGED
from averaging.outer.shard_mean import kept_error_num_bytes
from averaging.transfer.snapshots import MAX_SNAPSHOTS
from averaging.wire.messages import HISTORY_COMMITS
from peer.checkpoint.checkpoint import KEPT_CHECKPOINTS
from peer.config.peer_config import OptimizerBits
from peer.mailbox.mailbox import mailbox_num_bytes
from peer.memory.least_memory import FLOAT_BYTES
from peer.plan.round_seconds import MemberTraffic

TRAINER_LIBRARIES_BYTES = 258_000_000
"""Resident memory of a process that has loaded torch and our code, but no model: Linux x86-64, Python 3.11, torch
2.13.0 (CPU)."""
VALUES_PER_SCALE = 256
"""Values per block of 8-bit moments in bitsandbytes: each block has a float32 scale (arXiv 2110.02861)."""
NETWORK_LIBRARIES_BYTES = 74_000_000
"""Resident memory of an empty network process, with numpy 2.4.6 and hivemind's DHT.
`python -m benchmarks.bench_footprint` prints both as "imports alone"."""
DAEMON_BYTES = 66_000_000
"""Resident memory of p2pd: 40 to 66 MB, depending on the number of connections."""


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Bytes of the trainer process, on its device or in host memory, without activations.

    Attributes:
        checkpoint_bytes: copies that wait for the disk while a checkpoint is written, up to a quarter of the machine's
            memory.
        base_bytes: pretrained weights under an adapter, without gradients or copies.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    reference_bytes: int
    checkpoint_bytes: int
    libraries_bytes: int
    base_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return int(sum(astuple(self)))


@dataclass(frozen=True, slots=True)
class NetworkMemory:
    """Bytes of the network process.

    Attributes:
        mailbox_bytes: anchors, momentum, residuals, slots and own contributions under way, shared with the trainer
            process.
        encoded_bytes: the same contributions while they are sent, those of past rounds, and results kept for others.
        copies_bytes: fragments that newcomers fetch, with their momentum; only during a fetch.
        velocity_bytes: own velocity, in mode `eager`.
        reducing_bytes: the contributions that a reducer receives in one round, their mean, and its broadcast errors.
    """

    mailbox_bytes: int
    encoded_bytes: int
    copies_bytes: int
    velocity_bytes: int
    reducing_bytes: int
    libraries_bytes: int
    daemon_bytes: int

    @property
    def total_bytes(self) -> int:
        return int(sum(astuple(self)))


def optimizer_bytes(num_parameters: int, num_orthogonalised: int = 0, bits: OptimizerBits = "32") -> int:
    """Return the bytes of an inner optimizer: AdamW's two moments, or Muon's single velocity in float32."""
    value_bytes = FLOAT_BYTES if bits == "32" else 1 + FLOAT_BYTES / VALUES_PER_SCALE
    return int(value_bytes * (2 * num_parameters - num_orthogonalised))


def trainer_memory(
    num_parameters: int, num_orthogonalised: int = 0, base_bytes: int = 0, optimizer_bits: OptimizerBits = "32"
) -> TrainerMemory:
    """Count the built-in trainer's memory: float32 parameters and gradients, optimizer state and one reference copy.

    Args:
        num_parameters: number of trained parameters.
        base_bytes: size of the frozen parameters.
    """
    copy, moments = FLOAT_BYTES * num_parameters, optimizer_bytes(num_parameters, num_orthogonalised, optimizer_bits)
    return TrainerMemory(copy, copy, moments, copy, 2 * copy + moments, TRAINER_LIBRARIES_BYTES, base_bytes)


def network_memory(
    sizes: Sequence[int], codec: Codec, mode: str, traffic: Sequence[MemberTraffic], num_members: int
) -> NetworkMemory:
    """Count the memory of one peer while rounds of all fragments are in progress.

    Args:
        traffic: traffic of this peer, one entry per fragment.
    """
    encoded = sum(codec.encoded_num_bytes(size) for size in sizes)
    reduced = [size - part.values for size, part in zip(sizes, traffic, strict=True)]
    return NetworkMemory(
        mailbox_bytes=mailbox_num_bytes(sizes, [codec.encoded_num_bytes(size) for size in sizes]),
        # One contribution of each fragment is under way. Past rounds have results, kept for members that missed them,
        # and own contributions where means are audited.
        encoded_bytes=(1 + 2 * HISTORY_COMMITS) * encoded,
        copies_bytes=sum(sorted(2 * FLOAT_BYTES * size for size in sizes)[-MAX_SNAPSHOTS:]),
        velocity_bytes=FLOAT_BYTES * sum(sizes) if mode == "eager" else 0,
        # Broadcast errors are stored at 8 bits (`averaging.fragment.broadcast_errors`); open rounds need the same
        # amount again for the values that they average.
        reducing_bytes=max((num_members - 1) * codec.encoded_num_bytes(own) + FLOAT_BYTES * own for own in reduced)
        + (1 + MOST_OF_AVERAGED) * sum(kept_error_num_bytes(own, codec.block_size) for own in reduced),
        libraries_bytes=NETWORK_LIBRARIES_BYTES,
        daemon_bytes=DAEMON_BYTES,
    )


def disk_bytes(
    sizes: Sequence[int],
    codec: Codec,
    mode: str,
    num_orthogonalised: int = 0,
    *,
    trains: bool = True,
    optimizer_bits: OptimizerBits = "32",
) -> int:
    """Count the disk space of the kept checkpoints and one being written.

    The network side of each has anchors, momentum, residuals and own work; the trainer's side has parameters, reference
    copy and optimizer state. A seed has no trainer.
    """
    num_copies = 3 + (mode == "eager") + (2 if trains else 0)
    encoded = sum(codec.encoded_num_bytes(size) for size in sizes)
    values_bytes = FLOAT_BYTES * num_copies * sum(sizes)
    if trains:
        values_bytes += optimizer_bytes(sum(sizes), num_orthogonalised, optimizer_bits)
    return (KEPT_CHECKPOINTS + 1) * (values_bytes + encoded)
