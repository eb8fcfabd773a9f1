"""Values in a short format with their errors of rounding beside them, so that many small changes add up.

A parameter of fewer bits than float32 shows x rounded: 1e-4 added to 0.5 in bfloat16 is 0.5 again. Beside each such
element there is `error`, what rounding left out, so that x = live + error in float32. Merges add up in it. The
optimizer's own steps, which are in the live values, are measured to the last bit. Other types have no `error`; the
reference of a float64 parameter is float64 too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from peer.trainer.devices.at_once import Change

ROUNDED = (torch.bfloat16, torch.float16)
"""They hold x only rounded."""


@dataclass(frozen=True, slots=True)
class HeldPiece:
    """Some consecutive values: live, reference, error of rounding (None: exact), and their place in the fragment.

    Attributes:
        beside: copies of them that the optimizer keeps.
    """

    live: Tensor
    ref: Tensor
    error: Tensor | None
    place: slice
    beside: tuple[Tensor, ...] = ()

    def exact(self) -> Tensor:
        """x, of the reference's type, on its device; perhaps a view of the live values."""
        live = self.live.to(self.ref.device, self.ref.dtype)
        return live if self.error is None else live.add_(self.error)  # of another type, so a copy

    def putting(self, values: Tensor) -> list[Change]:
        """x := `values`, on the reference's device."""
        changes: list[Change] = [partial(self.live.copy_, values)]
        if self.error is not None:
            rounded = values.to(self.live.dtype).to(torch.float32)
            changes.append(partial(self.error.copy_, torch.sub(values, rounded, out=rounded)))
        return changes

    def measuring_anew(self) -> list[Change]:
        """ref := x."""
        changes: list[Change] = [partial(self.ref.copy_, self.live)]
        if self.error is not None:
            changes.append(partial(self.ref.add_, self.error))
        return changes
