"""`Evaluation`: a validation loss and the model version that has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The validation loss of a run's anchors.

    Attributes:
        loss: in the unit of the run's losses.
        version: sum of the versions of the measured anchors.
    """

    loss: float
    version: int
