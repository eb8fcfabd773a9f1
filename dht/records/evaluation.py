"""`Evaluation`: a validation loss together with the model that has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The validation loss of a run's anchors.

    Attributes:
        loss: in the unit of the run's losses.
        version: sum of the versions of the anchors that were measured.
    """

    loss: float
    version: int
