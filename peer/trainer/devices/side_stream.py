"""Copies from a device into the mailbox while the device goes on computing.

On CUDA they run on a stream of their own into memory that the driver has pinned. The work of a fragment is worked out
between two inner steps, in the device's memory, and crosses while the next step computes. Other devices copy at once.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)


class Arrival:
    """The end of some copies: an event of their stream, and memory of the host to which a sum was copied before it."""

    def __init__(self, event: Any, total: Tensor) -> None:
        self._event = event
        self._total = total

    def query(self) -> bool:
        """Whether all copies are done."""
        return bool(self._event.query())

    def synchronize(self) -> None:
        """Wait until they are."""
        self._event.synchronize()

    @property
    def total(self) -> float:
        """Sum of what was copied, once it is: finite only if every value is, but for sums that overflow."""
        return float(self._total)


class SideStream:
    """A CUDA stream beside the one that computes: copies that are done in order.

    Args:
        device: the CUDA device of the sources.
        host_memory: uint8, on the CPU, with all targets in it; it is pinned until `close`. Without that the driver
            copies through a buffer of its own, and the caller waits for it.
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
                "CUDA could not pin %d MB of the mailbox (error %d); training goes on and waits for each copy of its "
                "work: free memory, or raise the limit on locked memory",
                host_memory.numel() >> 20,
                outcome,
            )

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Begin target = source; the source belongs to the copy from now on, and nothing else writes to it."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            # The device adds up many times as fast as the thread that trains would.
            self._sums.append(source.sum())
        # Its memory goes back to the computing stream only when this one has read it.
        source.record_stream(self._stream)

    def mark(self) -> Arrival:
        """The end of the copies begun since the last mark."""
        total = torch.zeros((), device="cpu", pin_memory=True)
        with torch.cuda.stream(self._stream):
            if self._sums:
                total.copy_(torch.stack(self._sums).sum(), non_blocking=True)
        self._sums = []
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return Arrival(event, total)

    def close(self) -> None:
        """Wait for all copies and let go of the memory; copies begun later still take place."""
        memory, self._memory = self._memory, None
        if memory is None:
            return
        try:
            self._stream.synchronize()
            _runtime().cudaHostUnregister(memory.data_ptr())
        except RuntimeError as error:
            # What made the device fail is being told already, by the code that used it then.
            log.debug("the mailbox stays pinned until this process ends: %s", error)


def side_stream(device: torch.device, host_memory: Tensor) -> SideStream | None:
    """A stream beside the computing for a device that has such streams; None where copies take place at once."""
    return SideStream(device, host_memory) if device.type == "cuda" else None


def _forget_error(device: torch.device) -> None:
    """CUDA keeps a refusal until somebody asks, and the next kernel, of any caller, would be blamed for it."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=device).add_(1)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
