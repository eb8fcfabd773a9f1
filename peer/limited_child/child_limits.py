"""What a child may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Bounds of a child process.

    Attributes:
        memory_bytes: beyond what the process takes once its module is imported.
        seconds: for each question, and for `prepare`; waiting for bytes from the parent does not count.
        answer_bytes: of one answer, its JSON and its body together.
    """

    memory_bytes: int
    seconds: float
    answer_bytes: int = 16 << 20
