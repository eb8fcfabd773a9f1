"""A folder on the Hub: what goes there, and what is said when it cannot."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dht.ground.errors import LocalFault, UsageFault
from peer.export.export import export_model
from peer.export.hub_push import check_push, push_folder
from peer.export.model_source import CheckpointSource
from tests.kit.trainer.exported_models import data_folder
from tests.kit.trainer.writable_hub import TOKEN, WritableHub

huggingface_hub = pytest.importorskip("huggingface_hub")

of_the_library = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, token: None) -> Iterator[WritableHub]:
    """The library writes to it, and waits for nothing before it tries again."""
    hub = WritableHub()
    api = huggingface_hub.HfApi(endpoint=hub.url)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    # The library reads the environment once, perhaps while an earlier test of this process wanted it offline.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    try:
        yield hub
    finally:
        hub.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@of_the_library
def test_the_folder_is_uploaded_also_over_an_earlier_one_and_through_cut_connections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: WritableHub
) -> None:
    run_id, folder, _ = data_folder(tmp_path)
    for number, hub.cuts in enumerate([0, 2]):
        out = tmp_path / f"model{number}"
        assert export_model(CheckpointSource(run_id, folder), out, False, True, "org/name") == 0
        assert hub.files == contents(out)
        assert json.loads(capsys.readouterr().out)["pushed"] == f"{hub.url}/org/name"
    assert hub.cuts == 0
    assert [message.partition(",")[0] for message in hub.commits] == [run_id, run_id]


@of_the_library
def test_what_the_hub_refuses_or_a_line_cuts_off_leaves_the_folder_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: WritableHub
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(5000))
    hub.cuts = 1000
    with pytest.raises(
        LocalFault,
        match=r"Error while uploading 'model.safetensors' to the Hub: [^;]+; expected a n",
    ):
        push_folder(folder, "org/name", "a test")
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(
        LocalFault, match=r"could not be uploaded to org/name: .*401 Unauthorized.*; expected .* a token"
    ):
        push_folder(folder, "org/name", "a test")
    assert (hub.files, hub.commits) == ({}, [])
    assert contents(folder) == {"model.safetensors": bytes(5000)}


@pytest.mark.parametrize("name", ["name", "a/b/c", "../x", "org/", "org/a b", "o/" + 95 * "n"])
def test_a_wrong_name_is_found_before_anything_is_fetched(name: str, token: None) -> None:
    with pytest.raises(UsageFault, match="expected ORGANISATION/NAME"):
        check_push(name)


def test_what_else_is_missing_is_found_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UsageFault, match=r"found no token .* run `hf auth login`"):
        check_push("org/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageFault, match=r"pip install (-e )?'\.\[hf\]'"):
        check_push("org/name")
