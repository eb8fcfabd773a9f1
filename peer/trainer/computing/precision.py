"""Number formats of a pass: float32 parameters, products in bfloat16 or float16 where that was chosen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
from torch import Tensor

from dht.ground.errors import UsageFault
from peer.config.peer_config import Precision

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class MixedPrecision:
    """The autocast of a pass (arXiv 1710.03740), and for float16 a scale that keeps small gradients from vanishing.

    Args:
        choice: auto is bf16 on CUDA and fp32 elsewhere.
        is_sharded: other processes have rows of each gradient.

    Raises:
        UsageFault: fp16 with parameters that are no float32, or that are sharded.
    """

    def __init__(
        self, choice: Precision, device: torch.device, parameters: Iterable[Tensor], *, is_sharded: bool = False
    ) -> None:
        chosen = ("bf16" if device.type == "cuda" else "fp32") if choice == "auto" else choice
        self._device = device
        self._dtype = _AUTOCAST.get(chosen)
        self._scaler: torch.amp.GradScaler | None = None
        if self._dtype != torch.float16:
            return
        others = {str(tensor.dtype).removeprefix("torch.") for tensor in parameters if tensor.dtype != torch.float32}
        if others or is_sharded:
            what = "sharded parameters" if is_sharded else f"parameters in {', '.join(sorted(others))}"
            raise UsageFault(
                f"--precision fp16 was given for a model of {what}; expected whole float32 ones, whose gradients can "
                "be scaled; choose --precision bf16 or fp32."
            )
        self._scaler = torch.amp.GradScaler(device.type)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Around a forward pass."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """What the backward pass begins with."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients as they are, after the last backward pass of a step; a scale that was too large is halved."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
            # The loop looks at the norm itself, and takes no step that is not finite.
            self._scaler.update()
