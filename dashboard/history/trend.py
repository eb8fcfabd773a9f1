"""`Trend`: how the run went, as a fold of looks: curve points, staleness strip, who came and went. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from dashboard.history_facts import AgeAt, Condition, FragmentAges, HistoryPoint
from dashboard.observe.dashboard_state import MAX_FRAGMENTS_SHOWN, DashboardState
from dashboard.observe.listed_peers import PeerRow

MAX_POINTS: Final = 1000
"""On the page: about one per pixel of a wide screen. When it is full every second one goes."""
STRIP_LOOKS: Final = 60
"""Columns of the staleness strip: two minutes of looks."""
MAX_AGES: Final = 50
"""Peers named per fragment, those furthest behind."""
MAX_NEWS_PER_MINUTE: Final = 60
"""Arrivals and departures of peers that no commit lists; those of the others are always told. A flood of keys would
else fill the history."""
RATE_SECONDS: Final = 60.0
"""Traffic is told as an average over this time: several rounds."""

NewsKind = Literal["joined", "left", "silent", "returned"]
News = tuple[NewsKind, str]
"""(what happened, PeerId): a peer came or went."""


@dataclass
class Trend:
    """Values that are folded over looks; bounded whatever is published."""

    points: list[HistoryPoint] = field(default_factory=list)
    stride: int = 1
    num_points_seen: int = 0
    _conditions: dict[str, Condition] = field(default_factory=dict)
    _moved: deque[tuple[float, int]] = field(default_factory=deque)
    _strip: dict[int, deque[AgeAt]] = field(default_factory=dict)
    _ages: dict[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    _lags: dict[str, tuple[float, tuple[int, ...]]] = field(default_factory=dict)
    """By peer: when it was last heard, and how far it was behind in each fragment at that moment."""
    _news_minute: int = 0
    _num_news: int = 0

    def look(self, state: DashboardState, num_rounds: int, credited: Mapping[str, object]) -> list[News]:
        """Take in one look; `credited` holds the peers that commits list. Returns who came and went."""
        self._take_ages(state)
        if not state.problem:
            self.add_point(self.point_of(state, num_rounds))
        return self._news(state.peers, state.now, credited)

    def note_traffic(self, at: float, num_bytes: int) -> None:
        """A round closed that moved so much."""
        self._moved.append((at, num_bytes))

    def bits_per_second(self, now: float) -> float:
        """Return the rate of the last minute's rounds."""
        while self._moved and self._moved[0][0] <= now - RATE_SECONDS:
            self._moved.popleft()
        return 8 * sum(num_bytes for _, num_bytes in self._moved) / RATE_SECONDS

    @property
    def fragments(self) -> tuple[FragmentAges, ...]:
        return tuple(
            FragmentAges(fragment, self._ages.get(fragment, ()), tuple(strip))
            for fragment, strip in sorted(self._strip.items())
        )

    def add_point(self, point: HistoryPoint) -> None:
        """The newest point is always the present; older ones are `stride` apart."""
        if self.points and self.num_points_seen and (self.num_points_seen - 1) % self.stride:
            self.points.pop()
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            del self.points[1::2]
            self.stride *= 2
        self.num_points_seen += 1

    def start_from(self, points: Iterable[HistoryPoint], conditions: Mapping[str, Condition]) -> None:
        """Begin with the points of earlier sessions, and with who was there then."""
        self._conditions = dict(conditions)
        for point in points:
            self.add_point(point)

    def point_of(self, state: DashboardState, num_rounds: int) -> HistoryPoint:
        """The present as a point of the curves."""
        rate = self.bits_per_second(state.now)
        # Until somebody says where the run is, it is where it was when this dashboard ended.
        last = self.points[-1] if self.points and not state.fragments else None
        evaluation = state.view.evaluation
        loss = None if evaluation is None else evaluation.loss
        return HistoryPoint(
            at=state.now,
            tokens=state.view.committed_tokens if last is None else last.tokens,
            rounds=max(state.view.num_rounds, num_rounds, 0 if last is None else last.rounds),
            validation_loss=loss if last is None else last.validation_loss,
            train_loss=state.view.train_loss,
            num_trainers=len(state.trainers),
            num_peers=len(state.here),
            tokens_per_second=state.view.tokens_per_second,
            upload_bits_per_second=rate,
            download_bits_per_second=rate,
        )

    def _take_ages(self, state: DashboardState) -> None:
        heads = [row.version for row in state.fragments]
        known, self._lags = self._lags, {}
        for peer in state.here:
            if len(peer.record.versions) < len(heads):
                continue
            heard_at, behind_by = known.get(peer.record.peer_id, (-1.0, ()))
            # A record grows old between two announcements; that the swarm moves on meanwhile makes nobody stale.
            if heard_at != peer.heard_at or len(behind_by) != len(heads):
                behind_by = tuple(max(0, head - at) for head, at in zip(heads, peer.record.versions, strict=False))
            self._lags[peer.record.peer_id] = peer.heard_at, behind_by
        for row in state.fragments[:MAX_FRAGMENTS_SHOWN]:
            lags = [(peer_id, behind_by[row.fragment]) for peer_id, (_, behind_by) in self._lags.items()]
            behind = sorted((lag for lag in lags if lag[1]), key=lambda lag: (-lag[1], lag[0]))
            self._ages[row.fragment] = tuple((str(peer_id), lag) for peer_id, lag in behind[:MAX_AGES])
            mean = sum(lag for _, lag in lags) / len(lags) if lags else 0.0
            strip = self._strip.setdefault(row.fragment, deque(maxlen=STRIP_LOOKS))
            strip.append(AgeAt(state.now, max((lag for _, lag in lags), default=0), mean, len(lags)))

    def _news(self, rows: Sequence[PeerRow], now: float, credited: Mapping[str, object]) -> list[News]:
        minute = int(now // 60)
        if minute != self._news_minute:
            self._news_minute, self._num_news = minute, 0
        if not rows:
            return []
        conditions: dict[str, Condition] = {row.record.peer_id: row.condition for row in rows}
        # Without a row: it was there when an earlier session ended, and is not there any more.
        gone: dict[str, Condition] = {
            peer_id: "silent" for peer_id, before in self._conditions.items() if before in ("here", "late")
        }
        news = []
        for peer_id, condition in (gone | conditions).items():
            kind = _KINDS.get((self._conditions.get(peer_id), condition))
            if kind is None:
                continue
            if peer_id not in credited:
                if self._num_news >= MAX_NEWS_PER_MINUTE:
                    continue
                self._num_news += 1
            news.append((kind, peer_id))
        self._conditions = conditions
        return news


_KINDS: Final[dict[tuple[Condition | None, Condition], NewsKind]] = {
    (None, "here"): "joined",
    ("left", "here"): "joined",
    ("silent", "here"): "returned",
    ("here", "left"): "left",
    ("here", "silent"): "silent",
    ("late", "silent"): "silent",
    ("late", "left"): "left",
    (None, "late"): "joined",
    ("silent", "left"): "left",
}
