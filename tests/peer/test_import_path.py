"""No process of ours takes code from the folder in which somebody types `peer`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import murmuration
from peer import import_path
from peer.network.process.child_start import start_network_child
from peer.trainer.devices.rank_rendezvous import RankGroup

SHADOWED = ("random", "queue", "peer", "typing", "json", "socket", "numpy", "torch", "hivemind", "dht", "__future__")
SCRIPT = Path(sys.executable).with_name("peer")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder full of modules that tell on whoever runs them, and end that process."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise SystemExit(7)\n"
        )
    monkeypatch.chdir(folder)
    return tmp_path / "ran"


def run(*command: str, python_path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    if python_path is not None:
        environment["PYTHONPATH"] = python_path
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=120
    )


@pytest.mark.parametrize("python_path", ["", os.pathsep], ids=["none", "an empty entry, which means that folder"])
def test_the_network_process_takes_nothing_from_the_working_folder(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, python_path: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path)
    child = start_network_child()
    child.connection.close()  # it ends when whoever started it has gone
    assert child.process.wait(60) == 0
    assert not hostile.exists()


def test_the_processes_of_further_devices_take_nothing_from_it(hostile: Path) -> None:
    group = RankGroup(2, None)
    # It answers on its standard input alone, and only when it has loaded all it needs.
    group.end(is_orderly=False)
    assert not hostile.exists()


def test_the_command_takes_nothing_from_it(hostile: Path) -> None:
    shown = run(str(SCRIPT), "--help")
    assert shown.returncode == 0, shown.stderr
    assert not hostile.exists()


def test_nor_does_the_module_while_no_peer_py_stands_in_its_way(hostile: Path) -> None:
    # `python -m peer` itself looks there for a module of that name before any of ours is loaded.
    Path("peer.py").unlink()
    for python_path in (None, os.pathsep):
        shown = run(sys.executable, "-m", "peer", "receipts", "verify", "nothing.jsonl", python_path=python_path)
        assert shown.returncode == 2, shown.stderr
        assert "nothing.jsonl" in shown.stderr
        assert not hostile.exists()


def test_a_folder_that_somebody_named_in_pythonpath_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.stderr.write('asked for\\n')\n")
    monkeypatch.chdir(tmp_path)
    for python_path in (".", str(tmp_path)):
        assert "asked for" in run(sys.executable, "-m", "peer", "--help", python_path=python_path).stderr


def test_what_libraries_start_is_told_too() -> None:
    look = "import os; from peer.cli import app; app.run = lambda words: print(os.environ['PYTHONSAFEPATH']) or 0\n"
    shown = run(sys.executable, "-c", f"{look}from peer.__main__ import main; main()", python_path=str(ROOT))
    assert shown.stdout == "1\n", shown.stderr


def test_what_is_started_is_the_code_that_starts_it_and_nothing_else_beside_it(tmp_path: Path) -> None:
    """A checkout runs its own modules though another version is installed, and not what somebody put beside them."""
    copy = tmp_path / "checkout"
    for package in ("dht", "averaging", "peer", "dashboard", "murmuration"):
        (copy / package).mkdir(parents=True)
        (copy / package / "__init__.py").write_text(f"# A part of {import_path.DISTRIBUTION}: a copy.\n")
    (copy / "peer" / "import_path.py").write_text(Path(import_path.__file__).read_text())
    (copy / "peer" / "told.py").write_text("import random, sys\nprint('here', sys.argv[1:])\n")
    (copy / "random.py").write_text("raise SystemExit(7)\n")
    script = "import sys; sys.path.insert(0, sys.argv[1]); from peer.import_path import python_command; "
    script += "del sys.path[0]; import subprocess; subprocess.run(python_command('peer.told', 'a'))"
    shown = run(sys.executable, "-P", "-c", script, str(copy))
    assert shown.stdout == "here ['a']\n", shown.stderr


ROOT = Path(murmuration.__file__).parents[1]


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run somebody's own script, whose folder Python searches first."""
    (folder / "train.py").write_text(text)
    return run(sys.executable, str(folder / "train.py"), python_path=str(ROOT))


@pytest.mark.parametrize(("name", "own"), [("peer", "peer.py"), ("averaging", "averaging/__init__.py")])
@pytest.mark.parametrize("use", ["murmuration.join", "murmuration.__version__"])
def test_a_scripts_own_file_in_the_place_of_a_package_is_named(tmp_path: Path, name: str, own: str, use: str) -> None:
    (tmp_path / own).parent.mkdir(exist_ok=True)
    (tmp_path / own).write_text("raise SystemExit('it ran')\n")
    last = script(tmp_path, f"import murmuration\n{use}\n").stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: Python finds {tmp_path / own} for the name {name!r}")
    assert "rename your file" in last


def test_the_command_takes_its_own_package_where_pythonpath_has_one_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text("raise SystemExit(7)\n")
    start = "from murmuration.command import main; main()"
    shown = run(sys.executable, "-P", "-c", start, python_path=f"{tmp_path}:{ROOT}")
    assert "Usage" in shown.stdout + shown.stderr, shown.stderr


@pytest.mark.parametrize("entry", ["murmuration.command", "peer.__main__"])
def test_nothing_is_loaded_before_ctrl_c_ends_the_command_without_a_traceback(entry: str) -> None:
    look = (
        "import signal, sys\n"
        "class Look:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:\n"
        "            print(name)\n"
        "sys.meta_path.insert(0, Look())\n"
        f"import {entry}\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL\n"
    )
    shown = run(sys.executable, "-P", "-c", look, python_path=str(ROOT))
    assert shown.returncode == 0, shown.stderr
    assert set(shown.stdout.split()) <= {"__future__", "_signal", entry.split(".")[0], entry}


@pytest.mark.parametrize(
    ("start", "name"),
    [("from murmuration.command import main; main()", "dashboard"), ("import peer.__main__", "averaging")],
)
def test_a_package_that_another_one_has_written_over_is_named(tmp_path: Path, start: str, name: str) -> None:
    copy = copied(tmp_path)
    (copy / name / "__init__.py").write_text("import starlette_is_not_there\n")
    shown = run(sys.executable, "-P", "-c", start, python_path=str(copy))
    assert shown.returncode == 1
    assert shown.stderr.startswith(f"peer: {copy / name / '__init__.py'} is not from Murmuration: another package")
    assert f"pip uninstall {name}, and install Murmuration again" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_a_script_is_told_of_it_too(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    (copy / "peer" / "__init__.py").write_text("")
    shown = run(sys.executable, "-P", "-c", "import murmuration; murmuration.join", python_path=str(copy))
    assert f"ImportError: {copy / 'peer' / '__init__.py'} is not from Murmuration" in shown.stderr.splitlines()[-1]


def copied(folder: Path) -> Path:
    """Our packages as an installation has them."""
    for name in ("dht", "averaging", "peer", "dashboard", "murmuration"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("node_modules", "built", "__pycache__")
        )
    return folder
