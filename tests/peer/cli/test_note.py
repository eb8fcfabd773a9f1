"""`peer note`: the organiser's words in the signed manifest, a few of them, one line each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dht.records.signed_manifest import decode_run_record
from peer.cli import app
from peer.config.access_sections import MAX_NOTES
from peer.config.manifest import RunManifest
from peer.config.peer_config import RUN_RECORD_NAME
from peer.owner.owned_run import open_owned_run


def test_notes_are_signed_bounded_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "owner"
    assert app.run(["init", "ours", "--out", str(folder)]) == 0
    before = open_owned_run(None, folder).manifest
    assert app.run(["note", str(folder)]) == 0
    assert "There are no notes yet" in capsys.readouterr().out
    assert app.run(["note", str(folder), "  raised H to 40; why "]) == 0
    said = capsys.readouterr().out
    assert "Noted       raised H to 40; why" in said
    assert app.run(["manifest", "show", str(folder)]) == 0
    assert 'Change      the organiser notes: "raised H to 40; why"\n' in capsys.readouterr().out
    assert f"run `peer manifest publish --data-dir {folder}` when a member is online" in said
    for number in range(MAX_NOTES):
        assert app.run(["note", str(folder / RUN_RECORD_NAME), f"note {number}"]) == 0
    capsys.readouterr()
    assert app.run(["note", str(folder), "--json"]) == 0
    notes = [note["note"] for note in json.loads(capsys.readouterr().out)]
    assert notes == [f"note {number}" for number in range(MAX_NOTES)]
    owned = open_owned_run(None, folder)
    data = (folder / RUN_RECORD_NAME).read_bytes()
    signed = RunManifest.from_bytes(decode_run_record(data, run_id=owned.run_id).manifest)
    assert [change.note for change in signed.changes] == notes
    # Running peers take it: nothing but the list of changes is another.
    assert (signed.hash, signed.revision) == (before.hash, 2 + MAX_NOTES)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "The note is empty"), ("two\nlines", "one line of printable text"), ("x" * 121, "TEXT")],
)
def test_a_note_is_one_short_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str) -> None:
    assert app.run(["init", "ours", "--out", str(tmp_path / "owner")]) == 0
    capsys.readouterr()
    assert app.run(["note", str(tmp_path / "owner"), text]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line
    assert app.run(["note", str(tmp_path), "hello"]) == 2
    assert "contains no" in capsys.readouterr().err
    assert app.run(["note", "no-run", "hello"]) == 2
    assert "run id" in capsys.readouterr().err
