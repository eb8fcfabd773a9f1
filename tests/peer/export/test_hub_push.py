"""A folder on the Hub: what goes there, and what is said when it cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dht.errors import LocalFault, UsageFault
from peer.export.before_export import check_export
from peer.export.export import export_model
from peer.export.hub_push import push_folder
from peer.export.model_source import CheckpointSource
from tests.kit.trainer.exported_models import data_folder

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")


def test_the_folder_is_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], token: None
) -> None:
    sent: list[tuple[str, Any]] = []

    class Hub:
        endpoint = "https://hub.example"

        def create_repo(self, name: str, exist_ok: bool) -> None:
            sent.append((name, exist_ok))

        def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
            sent.append((repo_id, {path.name for path in folder_path.iterdir()}))

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    run_id, folder, _ = data_folder(tmp_path)
    out = tmp_path / "model"
    assert export_model(CheckpointSource(run_id, folder), out, False, True, "hf", "org/name") == 0
    assert sent == [("org/name", True), ("org/name", {path.name for path in out.iterdir()})]
    assert json.loads(capsys.readouterr().out)["pushed"] == "https://hub.example/org/name"


def test_without_a_network_the_folder_stays_and_a_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: None
) -> None:
    (tmp_path / "model").mkdir()
    unreachable = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: unreachable)
    with pytest.raises(LocalFault, match=r"is written, and could not be pushed to org/name: .*try again with `hf upl"):
        push_folder(tmp_path / "model", "org/name", "a test")
    assert (tmp_path / "model").is_dir()


@pytest.mark.parametrize("name", ["name", "a/b/c", "../x", "org/", "org/a b", "o/" + 95 * "n"])
def test_a_wrong_name_is_found_before_anything_is_fetched(tmp_path: Path, name: str, token: None) -> None:
    with pytest.raises(UsageFault, match="expected ORGANISATION/NAME"):
        check_export(tmp_path / "m", "hf", push=name)


def test_what_else_is_missing_is_found_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageFault, match=r"expected a folder: no --format"):
        check_export(tmp_path / "m.safetensors", "safetensors", push="org/name")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UsageFault, match=r"finds no token .* run `hf auth login`"):
        check_export(tmp_path / "m", "hf", push="org/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageFault, match=r"pip install 'murmuration-swarm\[hf\]'"):
        check_export(tmp_path / "m", "hf", push="org/name")
