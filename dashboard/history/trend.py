"""`Trend`: curve points, arrivals and departures, from observations. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from dashboard.history_facts import HistoryPoint, MarkKind
from dashboard.observe.dashboard_state import DashboardState

MAX_POINTS: Final = 1000
"""Points on the page: about one for each pixel of a wide screen. When it is full, every second one is removed."""


@dataclass
class Trend:
    """Bounded values accumulated over observations."""

    points: list[HistoryPoint] = field(default_factory=list)
    stride: int = 1
    num_points_seen: int = 0
    _here: frozenset[str] = frozenset()
    _left: frozenset[str] = frozenset()
    """Peers that left during this observation."""

    def look(
        self, state: DashboardState, num_rounds: int, bits_per_second: float, credited: Container[str]
    ) -> list[tuple[MarkKind, str]]:
        """Add one observation. Return arrivals and departures: (``join`` or ``leave``, PeerId).

        Args:
            num_rounds: rounds in signed commits.
            bits_per_second: their present transfer rate.
            credited: peers that commits list; a flood of other keys leaves no marks.
        """
        if not state.problem:
            self.add_point(self.point_of(state, num_rounds, bits_per_second))
        return self._changes(state, credited)

    def add_point(self, point: HistoryPoint) -> None:
        """Add a point. The newest point is always the present; older ones are `stride` apart."""
        if self.points and self.num_points_seen and (self.num_points_seen - 1) % self.stride:
            self.points.pop()
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            del self.points[1::2]
            self.stride *= 2
        self.num_points_seen += 1

    def point_of(self, state: DashboardState, num_rounds: int, bits_per_second: float) -> HistoryPoint:
        """Return the present as a point of the curves."""
        evaluation = state.view.evaluation
        return HistoryPoint(
            at=state.now,
            tokens=state.view.committed_tokens,
            rounds=max(state.view.num_rounds, num_rounds),
            validation_loss=None if evaluation is None else evaluation.loss,
            train_loss=state.view.train_loss,
            num_trainers=len(state.trainers),
            num_peers=len(state.here),
            tokens_per_second=state.view.tokens_per_second,
            upload_bits_per_second=bits_per_second,
        )

    def _changes(self, state: DashboardState, credited: Container[str]) -> list[tuple[MarkKind, str]]:
        if not state.peers:
            return []
        present = {str(row.record.peer_id): row for row in state.peers if row.condition in ("here", "late")}
        here = frozenset(peer_id for peer_id in present if peer_id in credited)
        gone = self._here - here
        # A peer that started before this observation did not arrive now, unless it left meanwhile.
        came = {
            peer_id
            for peer_id in here - self._here
            if peer_id in self._left or present[peer_id].record.started_at >= state.started_at
        }
        self._here, self._left = here, (self._left | gone) - here
        return [*(("join", peer_id) for peer_id in sorted(came)), *(("leave", peer_id) for peer_id in sorted(gone))]
