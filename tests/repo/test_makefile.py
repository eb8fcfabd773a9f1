"""`make venv`: what it says while it installs, with a pip that is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
