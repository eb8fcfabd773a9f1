"""A run that its owner has ended: what is said of it where nobody answers any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.identity.keys import Identity
from peer.cli import app
from peer.config.access_sections import ChangeSection
from peer.observe.kept_manifest import end_signed_here
from peer.owner.owned_run import open_owned_run

NOBODY_THERE = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"


def test_an_end_that_is_signed_here_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert app.run(["init", "ours"]) == 0
    (folder,) = (tmp_path / "murmuration").glob("ours.*")
    owned, ask = open_owned_run(None, folder), ["--peers", NOBODY_THERE, "--timeout", "0.1"]
    assert end_signed_here(folder / "run.record", owned.run_id) == ""
    owned.change_now(ChangeSection(at_version=400, ends_run=True))
    for command in ("status", "export"):
        capsys.readouterr()
        assert app.run([command, owned.run_id, *ask]) == 3
        said = capsys.readouterr().err
        assert said.startswith(f"peer: The owner of {owned.run_id} has ended it (from version 400 on, says the")
        assert "; nobody of" in said
