"""Values in a short format with their errors of rounding beside them, so that many small changes add up.

A parameter of fewer bits than float32 shows x rounded: 1e-4 added to 0.5 in bfloat16 is 0.5 again. Beside each such
element there is `error`, what rounding left out, so that x = live + error in float32. Merges add up in it. The
optimizer's own steps, which are in the live values, are measured to the last bit. Other types have no `error`; the
reference of a float64 parameter is float64 too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDED = (torch.bfloat16, torch.float16)
"""They hold x only rounded."""


@dataclass(frozen=True, slots=True)
class HeldPiece:
    """Some consecutive values: live, reference, error of rounding (None: exact), and their place in the fragment."""

    live: Tensor
    ref: Tensor
    error: Tensor | None
    place: slice

    def exact(self) -> Tensor:
        """x, of the reference's type, on its device; perhaps a view of the live values."""
        live = self.live.to(self.ref.device, self.ref.dtype)
        return live if self.error is None else live.add_(self.error)  # of another type, so a copy

    def put(self, values: Tensor) -> None:
        """x := `values`, on the reference's device."""
        self.live.copy_(values)
        if self.error is not None:
            torch.sub(values, self.live.to(self.ref.device, torch.float32), out=self.error)
