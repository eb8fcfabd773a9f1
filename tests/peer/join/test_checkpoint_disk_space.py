"""A disk that is too small for checkpoints is told before training."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from peer.config.manifest import RunManifest
from peer.config.model_shapes import num_orthogonalised, seed_sizes
from peer.config.peer_config import PeerConfig
from peer.join.checkpoint_disk_space import needed_bytes, room_warning, warn_of_room
from peer.join.seed import run_seed
from peer.plan.planning import plan_run


def test_a_small_disk_is_told_with_both_figures_and_a_large_one_is_not() -> None:
    told = room_warning(22_200_000, 1_000_000, 0, Path("somewhere"))
    assert told.startswith("Work may be lost on leaving: checkpoints need 22.2 MB, but only 1.00 MB")
    assert "somewhere" in told
    assert room_warning(22_200_000, 22_200_000, 0, Path("somewhere")) == ""
    # Checkpoints that are there already make room for the next ones.
    assert room_warning(22_200_000, 8_000_000, 14_200_000, Path("somewhere")) == ""


def test_the_figure_is_the_one_of_a_plan() -> None:
    manifest = RunManifest(name="tiny")
    planned = plan_run(manifest, seed_sizes(manifest), num_orthogonalised(manifest)).disk_bytes
    assert needed_bytes(manifest) == planned > 0


def test_a_seed_needs_less_because_it_has_no_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = RunManifest(name="tiny")
    of_a_seed = needed_bytes(manifest, trains=False)
    assert 0 < of_a_seed < needed_bytes(manifest)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=of_a_seed))
    assert warn_of_room(manifest, tmp_path, tmp_path / "checkpoints", trains=False) == ""
    assert warn_of_room(manifest, tmp_path, tmp_path / "checkpoints").startswith("Work may be lost on leaving")


def test_a_seed_is_told_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed with a full disk would keep nothing of the run; it says so in its first lines."""
    notes: list[str] = []
    made = []

    class Side:
        def __init__(self, *ports: object, make_mailbox: Any, **_: object) -> None:
            made.append(make_mailbox)

        async def run(self) -> None:
            (await made[0](None, RunManifest(name="tiny")))[0].close()

    terminal = mock.Mock(note=notes.append)
    # In place of the module, which takes seconds to load.
    monkeypatch.setitem(sys.modules, "peer.network.process.network_side", SimpleNamespace(NetworkSide=Side))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))
    config = PeerConfig(run_id="own." + "a" * 20, data_dir=tmp_path)
    assert run_seed(config, terminal) == 0
    assert [note.split(":")[0] for note in notes] == ["Work may be lost on leaving"]
