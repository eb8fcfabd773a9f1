"""Whatever a library does in a limited child: one sentence, no network, no credentials, and the child ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import Incompatible, LocalFault
from peer.import_path import python_environment
from peer.limited_child.confinement import confined_environment, resident_bytes
from peer.limited_child.frames import frame_bytes
from peer.limited_child.limited_child import ChildLimits, LimitedChild

ROOT = Path(__file__).parents[3]
MODULE = "tests.peer.limited_child.hostile_module"
SMALL = ChildLimits(memory_bytes=200_000_000, seconds=60, answer_bytes=100_000)
BRIEF = ChildLimits(memory_bytes=200_000_000, seconds=0.2)


@pytest.fixture(autouse=True)
def _tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@contextlib.contextmanager
def a_child(limits: ChildLimits = SMALL, **setup: Any) -> Iterator[LimitedChild]:
    with LimitedChild(MODULE, setup, limits, "the file of a test") as child:
        yield child


def fault_of(do: str, limits: ChildLimits = SMALL, body: bytes = b"", **question: Any) -> str:
    with a_child(limits) as child, pytest.raises(LocalFault) as raised:
        child.ask({"do": do, **question}, body)
    assert str(raised.value).isprintable()
    return str(raised.value)


def test_questions_and_bytes_go_there_and_back_and_prints_do_not() -> None:
    with a_child() as child:
        for number in range(3):
            fields, body = child.ask({"do": "echo", "number": number}, b"abc")
            assert (fields["number"], body) == (number, b"cba")
        # What makes a start longer, and no module of ours needs, is not found there.
        assert child.ask({"do": "libraries"})[0] == {"result": []}


@pytest.mark.parametrize("do", ["many_objects", "big_block"])
def test_a_file_that_takes_all_memory_ends_in_a_sentence(do: str) -> None:
    assert "took more than 200 MB of memory; expected an answer within 200 MB and 60 s" in fault_of(do)


def test_a_library_that_aborts_without_memory_ends_in_its_own_last_line() -> None:
    assert "was ended by SIGABRT (memory allocation of 8589934592 bytes failed)" in fault_of("c_block")


@pytest.mark.parametrize("do", ["loop", "loop_in_c"])
def test_an_endless_question_ends_in_a_sentence(do: str) -> None:
    assert "took more than 0.2 s" in fault_of(do, BRIEF)


def test_no_socket_is_made_in_python() -> None:
    assert "PermissionError" in fault_of("python_socket")
    assert "PermissionError" in fault_of("look_up")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's filter is Linux's")
def test_no_socket_is_made_behind_python() -> None:
    with a_child() as child:
        for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            assert child.ask({"do": "c_socket", "family": family})[0]["result"] == errno.EPERM


def test_no_credential_and_no_home_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "ANYTHING_NEW"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "secret").write_text("canary")
    with a_child() as child:
        assert "canary" not in json.dumps(child.ask({"do": "environment"})[0])
        home, folder, names, has_secret = child.ask({"do": "files"})[0]["result"]
        assert os.path.realpath(home) == os.path.realpath(folder)
        assert (names, has_secret) == ([], False)
    assert not Path(folder).exists()


def test_only_named_variables_pass() -> None:
    kept = confined_environment({"PATH": "/bin", "LC_ALL": "C", "HF_TOKEN": "x", "HF_HOME": "/home/me"}, "/empty")
    assert (kept["PATH"], kept["LC_ALL"], kept["HF_HOME"]) == ("/bin", "C", "/empty")
    assert "HF_TOKEN" not in kept


@pytest.mark.parametrize(("do", "name"), [("abort", "SIGABRT (thread 'main' panicked)"), ("crash", "SIGSEGV")])
def test_a_child_that_dies_is_one_sentence_and_stays_dead(do: str, name: str) -> None:
    with a_child() as child:
        for _ in range(2):
            with pytest.raises(LocalFault, match=f"was ended by {name.partition(' ')[0]}") as raised:
                child.ask({"do": do})
            assert name in str(raised.value)


@pytest.mark.parametrize("do", ["panic", "leave"])
def test_no_kind_of_exception_ends_the_child(do: str) -> None:
    with a_child() as child:
        with pytest.raises(LocalFault, match=r"PanicException: called|SystemExit: 3") as raised:
            child.ask({"do": do})
        assert str(raised.value).isprintable()
        child.ask({"do": "echo"})


def test_sentences_of_ours_come_back_as_they_are() -> None:
    with a_child() as child, pytest.raises(Incompatible, match=r"^this file; expected another; take another$"):
        child.ask({"do": "refuse"})
    with a_child(fails=True) as child, pytest.raises(Incompatible, match=r"^such a setup$"):
        child.ask({"do": "echo"})


def test_a_module_that_cannot_be_loaded_is_one_sentence() -> None:
    with LimitedChild("peer.no_such", {}, SMALL, "x") as child, pytest.raises(LocalFault, match="No module named"):
        child.ask({})


def test_an_answer_longer_than_allowed_is_not_read() -> None:
    assert "answered with" in fault_of("long_answer", length=200_000)
    with a_child() as child:
        assert len(child.ask({"do": "long_answer", "length": 90_000})[1]) == 90_000


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"\xff" * 16, "expected at most 100000"),
        (frame_bytes({"answer": 3}), "neither an answer nor a fault"),
        (frame_bytes({"fault": [], "kind": "Incompatible"}), "neither an answer nor a fault"),
        (b"\0" * 7 + b"\x03" + b"\0" * 8 + b"[1]", "JSON of type list"),
        (b"\0" * 6 + b"\xea\x60" + b"\0" * 8 + b"[" * 60_000, "not JSON (RecursionError)"),
    ],
)
def test_bytes_that_are_no_answer_are_refused(frame: bytes, sentence: str) -> None:
    assert sentence in fault_of("no_answer", body=frame)


@pytest.mark.parametrize("busy", [False, True])
def test_a_child_ends_with_its_parent(busy: bool) -> None:
    then = "child.ask({'do': 'loop'})" if busy else "time.sleep(60)"
    script = (
        "import time; from peer.limited_child.limited_child import LimitedChild; "
        "from peer.limited_child.limited_child import ChildLimits; "
        f"child = LimitedChild('{MODULE}', {{}}, ChildLimits(10**8, 60), 'x'); "
        f"print(*child.ask({{'do': 'process_id'}})[0]['result'], child._folder, flush=True); {then}"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=python_environment(), text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child_id, group_id, folder = parent.stdout.readline().split()
        assert child_id == group_id
        parent.send_signal(signal.SIGKILL)
        # The child holds the other end of nothing of ours: its own end of the pipe tells that it is gone.
        assert parent.stdout.read() == ""
    gone = threading.Event()
    for _ in range(200):
        if resident_bytes(int(child_id)) == 0:
            break
        gone.wait(0.05)
    else:
        pytest.fail("the child outlives its parent")
    assert not Path(folder).exists()


def test_resident_memory_of_a_process_is_known() -> None:
    assert resident_bytes(os.getpid()) > 10_000_000
