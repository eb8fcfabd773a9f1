"""How far a run is, and when it will be there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard.history_facts import HistoryPoint, HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.goal_progress import progress_of
from dashboard.page.page import render_sections
from peer.view.run_clock import arrival
from tests.kit.dashboard.records import NOW, TextOnly
from tests.kit.dashboard.scene import history_of_run, points_of, state_of

HOUR = 3600.0


def towards(tokens: int | None) -> DashboardState:
    state = state_of()
    assert state.run is not None
    return replace(state, run=replace(state.run, goal_tokens=tokens))


def steady(speed: float, seconds: float, number: int = 50) -> list[HistoryPoint]:
    blank = replace(points_of()[0], validation_loss=None)
    times = [seconds * part / (number - 1) for part in range(number)]
    return [replace(blank, at=NOW - seconds + at, tokens=round(speed * at)) for at in times]


def arrives(points: list[HistoryPoint], tokens_left: int) -> tuple[float | None, float | None]:
    return arrival([(point.at, point.tokens) for point in points], tokens_left, NOW)


def test_a_steady_run_arrives_when_its_speed_says() -> None:
    soonest, latest = arrives(steady(100.0, 2 * HOUR), 360_000)
    assert soonest == pytest.approx(NOW + HOUR, abs=5)
    assert latest == pytest.approx(NOW + HOUR, abs=5)


def test_an_unsteady_run_has_a_range_around_it() -> None:
    points = steady(100.0, 20 * HOUR)
    # The second half of the time it did nothing.
    points = [replace(point, tokens=min(point.tokens, round(100.0 * 10 * HOUR))) for point in points]
    soonest, latest = arrives(points, 360_000)
    assert soonest is not None
    assert latest is not None
    assert soonest < NOW + 2 * HOUR < latest


@pytest.mark.parametrize("points", [[], steady(100.0, 60.0), steady(0.0, 5 * HOUR)])
def test_without_a_speed_nobody_says_when(points: list[HistoryPoint]) -> None:
    assert arrives(points, 1000) == (None, None)


def test_only_the_last_day_counts_for_the_speed() -> None:
    slow, fast = steady(1.0, 48 * HOUR), steady(100.0, 24 * HOUR)
    slow = [point for point in slow if point.at < NOW - 24 * HOUR]
    points = [*slow, *(replace(point, tokens=point.tokens + slow[-1].tokens) for point in fast)]
    soonest, latest = arrives(points, 360_000)
    assert soonest == pytest.approx(NOW + HOUR, abs=60)
    assert latest == pytest.approx(NOW + HOUR, abs=60)


@pytest.mark.parametrize(
    ("goal", "share", "words"),
    [
        (500_000_000, 0.67, "67.0% of 500 million tokens (words or parts of one)"),
        (300_000_000, 1.0, "100% of 300 million tokens (words or parts of one): the goal is reached"),
    ],
)
def test_a_goal_has_a_bar_and_words(goal: int, share: float, words: str) -> None:
    state, history = towards(goal), history_of_run()
    progress = progress_of(state, history)
    assert progress is not None
    assert progress.share == pytest.approx(share, abs=0.005)
    html = render_sections(state, history)["progress"]
    assert words in " ".join(TextOnly(html).text.split())
    assert "<progress" in html


def test_without_a_goal_there_is_no_bar() -> None:
    assert progress_of(towards(None), history_of_run()) is None
    assert render_sections(towards(None), HistoryView(NOW, NOW))["progress"].strip() == ""
