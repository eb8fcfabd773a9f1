"""`peer demo` as a newcomer runs it: real processes, one killed, one late, and one JSON object at the end; Ctrl+C."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.kit.processes.process_swarm import DEAF, UNHURRIED, WAIT_SECONDS, process_swarm, wait_until
from tests.kit.tiers import sampled

DEMO_SECONDS = 280.0
"""80 s on an idle machine with two cores: 0.7 minutes of training, four starts of a peer, and the model writes."""
DEMO_STEP_SECONDS = 0.05
"""Of its peers, whose model is larger: at full speed they would keep both cores busy for most of a minute."""


def test_the_demo_trains_together_survives_a_kill_and_says_so() -> None:
    with process_swarm() as swarm:
        flags = ("--peers", "2", "--minutes", "0.7", "--json", "--no-dashboard")
        shown = swarm.call_python("-m", UNHURRIED, str(DEMO_STEP_SECONDS), "demo", *flags, seconds=DEMO_SECONDS)
        assert shown.returncode == 0, shown.stderr
        # It ends by itself and takes everything away that it started.
        assert swarm.processes() == []
        assert swarm.socket_directories() == []
        assert list(swarm.sockets.glob("murmuration-demo-*")) == []
    assert "Traceback" not in shown.stderr
    assert "SIGKILL" in shown.stderr
    assert "joins late" in shown.stderr
    facts = json.loads(shown.stdout.splitlines()[-1])
    assert facts["peers"] == 3
    assert set(facts["inner_steps"]) == {"peer-1", "peer-2", "peer-3"}
    assert min(facts["inner_steps"].values()) > 0
    tokens_per_step = 4 * 128
    assert facts["tokens"] == tokens_per_step * sum(facts["inner_steps"].values())
    assert facts["num_rounds"] > 10
    # Before training, every byte is about equally likely; a trained model is far below the first loss.
    assert abs(facts["loss_first"] - math.log(256)) < 1
    assert 0.5 < facts["loss_last"] < 0.7 * facts["loss_first"]
    assert 4 < facts["bits_per_parameter_up"] <= 4.25
    assert 4 < facts["bits_per_parameter_down"] <= 4.25
    assert 0 <= facts["trainer_wait_fraction"] < 0.05
    assert facts["anchors_equal"] is True
    assert facts["late_joiner_contributed"] is True
    assert facts["text"].startswith("def ")


@pytest.mark.parametrize(
    ("number", "wrapper"), sampled([(signal.SIGINT, ()), (signal.SIGTERM, DEAF), (signal.SIGKILL, ())], one_in=2)
)
def test_ctrl_c_and_a_kill_leave_no_process_behind(number: signal.Signals, wrapper: tuple[str, ...]) -> None:
    """In the moment in which the first peer has its daemon: as many processes as a start can leave."""
    with process_swarm() as swarm:
        controller, terminal = pty.openpty()
        demo = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "peer", "demo"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**swarm.environment, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(terminal)
        shown = b""

        def daemon_runs() -> bool:
            nonlocal shown
            shown += os.read(controller, 1 << 16)  # the table is redrawn: something comes a few times a second
            return any("p2pd" in process.command for process in swarm.processes())

        wait_until(daemon_runs, "the daemon of the first peer")
        demo.send_signal(number)
        while chunk := _read_or_end(controller):
            shown += chunk
        os.close(controller)
        assert demo.wait(WAIT_SECONDS) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
        text = shown.decode(errors="replace")
        assert "Starting the first peer" in text
        assert ("peer: Interrupted." in text) is (number != signal.SIGKILL)
        assert "Traceback" not in text
        if number == signal.SIGKILL:
            wait_until(lambda: swarm.processes() == [], "the end of what the demo had started")
        assert swarm.processes() == []
        assert swarm.socket_directories() == []
        if number != signal.SIGKILL:
            assert list(swarm.sockets.glob("murmuration-demo-*")) == []


def _read_or_end(controller: int) -> bytes:
    try:
        return os.read(controller, 1 << 16)
    except OSError:  # Linux says so when the last process of the terminal has gone
        return b""
