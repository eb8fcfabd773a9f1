"""The least memory that a run's model needs on this machine, computed before the model is built.

A manifest of a few hundred bytes can describe a model of 160 TB. The count omits libraries and all activations except
the largest, so a model that it refuses would have failed.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal

from dht.ground.errors import DeviceFault
from dht.ground.quantities import bytes_text, count_text
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_sizes, shapes_of
from peer.config.peer_config import BaseBits, OptimizerBits
from peer.mailbox.mailbox import mailbox_num_bytes
from peer.memory.architecture_sizes import ArchitectureSizes, sizes_of
from peer.memory.base_bits import base_num_bytes

FLOAT_BYTES, POSITION_BYTES = 4, 8

Use = Literal["train", "train on a GPU", "serve", "read"]
"""What a model is for. On a GPU its copies for training are elsewhere. A seed keeps anchors alone. `read` is one copy
of the parameters (export, sample, evaluate)."""

_TRAINED_COPIES = 3
"""Parameters, gradients and the reference, as `peer.plan.memory_needs.trainer_memory` counts them."""
_LOGITS_COPIES = 2
"""Logits and their gradients, float32: `GPT.loss`."""
_ROTARY_BYTES = 20
"""Bytes of one angle while the table of cosines and sines is made: two float64 and a float32."""

_FULL_BITS = 32
"""Most bits of pretrained weights. In weights of fewer bits, 8 or 4 are a larger share."""

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")  # in kB


def least_memory_bytes(
    manifest: RunManifest,
    use: Use,
    base_bits: BaseBits = "full",
    optimizer_bits: OptimizerBits = "32",
    sizes: ArchitectureSizes | None = None,
) -> int:
    """Return the fewest bytes that a process needs on this machine.

    Args:
        base_bits: bits of pretrained weights under an adapter; see `peer.config.peer_config.PeerConfig`.
        optimizer_bits: bits of AdamW's moments.
        sizes: sizes of the architecture in a run of kind hf; a seed needs none.

    Raises:
        Incompatible: the model cannot be cut as the manifest says.
    """
    num_values = sum(math.prod(shape) for _, shape in shapes_of(manifest))
    kept = 0 if use == "read" else mailbox_num_bytes(seed_sizes(manifest))
    # Weights in fewer bits are loaded one by one; all others are in memory together when the model is built.
    built = kept + (0 if sizes is None or base_bits != "full" else sizes.peak_bytes)
    if use != "serve":
        fixed = base_num_bytes(manifest)
        if sizes is not None:
            # The manifest contains the number of trained parameters; the library determines the number of all of them.
            kept += sizes.buffer_bytes
            fixed = max(fixed, sizes.parameter_bytes - FLOAT_BYTES * num_values)
        kept += fixed * (_FULL_BITS if base_bits == "full" else int(base_bits)) // _FULL_BITS
    if use == "serve":
        return kept
    copies = FLOAT_BYTES * num_values
    if use == "train":
        num_moments = 1 if manifest.training.optimizer == "muon" else 2  # Muon's velocity, of most of the parameters
        copies = _TRAINED_COPIES * copies + num_values * num_moments * int(optimizer_bits) // 8
    model, training = manifest.model, manifest.training
    if model.kind == "custom" or (model.kind == "hf" and model.task != "causal-lm"):
        return max(built, kept + copies)
    if model.kind == "hf":
        logits = FLOAT_BYTES * _LOGITS_COPIES * training.batch_size * model.context * model.vocab_size
        return max(built, kept + copies + (logits if use == "train" else 0))
    rotary = _ROTARY_BYTES * model.context * (model.d_model // model.num_heads // 2)
    if use == "read":
        return copies + rotary
    tokens = training.batch_size * model.context
    step = POSITION_BYTES * (training.batch_size * training.accumulation_steps + 2 * tokens)
    if use == "train":
        step += FLOAT_BYTES * tokens * (_LOGITS_COPIES * model.vocab_size + model.num_layers * model.d_model)
    return kept + copies + rotary + step


def check_memory(
    manifest: RunManifest,
    use: Use,
    free_bytes: int | None,
    base_bits: BaseBits = "full",
    optimizer_bits: OptimizerBits = "32",
) -> None:
    """Check that a run's model fits into memory, before it is built.

    Args:
        base_bits, optimizer_bits: see `least_memory_bytes`.
        free_bytes: as returned by `free_memory_bytes`.

    Raises:
        DeviceFault: this machine has too little memory for the model.
        Incompatible: the model cannot be cut as the manifest specifies, or transformers cannot build it (`sizes_of`).
    """
    model, training = manifest.model, manifest.training
    sizes = sizes_of(*model.described) if model.kind == "hf" and use != "serve" else None
    needed = least_memory_bytes(manifest, use, base_bits, optimizer_bits, sizes)
    if free_bytes is None or needed <= free_bytes:
        return
    num_values = sum(math.prod(shape) for _, shape in shapes_of(manifest))
    step = f", steps of {training.batch_size} sequences of {model.context} tokens" if use.startswith("train") else ""
    raise DeviceFault(
        f"the model of run {manifest.name!r} ({count_text(num_values)} parameters{step}) takes at least "
        f"{bytes_text(needed)} of memory here, but {bytes_text(free_bytes)} are free; expected a machine with more; "
        "end other programs, or join a run with a smaller model"
    )


def free_memory_bytes() -> int | None:
    """Return the free or reclaimable memory, including swap, or None if it is unknown on this system."""
    free = _meminfo_bytes()
    limit, used = (_cgroup_number(name) for name in ("memory.max", "memory.current"))
    if free is not None and limit is not None and used is not None:
        free = min(free, max(0, limit - used + _cgroup_cache_bytes()))
    return free


def available_memory_bytes() -> int | None:
    """Return `free_memory_bytes` without swap."""
    found = _numbers_in(_MEMINFO)
    if "MemAvailable" in found:
        return 1024 * found["MemAvailable"]
    # Other systems do not count reclaimable caches: all memory is the best estimate.
    return all_memory_bytes()


def all_memory_bytes() -> int | None:
    """Return the machine's memory, or None if it is unknown on this system."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _meminfo_bytes() -> int | None:
    available = available_memory_bytes()
    return None if available is None else available + 1024 * _numbers_in(_MEMINFO).get("SwapFree", 0)


def _cgroup_cache_bytes() -> int:
    """Return the group's file cache, which the kernel frees when programs need memory."""
    found = _numbers_in(_CGROUP / "memory.stat")
    return found.get("active_file", 0) + found.get("inactive_file", 0)


def _numbers_in(path: Path) -> dict[str, int]:
    """Return the names and whole numbers on the lines of a file; empty if there is no such file."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return {}
    words = (line.split() for line in lines)
    return {parts[0].rstrip(":"): int(parts[1]) for parts in words if len(parts) > 1 and parts[1].isdecimal()}


def _cgroup_number(name: str) -> int | None:
    """Return a limit or count of the root control group (cgroup v2), which in a container is the container's."""
    try:
        text = (_CGROUP / name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None
