"""Whether an exception of torch is about memory, and the sentence that its owner reads then."""

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
"""In RuntimeErrors: torch's allocator of host memory, CUDA itself while it starts, and libraries beside it."""


def is_about_memory(error: BaseException) -> bool:
    """Whether the device, or the host, had no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def memory_fault(error: BaseException) -> DeviceFault | None:
    """What an exception of torch means that is about memory; None when it is about something else."""
    if isinstance(error, DeviceFault) or not is_about_memory(error):
        return None
    first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return DeviceFault(
        f"the run's model and its steps do not fit into the memory of this device ({first}); expected one with more; "
        "`peer doctor` says how much; --micro-batch 1 and --checkpoint-activations need less for each step, --devices "
        "with --shard or --offload less of each device"
    )
