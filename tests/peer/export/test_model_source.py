"""What is no model is refused before anything is loaded that could read one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.identity.keys import Identity, fingerprint
from dht.records.signed_manifest import encode_run_record, sign_run_record
from peer.cli import app
from peer.export.model_source import run_in
from peer.export.run_anchors import contributors_of
from tests.kit.records import make_record

OWNER = Identity.generate()


def test_a_path_that_is_no_exported_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    for name, sentence in (
        ("file", "is not a folder"),
        ("pipe", "is not a folder"),
        ("absent", "is not a folder"),
        (".", "no run.json"),
    ):
        for words in (["sample", "--prompt", "x"], ["evaluate"]):
            assert app.run([*words, "--model", str(tmp_path / name)]) == 2
            error = capsys.readouterr().err
            assert sentence in error
            assert "expected a folder that `peer export` wrote" in error


def test_a_data_folder_names_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = sign_run_record("ours." + fingerprint(OWNER.public_key), b'{"revision": 1}', OWNER)
    (tmp_path / "run.record").write_bytes(encode_run_record(record))
    assert run_in(tmp_path) == record.run_id
    (tmp_path / "run.record").write_bytes(b"no record")
    assert app.run(["export", "--checkpoint", str(tmp_path)]) == 2
    assert "run.record contains no run; expected the run record" in capsys.readouterr().err


def test_contributors_are_people_whose_machines_have_trained() -> None:
    person = Identity.generate()
    machines = [make_record(name, tokens=7, contributor_key=person.public_key) for name in "CD"]
    records = [make_record("A", role="seed"), make_record("B", tokens=5), *machines]
    assert contributors_of(records) == tuple(sorted(("B", person.peer_id)))
