"""What is no model is refused before anything is loaded that could read one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.ground.errors import UsageFault
from dht.identity.keys import Identity, fingerprint
from dht.records.signed_manifest import encode_run_record, sign_run_record
from peer.cli import app
from peer.export.members_anchors import contributors_of
from peer.export.model_source import check_model, run_in
from tests.kit.records import make_record

OWNER = Identity.generate()


@pytest.mark.parametrize(
    "content", [b"", b"text", b"\xff" * 100, (100).to_bytes(8, "little") + b"{", (2).to_bytes(8, "little") + b"[]"]
)
def test_a_file_that_is_no_whole_model(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.st"
    path.write_bytes(content)
    for words in (["sample", "--prompt", "x"], ["evaluate"]):
        assert app.run([*words, "--model", str(path)]) == 2
        assert f"{path} is no whole safetensors file; expected a file or folder that" in capsys.readouterr().err


def test_what_is_no_file_or_no_folder_of_an_export(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"absent cannot be read .*; expected"):
        check_model(tmp_path / "absent")
    with pytest.raises(UsageFault, match=r"has no run\.json; expected"):
        check_model(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageFault, match=r"cannot be read .*; expected"):
        check_model(tmp_path / "pipe")
    (tmp_path / "run.json").touch()
    check_model(tmp_path)


def test_a_whole_header_is_left_to_what_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    check_model(path)


def test_a_data_folder_names_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = sign_run_record("ours." + fingerprint(OWNER.public_key), b'{"revision": 1}', OWNER)
    (tmp_path / "run.record").write_bytes(encode_run_record(record))
    assert run_in(tmp_path) == record.run_id
    (tmp_path / "run.record").write_bytes(b"no record")
    assert app.run(["export", "--checkpoint", str(tmp_path)]) == 2
    assert "run.record names no run; expected the record" in capsys.readouterr().err


def test_contributors_are_people_whose_machines_have_trained() -> None:
    person = Identity.generate()
    machines = [make_record(name, tokens=7, contributor_key=person.public_key) for name in "CD"]
    records = [make_record("A", role="seed"), make_record("B", tokens=5), *machines]
    assert contributors_of(records) == tuple(sorted(("B", person.peer_id)))
