"""A demo leaves nothing behind, and nobody else's things are touched."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest

from peer.config.manifest import RunManifest
from peer.console.plain_console import PlainConsole
from peer.demo.demo import _stopped
from peer.demo.leftovers import take_away
from peer.demo.progress_table import LineView
from peer.demo.swarm import DemoSwarm
from peer.run_folders import known_places, remember_place

RUN_ID = "demo." + "a" * 20


@pytest.mark.parametrize("is_interrupted", [False, True])
@pytest.mark.parametrize("is_used", [False, True])
def test_what_page_and_export_kept_goes_with_the_demo(
    is_interrupted: bool, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    usual = tmp_path / "murmuration" / RUN_ID
    (tmp_path / "demo" / "peer-1").mkdir(parents=True)
    remember_place(RUN_ID, tmp_path / "demo" / "peer-1")
    (usual / "observer" / "files").mkdir(parents=True)
    if is_used:
        (usual / "identity.key").write_bytes(b"of somebody who joined from another terminal")
    swarm = DemoSwarm(tmp_path / "demo", RUN_ID, RunManifest(name="demo"))
    ends = False
    try:
        with _stopped(swarm, LineView(PlainConsole(file=io.StringIO()))):
            if is_interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        ends = True
    assert ends is is_interrupted
    assert [path.name for path in usual.parent.rglob("*")] == ([RUN_ID, "identity.key"] if is_used else [])


def test_what_a_killed_demo_started_and_wrote_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    folder, others = tmp_path / "demo", tmp_path / "others"
    for place in (others, folder / "peer-1"):
        place.mkdir(parents=True)
        remember_place(RUN_ID, place)
    (tmp_path / "home" / "murmuration" / RUN_ID / "observer").mkdir(parents=True)
    ended, left = (subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2))
    try:
        lines = [json.dumps([RUN_ID, ended.pid]), json.dumps([RUN_ID, left.pid]), '["cut off']
        # Nobody else waits for them, so that they stay visible: that of a demo is collected by the system.
        monkeypatch.setattr("peer.demo.leftovers.GONE_SECONDS", 0.0)
        take_away(lines, folder)
        assert left.wait() == -9
        assert ended.poll() is None
    finally:
        ended.kill()
        ended.wait()
    assert not folder.exists()
    assert known_places() == [(RUN_ID, others)]
    assert [path.name for path in (tmp_path / "home" / "murmuration").iterdir()] == ["places.json"]
