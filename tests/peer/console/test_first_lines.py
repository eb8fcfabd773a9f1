"""The checklist that stands there before anything is loaded, and Ctrl+C in that moment."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

from peer.console.first_lines import LABELS
from peer.import_path import python_command, python_environment

RUN_ID = "own." + "a" * 20


def on_a_terminal(code: str, folder: Path, *, until: str = "") -> tuple[str, int]:
    """What a Python command prints on a terminal, and its exit code; Ctrl+C is pressed once `until` is there."""
    ours, theirs = pty.openpty()
    environment = {**python_environment(), "XDG_DATA_HOME": str(folder), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        [*python_command("peer")[:3], code], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        said += chunk
        if until and until.encode() in said:
            process.send_signal(signal.SIGINT)
            until = ""
        if not chunk:
            break
    os.close(ours)
    return said.decode(), process.wait()


MAIN = f"import sys; sys.path.insert(0, {os.getcwd()!r}); sys.argv = ['peer', *{{words}}]; "
RUN = "from peer.__main__ import main; main()"


def test_the_checklist_is_there_before_anything_is_loaded_and_goes_with_the_first_word(tmp_path: Path) -> None:
    """typer, pydantic and rich, which take most of the time, come after it."""
    seen = (
        "import peer.console.first_lines as f; shown = f.show_first_lines; f.show_first_lines = lambda *a: (shown(*a), "
    )
    seen += "print(sorted({'typer', 'pydantic', 'rich', 'asyncio'} & set(sys.modules)), file=open('seen', 'w'))); "
    said, code = on_a_terminal(MAIN.format(words=["join", RUN_ID]) + seen + RUN, tmp_path)
    assert code == 2
    assert (tmp_path / "seen").read_text() == "[]\n"
    lines, _, rest = said.partition("\r\x1b[J")
    assert all(label in lines for label in LABELS.values())
    assert rest.startswith("peer: No address of a member"), rest


def test_ctrl_c_while_it_stands_there_is_answered_with_a_sentence(tmp_path: Path) -> None:
    slow = "import time, builtins; load = builtins.__import__; "
    slow += "builtins.__import__ = lambda n, *a: (time.sleep(60) if n == 'typer' else None, load(n, *a))[1]; "
    said, code = on_a_terminal(MAIN.format(words=["join", RUN_ID]) + slow + RUN, tmp_path, until="State")
    assert code == 130
    assert said.endswith("\r\x1b[Jpeer: Interrupted.\r\n"), said
    assert "Traceback" not in said


def test_a_pipe_gets_none_of_it(tmp_path: Path) -> None:
    environment = {**python_environment(), "XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(python_command("peer", "join", RUN_ID), env=environment, capture_output=True, check=False)
    assert done.stdout == b""
