"""Programs for processes that have imported nothing yet, and what they should not load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HEAVY = """
import sys

def heavy():
    return {"torch", "scipy", "hivemind.averaging", "hivemind.optim"} & set(sys.modules)
"""


def run(program: str, *first_on_path: Path) -> None:
    """Run it in a process that has imported nothing yet."""
    path = os.pathsep.join([*(str(folder) for folder in first_on_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-c", program]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
