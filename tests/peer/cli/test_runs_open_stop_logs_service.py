"""Peers of this machine on the command line: found in any folder, stopped, read, kept running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from dht.ground.host import PeerId
from dht.identity.keys import Identity
from dht.identity.speakable import speakable_name
from peer.cli import app
from peer.config.peer_config import ADDRESSES_NAME, load_config, write_cached_peers
from peer.data_folder.folder_lock import FolderLock, holder_of
from peer.data_folder.run_folders import known_places, remember_place
from peer.events.event_log import to_json
from peer.events.log_tail import LogReader, last_events, newer_events
from peer.events.peer_events import Event, JoinedRun, LeftRun
from peer.observe.ended_run import NamedRun
from peer.observe.running_peer import Running
from peer.panel.terminal import Terminal

RUN = "demo.aaaaaaaaaaaaaaaaaaaa"
LEFT = Event(1_700_000_000.0, PeerId("12D3KooWLeft"), LeftRun("asked to stop", 7, 8, 9))
HOLDS = """
import sys, time
from pathlib import Path
from peer.data_folder.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]), "peer seed")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def elsewhere(home: Path) -> Path:
    """The folder of a run, away from the usual place, and remembered."""
    folder = home / "elsewhere"
    folder.mkdir()
    remember_place(RUN, folder)
    return folder


def test_a_place_is_remembered_once_and_only_away_from_home(home: Path, elsewhere: Path) -> None:
    remember_place(RUN, elsewhere)
    usual = home / "data" / "murmuration" / RUN
    usual.mkdir(parents=True)
    remember_place(RUN, usual)
    assert known_places() == known_places(RUN) == [(RUN, elsewhere)]
    assert known_places("other.aaaaaaaaaaaaaaaaaaaa") == []
    elsewhere.rmdir()
    assert known_places() == []


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[["x", "/"]]', f'[["{RUN}", "relative"]]', "[[" * 5000])
def test_a_damaged_list_of_places_is_none(home: Path, content: str) -> None:
    (home / "data" / "murmuration").mkdir(parents=True)
    (home / "data" / "murmuration" / "places.json").write_text(content)
    assert known_places() == []


def test_what_cannot_be_told_is_not_said_to_be_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a folder of another user; a link cannot be opened by the system's administrator either."""
    (home / "other").mkdir()
    (home / "other" / "peer.lock").symlink_to("peer.lock")
    assert app.run(["stop", "--data-dir", str(home / "other")]) == 1
    assert "cannot be read (" in capsys.readouterr().err
    remember_place(RUN, home / "other")
    assert app.run(["runs"]) == 0


