"""Reports the progress of a download, about one event per second. Pure except for its clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from averaging.rounds.round_facts import Fact
from peer.events.anchor_events import Fetched

PROGRESS_SECONDS = 1.0
"""Pause between two events about a download: as often as people check."""


@dataclass
class CatchUpMeter:
    """Counts received bytes.

    Attributes:
        clock: returns seconds.
        report: receives each event.
    """

    clock: Callable[[], float]
    report: Callable[[Fact], None]
    _began_at: float = 0.0
    _reported_at: float = 0.0

    def arrived(self, done_bytes: int, total_bytes: int) -> None:
        """Report the number of received bytes; 0 starts again."""
        now = self.clock()
        if done_bytes == 0:
            self._began_at = self._reported_at = now
        is_over = done_bytes >= total_bytes
        if done_bytes == 0 or (now - self._reported_at < PROGRESS_SECONDS and not is_over):
            return
        self._reported_at = now
        self.report(Fetched(done_bytes, now - self._began_at, total_bytes=total_bytes))
