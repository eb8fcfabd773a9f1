"""The curves as tables: what stands in them, and that whatever peers report can be written."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dashboard.history_facts import HistoryPoint, HistoryView
from dashboard.page.curves import MAX_ROWS, curves, work_curve
from tests.kit.dashboard.records import NOW
from tests.kit.dashboard.scene import contributor_view, points_of

losses = st.none() | st.floats(-1e18, 1e18)
rates = st.floats(0, 1e18)
history_points = st.builds(
    HistoryPoint,
    at=st.floats(0, 4e9),
    tokens=st.integers(0, 10**15),
    rounds=st.integers(0, 10**9),
    validation_loss=losses,
    train_loss=losses,
    num_trainers=st.integers(0, 10**6),
    num_peers=st.integers(0, 10**6),
    tokens_per_second=rates,
    upload_bits_per_second=rates,
)


@given(st.lists(history_points, max_size=40))
def test_whatever_is_reported_can_be_written(points: list[HistoryPoint]) -> None:
    points.sort(key=lambda point: (point.at, point.tokens))
    tokens = sorted(point.tokens for point in points)
    grown = tuple(replace(point, tokens=count) for point, count in zip(points, tokens, strict=True))
    for curve in curves(HistoryView(NOW, 0.0, points=grown)).values():
        assert len(curve.rows) <= MAX_ROWS
        texts = [text for at, values in curve.rows for text in (at, *values)]
        assert not [text for text in texts if "nan" in text or "inf" in text or not text]
        assert all(len(values) == len(curve.labels) for _, values in curve.rows)


def test_a_run_over_a_day_has_a_dozen_rows_and_the_newest_is_first() -> None:
    shown = curves(HistoryView(NOW, 0.0, points=points_of()))
    assert {key: len(curve.rows) for key, curve in shown.items()} == {"losses": 12, "swarm": 12, "lines": 12}
    assert shown["losses"].rows[0] == ("335 M", ["1.739", "1.608"])
    # Only every third point has a validation loss; still no row lacks one.
    assert "–" not in [text for _, values in shown["losses"].rows for text in values]
    assert shown["swarm"].rows[0][0] == "17:46"
    assert work_curve(contributor_view().curve).rows[0][1] == ["52.2 M", "55.3 M"]


def test_a_diverged_loss_is_not_the_runs() -> None:
    diverged = tuple(replace(point, validation_loss=1e9, train_loss=None) for point in points_of())
    assert curves(HistoryView(NOW, 0.0, points=diverged))["losses"].rows == ()
    mixed = (*points_of(), replace(points_of()[-1], at=NOW + 1, validation_loss=1e9))
    assert curves(HistoryView(NOW, 0.0, points=mixed))["losses"].rows[0][1][0] == "1.739"