def test_stop_ends_the_peer_that_holds_the_folder(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["stop"]) == 0
    assert capsys.readouterr().out.startswith("No peer runs on this machine;")
    with subprocess.Popen([sys.executable, "-c", HOLDS, elsewhere], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert app.run(["runs"]) == 0
        assert f"running now (process {process.pid} (peer seed)" in capsys.readouterr().out
        assert app.run(["stop", "demo"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "It has left."
        assert process.wait() == -signal.SIGTERM


def test_stop_sends_nothing_to_a_process_that_does_not_hold_the_folder(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = FolderLock(elsewhere, "peer seed")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        (elsewhere / "peer.lock").write_text(f"process {bystander.pid} (peer seed), since 2026-01-01 00:00\n")
        assert app.run(["stop"]) == 1
        assert "is not visible here" in capsys.readouterr().err
        assert bystander.poll() is None
        bystander.kill()
    lock.close()


def test_of_several_one_must_be_named(
    home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = home / "second"
    second.mkdir()
    remember_place(RUN, second)
    locks = [FolderLock(folder, "peer seed") for folder in (elsewhere, second)]
    key = Identity.from_seed(bytes(32)).peer_id
    write_cached_peers(second / ADDRESSES_NAME, [f"/ip4/127.0.0.1/tcp/4001/p2p/{key}"])
    assert app.run(["stop"]) == 2
    said = capsys.readouterr().err
    first, *rest = said.splitlines()
    assert first == "peer: 2 peers run here; expected one of these commands."
    ended = {line: ends for line, ends in zip(rest[::2], rest[1::2], strict=True)}
    for folder, name in ((elsewhere, ""), (second, f"{speakable_name(key)}, ")):
        ends = ended.pop(f"peer stop --data-dir {folder}")
        assert ends.startswith(f"  ends {name}process {os.getpid()} (peer seed), since ")
    assert not ended
    asked_to_leave: list[Path] = []

    def ask_to_leave(one: Running) -> bool:
        asked_to_leave.append(one.folder)
        return True

    monkeypatch.setattr("peer.observe.running_peer.ask_to_leave", ask_to_leave)
    monkeypatch.setattr("peer.observe.running_peer.has_left", lambda one, seconds: True)
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda: True)
    for typed, code, left in (("2", 0, [elsewhere]), ("", 0, []), ("3", 2, []), ("1", 0, [second])):
        monkeypatch.setattr("builtins.input", lambda question, typed=typed: typed)
        asked_to_leave.clear()
        assert (app.run(["stop"]), asked_to_leave) == (code, left)
    for lock in locks:
        lock.close()


def test_a_peer_is_stopped_by_the_name_that_it_was_given_or_that_its_key_has(
    home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = home / "second"
    second.mkdir()
    remember_place(RUN, second)
    spoken = []
    for number, (folder, name) in enumerate(((elsewhere, "Zoë"), (second, ""))):
        config = load_config({"run_id": RUN, "data_dir": folder, "name": name, "output": "plain"})
        terminal = Terminal(config)
        terminal.show(Event(1.0, PeerId("12D3KooWMe"), JoinedRun(RUN, "cpu", 1, (0,))))
        key = Identity.from_seed(bytes([number]) * 32).peer_id
        write_cached_peers(folder / ADDRESSES_NAME, [f"/ip4/127.0.0.1/tcp/4001/p2p/{key}"])
        spoken.append(speakable_name(key))
    asked: list[Running] = []
    monkeypatch.setattr("peer.observe.running_peer.ask_to_leave", lambda one: bool(asked.append(one) or True))
    monkeypatch.setattr("peer.observe.running_peer.has_left", lambda one, seconds: True)
    assert app.run(["runs"]) == 0
    assert f"Zoë ({spoken[0]})" in capsys.readouterr().out
    for typed, folder in (("Zoë", elsewhere), ("ZOË", elsewhere), (spoken[0], elsewhere), (spoken[1], second)):
        assert app.run(["stop", typed]) == 0
        assert asked.pop().folder == folder
        assert f"{typed}".casefold() in capsys.readouterr().out.casefold()
    assert app.run(["stop", "Zoe"]) == 2, "no run and no peer"
    assert not asked


def _leave_and_answer(
    process: subprocess.Popen[bytes], folder: Path, successor: list[FolderLock] | None, question: str
) -> str:
    """The person names the second of the list, which has ended by then, and whose folder another one may have."""
    process.kill()
    process.communicate()
    if successor is not None:
        successor.append(FolderLock(folder, "peer join"))
    return "2"


def test_stop_says_of_a_peer_that_left_meanwhile_that_it_has(
    home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As while the person reads which one to end; another peer may have its folder by then."""
    second = home / "second"
    second.mkdir()
    remember_place(RUN, second)
    own = FolderLock(second, "peer join")
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda: True)
    for is_taken_again in (False, True):
        process = subprocess.Popen([sys.executable, "-c", HOLDS, elsewhere], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        words = holder_of(elsewhere)
        successor: list[FolderLock] = []

        answer = partial(_leave_and_answer, process, elsewhere, successor if is_taken_again else None)
        monkeypatch.setattr("builtins.input", answer)
        assert app.run(["stop"]) == 0
        said = capsys.readouterr()
        assert said.out.splitlines()[-1] == f"It has already left: {words}."
        assert said.err == ""
        for lock in successor:
            lock.close()
    own.close()


def test_logs_are_sentences(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["logs"]) == 2
    assert capsys.readouterr().err.startswith("peer: No peer has written a log on this machine;")
    (elsewhere / "events.jsonl").write_text(f"{to_json(LEFT)}\nno event\n{to_json(LEFT)}\n")
    assert app.run(["logs", "-n", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("  Left the run (asked to stop) after 7 steps, 8 tokens and contributions to 9 rounds.")


def test_of_several_old_logs_the_newest_is_shown(
    home: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = home / "older"
    older.mkdir()
    remember_place(RUN, older)
    for folder, at in ((older, 1000), (elsewhere, 2000)):
        (folder / "events.jsonl").write_text(f"{to_json(LEFT)}\n" * (at // 1000))
        os.utime(folder / "events.jsonl", (at, at))
    assert app.run(["logs", RUN]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert said.err == f"Showing the newest of 2 logs on this machine: --data-dir {elsewhere}\n"


def test_of_several_that_run_all_are_shown_in_order(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = home / "data" / "murmuration" / RUN
    second = usual.with_name(f"{RUN}-2")
    by_hand = home / "mine"
    for folder, times in ((usual, (1, 4, 6)), (second, (2, 5)), (by_hand, (3,))):
        folder.mkdir(parents=True)
        lines = [to_json(Event(1_700_000_000.0 + at, LEFT.peer_id, LeftRun(f"at {at}", 0, 0, 0))) for at in times]
        (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    remember_place(RUN, by_hand)
    locks = [FolderLock(usual, "peer seed"), FolderLock(second, "peer join"), FolderLock(by_hand, "peer join")]
    assert app.run(["logs", "demo", "-n", "5"]) == 0
    said = capsys.readouterr()
    told = [line.split("  ")[1:] for line in said.out.splitlines()]
    assert [(label, sentence[14:18]) for label, sentence in told] == [
        *(("demo (2)", "at 2"), ("mine/", "at 3"), ("demo", "at 4"), ("demo (2)", "at 5"), ("demo", "at 6"))
    ]
    legend = said.err.splitlines()
    assert legend[0].startswith("demo: process ")
    assert "(peer seed)" in legend[0]
    assert legend[1].endswith(f", {second}")
    assert legend[1].startswith("demo (2): process ")
    for lock in locks[1:]:
        lock.close()
    assert app.run(["logs", "demo"]) == 0
    assert "demo" not in capsys.readouterr().out.splitlines()[0]
    locks[0].close()


def test_newer_events_of_several_logs_come_together(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_text(f"{to_json(LEFT)}\n")
    reader = LogReader(paths)
    assert reader.last(1) == [(paths[1], LEFT)]
    with paths[0].open("a") as log:
        log.write(f"{to_json(LEFT)}\n")
    assert reader.newer() == [(paths[0], LEFT)]
    assert reader.newer() == []


def test_a_log_is_followed_by_whole_lines_and_from_the_start_of_a_new_one(tmp_path: Path) -> None:
    path, line = tmp_path / "events.jsonl", f"{to_json(LEFT)}\n"
    path.write_text(line)
    assert last_events(path, 5) == ([LEFT], len(line))
    path.write_text(line + line + line[:10])
    assert newer_events(path, len(line)) == ([LEFT], 2 * len(line))
    path.write_text(line)
    assert newer_events(path, 2 * len(line)) == ([LEFT], len(line))
    path.unlink()
    assert newer_events(path, len(line)) == ([], 0)


def test_a_service_is_printed_and_written_on_request(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs systemd's folders")
    assert app.run(["service", RUN, "--", "--device", "cpu"]) == 0
    unit = capsys.readouterr().out
    assert f"peer join {RUN} --device cpu --plain\n" in unit
    assert "\nNice=10\n" in unit
    assert not (home / "home").exists()
    assert app.run(["service", RUN, "--install", "--", "--device", "cpu"]) == 0
    path = home / "home/.config/systemd/user/murmuration-demo.service"
    assert capsys.readouterr().out.startswith(f"Written     {path}\nStart it:   systemctl --user ")
    assert path.read_text() == unit


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--devce", "cpu"], "No such option: --devce"),
        (["--threads", "0"], "--threads is 0; expected a whole number"),
        (["--device", "gpu"], "--device is 'gpu'; expected "),
    ],
)
def test_a_service_has_no_flags_that_the_command_refuses(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["service", RUN, "--", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"peer: {sentence}")


def test_the_owner_names_a_run_as_everybody_does(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["init", "mine", "--access", "invite", "--out", "own"]) == 0
    run_id = capsys.readouterr().out.split()[2]
    for named in ("mine", run_id, "own"):
        assert app.run(["manifest", "show", named]) == 0
        assert capsys.readouterr().out.startswith(f"Run         {run_id}\n")
    assert app.run(["invite", "mine", "--one-time", "--out", "-"]) == 0
    assert capsys.readouterr().out.startswith("murmuration-invite-")
    assert app.run(["manifest", "edit", "own", "--data-dir", "own", "--page", ""]) == 2
    assert capsys.readouterr().err.startswith("peer: own and --data-dir are given; expected one of them.")


def test_a_second_run_of_a_name_is_made_only_where_it_is_asked_for(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["init", "mine", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert app.run(["init", "mine"]) == 2
    folder = home / "data" / "murmuration" / first["run_id"]
    assert f"You already own a run with the name mine: {folder}; expected a new name" in capsys.readouterr().err
    assert app.run(["init", "mine", "--force", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["run_id"], again["revision"]) == (first["run_id"], first["revision"] + 1)
    assert app.run(["init", "mine", "--out", "other", "--json"]) == 0
    said = capsys.readouterr()
    second = json.loads(said.out)["run_id"]
    assert said.err == (
        f"{first['run_id']} on this machine has the same name, so commands need the complete id of each run.\n"
    )
    assert app.run(["init", "mine", "--force"]) == 2  # of which?
    said = capsys.readouterr()
    assert all(str(place) in said.err for place in (folder, home / "other"))  # in the order of their ids
    before = (home / "other" / "run.record").read_bytes()
    assert app.run(["init", "yours", "--out", "other", "--force"]) == 2
    assert f"other contains the run {second}; expected its name instead of 'yours'" in capsys.readouterr().err
    assert (home / "other" / "run.record").read_bytes() == before


def test_a_folder_where_nothing_could_run_is_not_remembered(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = home / "refused" / "identity.key"
    key.parent.mkdir()
    key.write_bytes(b"no key")
    assert app.run(["seed", RUN, "--data-dir", str(key.parent)]) == 2
    assert "identity.key" in capsys.readouterr().err
    assert known_places() == []


def test_open_says_when_no_browser_opened(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("peer.observe.own_runs.ask_page", lambda url, *_: NamedRun("other." + "a" * 20))
    assert app.run(["open", RUN]) == 2
    assert "http://127.0.0.1:8080 does not show this run; ask its owner" in capsys.readouterr().err
    monkeypatch.setattr("peer.observe.own_runs.ask_page", lambda url, *_: NamedRun(RUN))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for has_browser in (False, True):
        monkeypatch.setattr("webbrowser.open", lambda _, has_browser=has_browser: has_browser)
        assert app.run(["open", RUN]) == 0
        told = capsys.readouterr()
        assert told.out == "http://127.0.0.1:8080\n"
        assert ("No browser opened." in told.err) is not has_browser


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_second_dashboard_of_a_run_names_the_first(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    monkeypatch.setattr("peer.observe.own_runs.ask_page", lambda url, *_: NamedRun(shown))
    monkeypatch.setattr("peer.observe.run_and_address.Target.look_first", lambda *_: None)
    key = Identity.from_seed(bytes(32)).peer_id
    with socket.create_server((host, 0)) as taken:
        port = str(taken.getsockname()[1])
        begun = ["dashboard", RUN, "--peers", f"/ip4/127.0.0.1/tcp/1/p2p/{key}", "--host", host, "--port", port]
        shown = RUN
        assert app.run(begun) == 2
        assert (
            f"dashboard of this run is already running at http://127.0.0.1:{port}/; open it" in capsys.readouterr().err
        )
        shown = "other." + "a" * 20
        assert app.run(begun) == 2
        assert f"ort {port} of {host} is in use by another program" in capsys.readouterr().err


def test_a_run_is_forgotten_with_its_folders_but_not_one_that_runs_or_that_is_owned(
    home: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / "data" / "murmuration" / RUN
    folder.mkdir(parents=True)
    (folder / "identity.key").touch()
    assert app.run(["forget", "demo"]) == 2
    assert "expected a terminal for the confirmation, or --yes" in capsys.readouterr().err
    lock = FolderLock(folder, "peer join")
    assert app.run(["forget", "demo", "--yes"]) == 2
    assert f"run `peer stop {RUN}` first" in capsys.readouterr().err
    lock.close()
    (folder / "owner.key").touch()
    assert app.run(["forget", RUN, "--yes"]) == 2
    assert "contains the owner's key" in capsys.readouterr().err
    (folder / "owner.key").unlink()
    assert app.run(["forget", RUN, "--yes"]) == 0
    assert f"Not deleted: {elsewhere}" in " ".join(capsys.readouterr().out.split())
    assert not folder.exists()
    assert elsewhere.is_dir()
    assert known_places() == []
    assert app.run(["forget", RUN, "--yes"]) == 2
    assert "is not a run on this machine" in capsys.readouterr().err
