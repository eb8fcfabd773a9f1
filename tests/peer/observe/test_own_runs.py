"""`peer runs`: each peer of a run on this machine has its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.cli import app
from peer.folder_lock import FolderLock

RUN_ID = "own." + "a" * 20


def test_a_further_peer_of_a_run_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    home = tmp_path / "murmuration"
    for name in (RUN_ID, f"{RUN_ID}-10", f"{RUN_ID}-2", f"{RUN_ID}-old", f"{RUN_ID}-2-3"):
        (home / name).mkdir(parents=True)
    held = FolderLock(home / f"{RUN_ID}-2", "peer join")
    try:
        assert app.run(["runs"]) == 0
        first, second, tenth = capsys.readouterr().out.splitlines()
        assert first == f"{RUN_ID}  never joined from here"
        assert "running now" in second
        assert second.endswith(f"in {home / RUN_ID}-2")
        assert tenth.endswith(f"in {home / RUN_ID}-10")
        assert app.run(["runs", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert [one["folder"] for one in facts] == [str(home / RUN_ID) + end for end in ("", "-2", "-10")]
    finally:
        held.close()
