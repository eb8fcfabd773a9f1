"""A swarm of processes ends with the process that started it, however that one is asked to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes.process_swarm import WAIT_SECONDS, wait_until

PROGRAM = """
import signal, subprocess, sys
from tests.kit.processes.process_swarm import process_swarm

with process_swarm() as swarm:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], env=swarm.environment)
    print(child.pid, swarm.sockets, flush=True)
    signal.pause()
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_swarm_whose_program_is_ended_leaves_nothing_behind(number: signal.Signals) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert program.stdout is not None
    child, sockets = program.stdout.readline().split()
    assert Path(sockets).is_dir()
    program.send_signal(number)
    _, errors = program.communicate(timeout=WAIT_SECONDS)
    assert program.returncode != 0
    assert "KeyboardInterrupt" in errors
    wait_until(lambda: not is_alive(int(child)), "its child ends")
    assert not Path(sockets).exists()
