"""`make venv` and `make demo`: what they install and say meanwhile, with a pip that is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip") echo "pip ran"; head -c 20000000 /dev/zero > FOLDER/.venv/unpacked; until [ -e FOLDER/go-on ]; do :; done
    exit "$(cat FOLDER/go-on)" ;;
esac
"""


def installed(folder: Path, exit_code: int) -> tuple[int, list[str]]:
    """Exit code and lines of `make venv`, whose pip ends with `exit_code` once a line says how much is unpacked."""
    python = folder / "python"
    python.write_text(PYTHON.replace("FOLDER", str(folder)))
    python.chmod(0o755)
    settings = [f"PYTHON={python}", f"VENV={folder / '.venv'}", "UNPACKING_SECONDS=0.05"]
    command = ["make", "--no-print-directory", "-C", str(ROOT), *settings, "venv"]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as making:
        assert making.stdout is not None
        for line in making.stdout:
            lines.append(line.rstrip())
            if line.startswith("Unpacked so far: "):
                (folder / "go-on").write_text(str(exit_code))
    return making.returncode, lines


def test_an_install_says_what_it_takes_and_never_falls_silent(tmp_path: Path) -> None:
    code, lines = installed(tmp_path, 0)
    assert code == 0
    said = "\n".join(lines)
    before, _, after = said.partition("pip ran")
    assert f"Installing into {tmp_path / '.venv'}. The first time about 3 GB are downloaded: 4 minutes" in before
    assert "Unpacked so far: " in after
    assert f"Installed into {tmp_path / '.venv'}." in after
    assert (tmp_path / ".venv" / ".installed").exists()


def test_an_install_that_fails_is_tried_again_next_time(tmp_path: Path) -> None:
    code, lines = installed(tmp_path, 1)
    assert code == 2
    assert not any(line.startswith("Installed") for line in lines)
    assert not (tmp_path / ".venv" / ".installed").exists()


QUICK = """#!/bin/sh
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/peer" ;;
  "-m pip") for last; do :; done; echo "pip: $last" ;;
  "demo ") echo "the demo runs" ;;
esac
"""
ALL, DEMO = "everything", "what the demo needs"


@pytest.mark.parametrize(
    ("words", "pip"),
    [
        (["demo"], [DEMO]),
        (["demo", "demo"], [DEMO, None]),
        (["venv", "demo"], [ALL, None]),
        (["demo", "venv", "demo"], [DEMO, ALL, None]),
        (["demo", "pull", "demo"], [DEMO, None, DEMO]),
        (["venv", "pull", "demo", "venv"], [ALL, None, ALL, None]),
        (["demo", "venv", "pull", "venv", "demo"], [DEMO, ALL, None, ALL, None]),
    ],
)
def test_the_demo_installs_what_it_needs_and_tests_the_rest(
    words: list[str], pip: list[str | None], tmp_path: Path
) -> None:
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    python, now = tmp_path / "python", 1_000_000_000
    python.write_text(QUICK)
    python.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).touch()
        os.utime(folder / name, (now, now))
    ran: list[str | None] = []
    for step, word in enumerate(words, 1):
        at = now + 10 * step
        if word == "pull":
            os.utime(folder / "constraints.txt", (at, at))
            ran.append(None)
            continue
        done = subprocess.run(
            ["make", "--no-print-directory", f"PYTHON={python}", word], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert ("the demo runs" in done.stdout) == (word == "demo")
        said = [line.removeprefix("pip: ") for line in done.stdout.splitlines() if line.startswith("pip: ")]
        assert len(said) <= 1
        ran.append(None if not said else DEMO if said == [".[hf]"] else ALL)
        assert not said or said[0] == ".[hf]" or said[0].startswith(".[dev")
        for stamp in (folder / ".venv").glob(".installed*"):
            if stamp.stat().st_mtime > at:  # made just now
                os.utime(stamp, (at, at))
    assert ran == pip
