"""Where files of a run lie: those of earlier manifests go, and nothing else."""

from __future__ import annotations

from pathlib import Path

from peer.config.manifest import RunManifest
from peer.files.checked_folder import FILES_NAME, files_folder, forget_others


def test_files_of_earlier_manifests_go(tmp_path: Path) -> None:
    manifest = RunManifest(name="tiny")
    here = files_folder(tmp_path, manifest)
    old, own = tmp_path / FILES_NAME / ("0" * 16), tmp_path / FILES_NAME / "somebody's own"
    elsewhere = tmp_path / "elsewhere"
    for folder in (here, old, own, elsewhere):
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text("{}")
    (tmp_path / FILES_NAME / ("1" * 16)).symlink_to(elsewhere)
    forget_others(tmp_path, manifest)
    assert not old.exists()
    assert all((folder / "tokenizer.json").exists() for folder in (here, own, elsewhere))
