"""Records: what each tracker gets, what a restart goes on with, and what a tracker that fails costs."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import UsageFault
from dht.ground.host import PeerId
from peer.config.peer_config import PeerConfig
from peer.events.peer_events import Event, TrainingProgressed
from peer.tracking import trackers
from peer.tracking.recorded_rows import OWN_COLUMNS, RUN_COLUMNS, OwnRows, Row
from peer.tracking.recorder import Recorder, recording
from peer.tracking.trackers import CsvTracker, Record, check_tracker, own_record, run_record

RUN = "tiny.abcdefghij234567abcd"


def record(kind: Any, folder: Path) -> Record:
    return Record(kind, RUN, "Ada-1234", str(folder), "metrics.csv", ("loss", "tokens"))


def record_rows(one: Record, *rows: Row) -> list[str]:
    """Through a process of its own; returns the warnings."""
    warnings: list[str] = []
    recorder = Recorder(one, warnings.append)
    for row in rows:
        recorder.add(row)
    recorder.close()
    return warnings


def test_csv_goes_on_after_a_restart_and_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "data" / "metrics.csv"
    assert record_rows(record("csv", path.parent), Row(3, 1.7e9, {"loss": 2.5, "tokens": 300.0})) == []
    with path.open("a") as file:
        file.write("2023-11-14T22:1")
    assert record_rows(record("csv", path.parent), Row(4, 1.7e9 + 60, {"tokens": 12345678901.0})) == []
    with path.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert rows[0] == {"time": "2023-11-14T22:13:20Z", "step": "3", "loss": "2.5", "tokens": "300"}
    assert rows[1]["time"] == "2023-11-14T22:1"
    assert rows[2] == {"time": "2023-11-14T22:14:20Z", "step": "4", "loss": "", "tokens": "12345678901"}
    assert len(rows) == 3


@pytest.mark.parametrize("there", ["time,step,other\n", "notes of mine"])
def test_a_file_with_other_columns_is_left_alone(tmp_path: Path, there: str) -> None:
    (tmp_path / "metrics.csv").write_text(there)
    (warning,) = record_rows(record("csv", tmp_path), Row(3, 1.7e9, {}))
    assert "expected 'time,step,loss,tokens'; move the file away; nothing more is recorded" in warning
    assert (tmp_path / "metrics.csv").read_text() == there


def test_what_is_no_file_is_a_warning(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.csv")
    with pytest.raises(OSError, match="is not a regular file"):
        CsvTracker(tmp_path / "metrics.csv", ())
    (tmp_path / "file").touch()
    (warning,) = record_rows(record("csv", tmp_path / "file"))
    assert warning.startswith("--track csv: ")
    assert warning.endswith("; nothing more is recorded, but everything else continues")


def test_trackio_has_one_run_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for step in (1, 2):
        assert record_rows(record("trackio", tmp_path), Row(step, 1.7e9, {"loss": 2.0 + step})) == []
    (database,) = (tmp_path / "store").glob("*.db")
    with sqlite3.connect(database) as connection:
        found = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert [(name, step, json.loads(values)) for name, step, values in found] == [
        ("Ada-1234", 0, {"steps": 1, "loss": 3.0}),
        ("Ada-1234", 1, {"steps": 2, "loss": 4.0}),
    ]


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text(
        "import json, sys\n"
        "def init(**options):\n"
        "    print('much to say', file=sys.stderr)\n"
        f"    log = open({str(tmp_path / 'told')!r}, 'a')\n"
        "    say = lambda *what: (log.write(json.dumps(what) + '\\n'), log.flush())\n"
        "    say('init', options)\n"
        "    run = type('Run', (), {})()\n"
        "    run.log = lambda values: say(values)\n"
        "    run.finish = lambda: say('finish')\n"
        "    return run\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    assert record_rows(record("wandb", tmp_path), Row(7, 1.0, {"loss": 2.5})) == []
    init, row, finish = map(json.loads, (tmp_path / "told").read_text().splitlines())
    name = "tiny-abcdefghij234567abcd-Ada-1234"
    options = {"project": RUN, "name": "Ada-1234", "id": name, "resume": "allow", "dir": str(tmp_path)}
    assert (init, row, finish) == (["init", options], [{"steps": 7, "loss": 2.5}], ["finish"])


def test_a_tracker_that_fails_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text("def init(**_):\n    raise RuntimeError('not\\nlogged in')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    warnings = record_rows(record("wandb", tmp_path), *(Row(step, 1.0, {"loss": 1.0}) for step in range(2000)))
    assert warnings == [
        "--track wandb: RuntimeError: not logged in; nothing more is recorded, but everything else continues"
    ]


def test_a_tracker_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text("import threading\ndef init(**_):\n    threading.Event().wait()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    warnings: list[str] = []
    recorder = Recorder(record("wandb", tmp_path), warnings.append, end_seconds=0.2)
    for step in range(10_000):
        recorder.add(Row(step, 1.0, {"loss": 1.0}))
    recorder.close()
    assert len(recorder._rows) <= 1000
    assert recorder._process is not None
    assert recorder._process.wait(10) == -9
    assert len(warnings) == 1


@pytest.mark.parametrize(("kind", "remedy"), [("wandb", "pip install wandb"), ("trackio", "pip install trackio")])
def test_a_library_that_is_missing_is_told_before_joining(
    monkeypatch: pytest.MonkeyPatch, kind: Any, remedy: str
) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageFault, match=rf"--track {kind} needs {kind}, which is not installed.*{remedy}"):
        check_tracker(kind)
    check_tracker("csv")


def test_a_peer_records_its_events_under_the_same_name_after_a_restart(tmp_path: Path) -> None:
    config = PeerConfig(run_id=RUN, data_dir=tmp_path, name="Ada/B", track="csv")
    me = PeerId("12D3KooWabcdefgh")
    assert own_record(config, me) == Record("csv", RUN, "Ada-B-abcdefgh", str(tmp_path), "metrics.csv", OWN_COLUMNS)
    with recording(own_record(config, me), pytest.fail, OwnRows().row) as note:
        note(Event(1.7e9, me, TrainingProgressed(4, 400, 2.5, 50.0, 0.0)))
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == ",".join(["time", "step", *OWN_COLUMNS])
    assert lines[1].startswith("2023-11-14T22:13:20Z,4,2.5,,,400,50,0,")


def test_without_a_choice_nothing_is_recorded(tmp_path: Path) -> None:
    config = PeerConfig(run_id=RUN, data_dir=tmp_path)
    with recording(own_record(config, PeerId("me")), pytest.fail, OwnRows().row) as note:
        note(Event(1.0, PeerId("me"), TrainingProgressed(4, 400, 2.5, 50.0, 0.0)))
    assert [*tmp_path.iterdir()] == []


def test_a_run_is_recorded_by_its_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = str(tmp_path / "murmuration" / RUN)
    assert run_record(RUN, "csv") == Record("csv", RUN, "swarm", folder, "run-metrics.csv", RUN_COLUMNS)
    with pytest.raises(UsageFault, match="--track is 'excel'; expected one of trackio, wandb, csv"):
        run_record(RUN, "excel")
