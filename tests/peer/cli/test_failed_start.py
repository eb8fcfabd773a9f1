"""A start of which nothing comes leaves the disk as it was; what was there before stays."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import sign_run_record
from peer.cli import app
from peer.config.hf_config import canonical_config
from peer.config.manifest import RunManifest
from peer.data_folder.data_folder_choice import FreshFolder
from peer.data_folder.folder_lock import FolderLock

RUN_ID, OTHER_RUN = "own." + "a" * 20, "other." + "b" * 20
NOBODY = ["--plain", "--peers", f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}", "--join-timeout", "0.05"]

ON_GIVEN_WEIGHTS = {
    "num_parameters": 100,
    "layout_digest": "ab" * 32,
    "config": canonical_config({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 256}),
    "init": {"source": "folder", "digest": "ab" * 32, "num_bytes": 400},
}


def paths_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("words", "code"),
    [(["join", RUN_ID], 2), (["seed", RUN_ID], 2), (["join", RUN_ID, *NOBODY], 3), (["seed", RUN_ID, *NOBODY], 3)],
    ids=["join without address", "seed without address", "join with nobody there", "seed with nobody there"],
)
def test_nothing_is_left_behind(
    words: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert app.run([*words]) == code
    capsys.readouterr()
    assert paths_in(tmp_path) == []
    # The same in a folder that is there, with things of its owner.
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    assert app.run([*words, "--data-dir", str(mine)]) == code
    assert paths_in(tmp_path) == ["mine", "mine/notes.txt"]


def test_a_key_of_before_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "identity.key"
    Identity.load_or_create(key)
    before = key.read_bytes()
    assert app.run(["join", RUN_ID, *NOBODY, "--data-dir", str(tmp_path)]) == 3
    assert key.read_bytes() == before
    assert paths_in(tmp_path) == ["identity.key"]


def test_a_folder_that_another_process_took_meanwhile_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    fresh = FreshFolder(folder, [folder / "identity.key"])
    folder.mkdir()
    (folder / "identity.key").write_text("of another")
    lock = FolderLock(folder, "peer join")
    fresh.take_back()
    assert (folder / "identity.key").exists()
    lock.close()
    fresh.take_back()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("fields", "code", "sentence"),
    [
        ({"data": {"source": "text:"}}, 2, "This run reads text that each volunteer brings"),
        (
            {"model": ON_GIVEN_WEIGHTS},
            2,
            "--base is missing; expected --base DIR with this run's pretrained weights (digest abababababababab)",
        ),
        (
            {"changes": [{"at_version": 0, "ends_run": True}]},
            4,
            "has ended it (at once, by revision 1 of its manifest",
        ),
    ],
    ids=["without data", "without weights", "ended"],
)
def test_what_the_first_answer_tells_is_known_before_anything_heavy(
    fields: dict[str, object],
    code: int,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    owner = Identity.from_seed(bytes(32))
    run_id = make_run_id("own", owner.public_key)
    manifest = RunManifest.from_fields({"name": "own", **fields})
    record = sign_run_record(run_id, manifest.to_bytes(), owner)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("peer.join.before_start.look_first", lambda *_, **__: record)
    assert app.run(["join", run_id, *NOBODY]) == code
    assert sentence in capsys.readouterr().err
    assert paths_in(tmp_path) == []


@pytest.mark.parametrize("command", ["join", "seed"])
def test_a_port_that_is_taken_is_told_before_anything_is_shown(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"
        assert app.run([command, RUN_ID, *NOBODY, "--listen", listen]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"peer: The port of {listen} is in use by another program; expected a free port; choose another" in shown.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["join", "--data", "text:absent"], "absent does not exist; expected a file or folder to read"),
        (["join", "--contributor-key", "folder"], "folder"),
        (["seed", "--contributor-key", "folder"], "folder"),
        (
            ["join", "--contributor-key", "absent"],
            "The key file absent does not exist; expected the key file that `peer profile",
        ),
        (
            ["seed", "--contributor-key", "absent"],
            "The key file absent does not exist; expected the key file that `peer profile",
        ),
    ],
)
def test_a_file_that_is_not_there_is_told_at_once_and_makes_no_new_person(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert app.run([*words, RUN_ID, *NOBODY, "--data-dir", "peer"]) == 2
    assert sentence in capsys.readouterr().err
    assert paths_in(tmp_path) == ["folder"]
