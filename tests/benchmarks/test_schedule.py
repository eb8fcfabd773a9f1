"""A small run of the benchmark on schedules: what it says about a late peer, and a figure that a browser can read."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest

from benchmarks.training import bench_schedule
from benchmarks.training.bench_schedule import drawn, late_joiner


def test_a_late_peer_on_the_runs_clock_does_not_raise_the_loss() -> None:
    row = late_joiner("run's clock", 120, 0, num_measurements=9)
    assert row.violations == 0
    assert row.last < row.at_joining


def test_the_figure_is_one_line_for_each_peer_and_a_gap_begins_anew() -> None:
    text = drawn({0: [(0.0, 0.0), (5.0, 0.5), (60.0, 1.0)], 1: [(10.0, 1.0)]}, peak=1.0)
    lines = [path for path in ElementTree.fromstring(text) if path.get("fill") == "none"]
    assert len(lines) == 2
    assert lines[0].get("d", "").count("M") == 2


@pytest.mark.parametrize(("arguments", "expected"), [(["--steps", "9"], "100 to 100 000"), (["--seeds", "a"], "whole")])
def test_impossible_arguments(
    arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    with pytest.raises(SystemExit):
        bench_schedule.main()
    assert expected in capsys.readouterr().err
