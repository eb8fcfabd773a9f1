"""Copies from a device into the mailbox while the device continues computing.

On CUDA the copies run on their own stream into memory pinned by the driver. A fragment's work is computed between two
inner steps, in the device's memory, and is copied while the next step computes. Other devices copy at once.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)


class Arrival:
    """The end of a group of copies: an event of their stream, and host memory that receives the sum of the copied
    values.
    """

    def __init__(self, event: Any, total: Tensor) -> None:
        self._event = event
        self._total = total

    def query(self) -> bool:
        """Return whether all copies have finished."""
        return bool(self._event.query())

    def synchronize(self) -> None:
        """Wait until all queued copies have finished."""
        self._event.synchronize()

    @property
    def total(self) -> float:
        """The sum of the copied values, valid after the copies; if finite, every value is finite. A finite sum may
        overflow.
        """
        return float(self._total)


class SideStream:
    """A second CUDA stream whose copies run in order while the first stream computes.

    Args:
        device: the CUDA device of the sources.
        host_memory: uint8 CPU memory that contains all targets; pinned until `close`. In unpinned memory the driver
            would copy through its own buffer, and the caller would wait.
    """

    def __init__(self, device: torch.device, host_memory: Tensor) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._memory: Tensor | None = host_memory
        self._sums: list[Tensor] = []
        with torch.cuda.device(device):
            outcome = int(_runtime().cudaHostRegister(host_memory.data_ptr(), host_memory.numel(), 0))
        if outcome:
            self._memory = None
            _forget_error(device)
            log.warning(
                "CUDA could not pin %d MB of the mailbox (error %d); training continues, but waits for each copy of "
                "its work: free memory, or raise the limit on locked memory",
                host_memory.numel() >> 20,
                outcome,
            )

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Begin to copy `source` to `target`; the copy now owns the source, and no other code may write to it."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            # The device adds many times faster than the training thread.
            self._sums.append(source.sum())
        # The computing stream gets this memory back only after the copy has read it.
        source.record_stream(self._stream)

    def mark(self) -> Arrival:
        """Return the end of the copies begun since the last mark."""
        total = torch.zeros((), device="cpu", pin_memory=True)
        with torch.cuda.stream(self._stream):
            if self._sums:
                total.copy_(torch.stack(self._sums).sum(), non_blocking=True)
        self._sums = []
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return Arrival(event, total)

    def close(self) -> None:
        """Wait for all copies and unpin the memory; later copies still run."""
        memory, self._memory = self._memory, None
        if memory is None:
            return
        try:
            self._stream.synchronize()
            _runtime().cudaHostUnregister(memory.data_ptr())
        except RuntimeError as error:
            # The code that used the failed device already reports the cause.
            log.debug("the mailbox stays pinned until this process ends: %s", error)


def side_stream(device: torch.device, host_memory: Tensor) -> SideStream | None:
    """Return a side stream for a CUDA device; None for other devices, which copy at once."""
    return SideStream(device, host_memory) if device.type == "cuda" else None


def _forget_error(device: torch.device) -> None:
    """Clear CUDA's pending error, which would otherwise be raised by the next kernel of any caller."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=device).add_(1)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
