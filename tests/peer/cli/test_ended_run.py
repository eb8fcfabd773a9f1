"""A run that its owner has ended: what is said of it before anything is loaded or looked for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NoReturn

import pytest

from dht.ground.errors import NobodyReachable
from dht.identity.keys import Identity
from peer.cli import app
from peer.config.access_sections import ChangeSection
from peer.events.event_log import to_json
from peer.events.peer_events import Event, RunChanged
from peer.events.rotating_log import LineLog
from peer.observe import run_page
from peer.observe.ended_run import NamedRun, end_on_page, end_signed_here, what_is_left
from peer.observe.run_page import read_answer
from peer.owner.owned_run import OwnedRun, open_owned_run

OWN = Identity.generate().peer_id
NOBODY_THERE = f"/ip4/127.0.0.1/tcp/1/p2p/{OWN}"
PAGE = "https://run.example.org"


@pytest.fixture
def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> OwnedRun:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert app.run(["init", "ours"]) == 0
    capsys.readouterr()
    (folder,) = (tmp_path / "murmuration").glob("ours.*")
    return open_owned_run(None, folder)


@pytest.fixture
def ended_page(monkeypatch: pytest.MonkeyPatch, owned: OwnedRun) -> None:
    monkeypatch.setattr(
        run_page,
        "ask_page",
        lambda url, **_: NamedRun(owned.run_id, end=end_on_page(owned.run_id, url, is_served=False)),
    )


def test_an_end_that_is_signed_here_is_said_first(owned: OwnedRun, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["--peers", NOBODY_THERE, "--timeout", "0.1"]
    assert end_signed_here(owned.run_id, owned.folder) is None
    owned.change_now(ChangeSection(at_version=400, ends_run=True))
    for command in ("status", "export"):
        assert app.run([command, owned.run_id, *ask]) == 3
        said = capsys.readouterr().err
        assert said.startswith(f"peer: The owner of {owned.run_id} has ended it (from version 400 on, by revision 2")
        assert f"no member answers at {NOBODY_THERE}. All who took part have its model" in said


def test_an_end_that_another_folder_of_this_machine_holds_shortens_the_wait(
    owned: OwnedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The owner's folder has it, and a peer joins with one of its own: it waited 5 minutes."""
    patience: list[float] = []

    def look(run_id: str, addresses: list[str], seconds: float, **_: object) -> NoReturn:
        patience.append(seconds)
        raise NobodyReachable("nobody answered")

    monkeypatch.setattr("peer.join.before_start.look_first", look)
    mine = tmp_path / "mine"
    join = ["join", owned.run_id, "--peers", NOBODY_THERE, "--data-dir", str(mine)]
    assert app.run(join) == 3
    owned.change_now(ChangeSection(at_version=400, ends_run=True))
    capsys.readouterr()
    assert app.run(join) == 3
    assert "has ended it (from version 400 on" in capsys.readouterr().err
    assert patience == [300.0, 5.0]
    owned.change_now(ChangeSection(at_version=0, ends_run=True))
    assert app.run(join) == 4
    assert len(patience) == 2


def test_end_alone_ends_the_run_at_once(owned: OwnedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["manifest", "edit", owned.run_id, "--end"]) == 0
    said = capsys.readouterr().out
    assert "Ends        as soon as this is published\n" in said
    draft = open_owned_run(None, owned.folder).draft
    assert draft is not None
    assert draft.end_version == 0


def test_a_machine_that_saw_the_end_joins_no_more(
    owned: OwnedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owned.change_now(ChangeSection(at_version=400, ends_run=True))
    end = end_signed_here(owned.run_id, owned.folder)
    assert end is not None
    assert not end.is_over
    log = LineLog(owned.folder / "events.jsonl", print)
    log.append(to_json(Event(time.time(), OWN, RunChanged(end_version=400))))
    log.close()
    (owned.folder / "checkpoints" / "checkpoint-00000007").mkdir(parents=True)
    for command in ("join", "seed"):
        assert app.run([command, owned.run_id]) == 4
        said = capsys.readouterr().err
        assert "no peer can join it any more. This machine has its model: `peer export" in said
        assert f"--checkpoint {owned.folder} --out ours-model`" in said
    for command in ("status", "export"):
        assert app.run([command, owned.run_id, "--peers", NOBODY_THERE, "--timeout", "0.1"]) == 4
        assert f"no member answers at {NOBODY_THERE}. This machine has its model" in capsys.readouterr().err
    # It can be typed as it stands, so it names what is not there yet.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours-model").mkdir()
    assert what_is_left(owned.run_id, owned.folder, None).endswith("--out ours-model-2`.")


def test_a_doctor_and_the_list_of_runs_know_an_end_that_was_seen_here(
    owned: OwnedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a member is asked")

    monkeypatch.setattr("peer.doctor.doctor.observe", nobody)
    assert app.run(["runs"]) == 0
    assert "ended" not in capsys.readouterr().out
    owned.change_now(ChangeSection(at_version=0, ends_run=True))
    assert app.run(["doctor", owned.run_id, "--peers", NOBODY_THERE, "--device", "cpu", "--json"]) == 4
    (found,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["subject"] == "run"]
    assert found["what"].startswith(f"the owner of {owned.run_id} has ended it")
    assert found["remedy"].startswith("All who took part have its model")
    assert app.run(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{owned.run_id}  ended, ")


def test_a_doctor_says_an_end_to_come_before_it_says_that_nobody_answers(
    owned: OwnedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def nobody(*_: object, **__: object) -> NoReturn:
        raise NobodyReachable("run ours: nobody answered; expected one live member; check the run id")

    monkeypatch.setattr("peer.doctor.doctor._asked", nobody)
    ask = ["doctor", owned.run_id, "--peers", NOBODY_THERE, "--device", "cpu", "--json"]
    found = []
    for _ in range(2):
        assert app.run(ask) == 3
        found += [one for one in json.loads(capsys.readouterr().out)["findings"] if one["subject"] == "run"]
        owned.change_now(ChangeSection(at_version=400, ends_run=True))
    assert (found[0]["what"], found[0]["remedy"]) == ("run ours: nobody answered", "check the run id")
    assert found[1]["what"].endswith(f"and no member answers at {NOBODY_THERE}")
    assert found[1]["remedy"].startswith("All who took part")


@pytest.mark.usefixtures("ended_page")
def test_a_page_that_tells_the_end_saves_the_wait(owned: OwnedRun, capsys: pytest.CaptureFixture[str]) -> None:
    for command, code in (("join", 4), ("doctor", 4), ("status", 4), ("export", 4)):
        assert app.run([command, PAGE]) == code
        said = capsys.readouterr().err
        assert f"the run {owned.run_id} has ended, according to its page {PAGE}".lower() in said.lower()
        assert f"Its page shows the results, and who has the model: {PAGE}" in said


def test_a_machine_without_a_state_does_not_train_the_past_again(
    owned: OwnedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    owned.change_now(ChangeSection(at_version=400, ends_run=True))
    assert app.run(["join", owned.run_id, "--plain", "--peers", NOBODY_THERE, "--join-timeout", "0.05"]) == 3
    assert "has ended it (from version 400 on" in capsys.readouterr().err


def test_an_answer_tells_the_end_in_one_word() -> None:
    answer = b'{"run_id": "ours.aaaaaaaaaaaaaaaaaaaa", "addresses": [], "has_ended": %s}'
    assert read_answer(answer % b"true", PAGE).end
    assert not read_answer(answer % b'"yes"', PAGE).end
