"""A demo leaves nothing behind, and nobody else's things are touched."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from peer.config.manifest import RunManifest
from peer.console.plain_console import PlainConsole
from peer.demo.demo import _stopped
from peer.demo.show import LineView
from peer.demo.swarm import DemoSwarm

RUN_ID = "demo." + "a" * 20


@pytest.mark.parametrize("is_interrupted", [False, True])
@pytest.mark.parametrize("is_used", [False, True])
def test_what_page_and_export_kept_goes_with_the_demo(
    is_interrupted: bool, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    usual = tmp_path / "murmuration" / RUN_ID
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
