"""What a run's owner can make a volunteer's `peer join` do: real processes and a manifest with the worst values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import encode_run_record, sign_run_record
from peer.config.manifest import RunManifest
from tests.kit.processes.process_swarm import WAIT_SECONDS, assert_one_sentence, free_port

TINY: dict[str, Any] = {"num_layers": 1, "d_model": 32, "num_heads": 2, "context": 32}


def signed_run(folder: Path, **sections: Any) -> str:
    """A run signed as any software could sign it, in a volunteer's data folder; returns its id."""
    owner = Identity.generate()
    run_id = make_run_id("hostile", owner.public_key)
    fields = json.loads(RunManifest.from_fields({"name": "hostile", "model": TINY}).to_bytes())
    for name, section in sections.items():
        fields[name] = fields[name] | section if isinstance(section, dict) else section
    manifest = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    folder.mkdir(mode=0o700)
    (folder / "run.record").write_bytes(encode_run_record(sign_run_record(run_id, manifest, owner)))
    return run_id


def start(folder: Path, run_id: str, *arguments: str, command: str = "join") -> subprocess.Popen[str]:
    given = [command, "--run-id", run_id, "--data-dir", str(folder), "--listen", f"/ip4/127.0.0.1/tcp/{free_port()}"]
    given += ["--device", "cpu", "--threads", "1"] if command == "join" else []
    return subprocess.Popen(
        [sys.executable, "-m", "peer", *given, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(folder)},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        shown, said = process.communicate(timeout=WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"still there: {process.communicate()}")
    return process.returncode, shown, said


def test_the_path_in_a_manifest_is_not_opened(tmp_path: Path) -> None:
    # Opening this one would wait for ever; of a key nobody would notice.
    os.mkfifo(tmp_path / "id_ed25519")
    run_id = signed_run(tmp_path / "peer", data={"source": f"text:{tmp_path}/id_ed25519"})
    code, shown, said = ended(start(tmp_path / "peer", run_id))
    assert code == 4, said
    wanted = "a path that would be read on every volunteer's machine"
    assert_one_sentence(said.split("\n", 1)[1] if said.startswith("Listening") else said, wanted)
    assert "training on" not in shown + said


def test_the_volunteer_chooses_and_sees_what_is_read(tmp_path: Path) -> None:
    run_id = signed_run(tmp_path / "peer", data={"source": "text:"})
    (tmp_path / "books.txt").write_text("".join(f"line {number}\n" for number in range(5000)))
    process = start(tmp_path / "peer", run_id, "--data", f"text:{tmp_path}/books.txt", "--max-steps", "3", "--json")
    code, shown, said = ended(process)
    assert code == 0, said
    assert f"Training on text:{tmp_path}/books.txt (chosen with --data; 1 file, 48.9 kB)" in said
    assert '"JoinedRun"' in shown
