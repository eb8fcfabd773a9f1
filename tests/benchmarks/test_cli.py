"""The benchmark of the command line measures what it says, and stops when a command does not end as it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.commands.bench_cli import Case, measure


def test_help_and_a_mistake_are_measured(tmp_path: Path) -> None:
    for case in (Case("help", ("--help",), 0), Case("unknown command", ("jion",))):
        cost = measure(case, tmp_path)
        assert cost.cpu_seconds > 0
        assert cost.wall_seconds > 0


def test_another_end_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ended with 2, not 0: .*No such command 'jion'"):
        measure(Case("wrong", ("jion",), 0), tmp_path)
