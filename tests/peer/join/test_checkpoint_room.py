"""A disk that is too small for checkpoints is told before training."""

from __future__ import annotations

from pathlib import Path

from peer.config.layouts import num_orthogonalised
from peer.config.manifest import RunManifest
from peer.join.checkpoint_room import needed_bytes, room_warning
from peer.plan.homes import PlanProfile
from peer.plan.planning import plan_run
from peer.plan.source import sizes_of


def test_a_small_disk_is_told_with_both_figures_and_a_large_one_is_not() -> None:
    told = room_warning(22_200_000, 1_000_000, 0, Path("somewhere"))
    assert told.startswith("Work may be lost on leaving: checkpoints need 22.2 MB, and 1 MB")
    assert "somewhere" in told
    assert room_warning(22_200_000, 22_200_000, 0, Path("somewhere")) == ""


def test_checkpoints_that_are_there_already_do_not_count_twice() -> None:
    assert room_warning(22_200_000, 8_000_000, 14_200_000, Path("somewhere")) == ""


def test_the_figure_is_the_one_of_a_plan() -> None:
    manifest = RunManifest(name="tiny")
    planned = plan_run(manifest, PlanProfile(), sizes_of(manifest), num_orthogonalised(manifest)).disk_bytes
    assert needed_bytes(manifest) == planned > 0
