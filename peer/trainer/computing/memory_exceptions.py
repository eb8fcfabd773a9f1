"""Detects torch exceptions that mean memory ran out, and describes them to the owner of the machine."""

from __future__ import annotations

import torch

from dht.ground.errors import DeviceFault

_SIGNS = (
    "not enough memory",
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Texts in RuntimeErrors of torch's host memory allocator, of CUDA while it starts, and of CUDA's libraries."""


def is_about_memory(error: BaseException) -> bool:
    """Return whether the exception means that the device or the host had no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def memory_fault(error: BaseException) -> DeviceFault | None:
    """Return the fault for an exception that means memory ran out; None for any other exception."""
    if isinstance(error, DeviceFault) or not is_about_memory(error):
        return None
    first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return DeviceFault(
        f"the run's model and its steps do not fit into the memory of this device ({first}); expected a device with "
        "more; `peer doctor` prints how much; --micro-batch 1 and --checkpoint-activations need less for each step, "
        "and --devices with --shard or --offload less on each device"
    )
