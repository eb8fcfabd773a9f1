"""Peers of this machine: each has its line in `peer runs`, and each knows whom the others know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dht.identity.keys import Identity
from dht.identity.speakable import speakable_name
from peer.cli import app
from peer.config.peer_config import ADDRESSES_NAME, PeerConfig, read_cached_peers, write_cached_peers
from peer.data_folder.folder_lock import FolderLock
from peer.data_folder.run_folders import remember_place
from peer.observe.known_addresses import check_addresses, no_address

RUN_ID = "own." + "a" * 20


def test_a_further_peer_of_a_run_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    home = tmp_path / "murmuration"
    for name in (RUN_ID, f"{RUN_ID}-10", f"{RUN_ID}-2", f"{RUN_ID}-old", f"{RUN_ID}-2-3"):
        (home / name).mkdir(parents=True)
    FolderLock(home / f"{RUN_ID}-10", "peer seed").close()
    key = Identity.from_seed(bytes(32)).peer_id
    write_cached_peers(home / f"{RUN_ID}-10" / ADDRESSES_NAME, [f"/ip4/127.0.0.1/tcp/4001/p2p/{key}"])
    held = FolderLock(home / f"{RUN_ID}-2", "peer join")
    try:
        assert app.run(["runs"]) == 0
        heading, first, second, tenth = capsys.readouterr().out.splitlines()
        assert heading.split() == ["run", "peer", "state", "folder"]
        parts = [line[heading.index("peer") : heading.index("state")].strip() for line in (first, second, tenth)]
        assert parts == ["", "trainer", f"seed {speakable_name(key)}"], "of stopped ones, too"
        assert first.startswith("never joined from here", heading.index("state"))
        assert second.startswith("running now", heading.index("state"))
        assert tenth.startswith("stopped before it joined", heading.index("state")), "it was started, and has no log"
        for line, end in ((first, ""), (second, "-2"), (tenth, "-10")):
            assert line[heading.index("folder") :] == f"{home / RUN_ID}{end}"
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "80")
        assert app.run(["runs"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[:2] == [RUN_ID, "  never joined from here"]
        assert f"  seed {speakable_name(key)}" in lines
        assert [line for line in lines if str(home) in line] == [f"  {home / RUN_ID}{end}" for end in ("", "-2", "-10")]
        assert app.run(["runs", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert [one["folder"] for one in facts] == [str(home / RUN_ID) + end for end in ("", "-2", "-10")]
    finally:
        held.close()


def test_a_folder_that_cannot_be_read_says_so_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    home = tmp_path / "murmuration"
    home.mkdir()
    (home / RUN_ID).symlink_to(home / RUN_ID)  # in a circle: an error for every user, root too
    assert app.run(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"{RUN_ID}  cannot be read (Too many levels of symbolic links)"]
    (home / RUN_ID).unlink()
    home.rmdir()
    home.touch()
    for command in (["runs"], ["stop"]):
        assert app.run(command) == 1
        assert f"{home} cannot be read (Not a directory)" in capsys.readouterr().err


def test_another_folder_knows_whom_the_usual_one_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    seed = f"/ip4/127.0.0.1/tcp/4001/p2p/{Identity.from_seed(bytes(32)).peer_id}"
    (tmp_path / "murmuration" / RUN_ID).mkdir(parents=True)
    write_cached_peers(tmp_path / "murmuration" / RUN_ID / ADDRESSES_NAME, [seed])
    config = PeerConfig(run_id=RUN_ID, data_dir=tmp_path / "second")
    config.data_dir.mkdir()
    check_addresses(config)
    assert read_cached_peers(config.cached_peers_path) == [seed]


def test_a_seed_that_is_still_starting_is_worth_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "owner").mkdir()
    remember_place(RUN_ID, tmp_path / "owner")
    assert "select it with --data-dir" in str(no_address(RUN_ID, tmp_path / "mine"))
    held = FolderLock(tmp_path / "owner", "peer seed")
    try:
        said = str(no_address(RUN_ID, tmp_path / "mine"))
    finally:
        held.close()
    assert "(peer seed)" in said
    assert said.endswith("is in this run: try again when it shows its address.")
