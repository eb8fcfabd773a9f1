"""How fast the trainer is, as others are told, until its steps stand still. Pure.

A trainer that was frozen, or whose device hangs, leaves its last speed in the mailbox.
"""

from __future__ import annotations

from peer.mailbox.shared_memory import TrainerCounters
from peer.run_clock import STALLED_SECONDS, has_stalled


class TrainingPulse:
    """What one trainer's counters said last; times are of one monotonic clock."""

    def __init__(self, now: float) -> None:
        self._num_steps = 0
        self._moved_at = self._looked_at = now

    def tokens_per_second(self, trainer: TrainerCounters, now: float) -> float:
        """Of the usual step; 0 once no step has ended for too long."""
        speed, num_steps = trainer.tokens_per_second, trainer.inner_steps
        # If nobody has looked for so long, this process slept, and the trainer with it.
        if num_steps != self._num_steps or now - self._looked_at > STALLED_SECONDS:
            self._num_steps, self._moved_at = num_steps, now
        self._looked_at = now
        usual_seconds = trainer.tokens / num_steps / speed if num_steps and speed else 0.0
        return 0.0 if has_stalled(now - self._moved_at, usual_seconds) else speed
