"""A real peer on a real terminal: the checklist, its keys, a pause that others would see, a clean goodbye."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.events.event_log import from_json
from peer.events.peer_events import Fact, JoinedRun, LeftRun, TrainingProgressed
from tests.kit.processes.process_swarm import (
    STEP_SECONDS,
    UNHURRIED,
    WAIT_SECONDS,
    ProcessSwarm,
    free_port,
    process_swarm,
    wait_until,
)


@pytest.fixture(scope="module")
def swarm() -> Iterator[ProcessSwarm]:
    with process_swarm() as made:
        yield made


class Screen:
    """A `peer join` or `peer seed` on a pseudo-terminal that is its own."""

    def __init__(self, swarm: ProcessSwarm, name: str, what: str = "join") -> None:
        self.folder = swarm.folder_of(name)
        swarm.identity_of(name)
        (self.folder / "run.record").write_bytes(Path(swarm.run.run_record_path).read_bytes())
        self._master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)[3]
        arguments = [
            *(what, "--run-id", swarm.run_id, "--data-dir", str(self.folder), "--name", "Ada"),
            *("--listen", f"/ip4/127.0.0.1/tcp/{free_port()}"),
        ]
        program = ["peer"]
        if what == "join":
            program = [UNHURRIED, str(STEP_SECONDS)]
            arguments += ["--threads", "1", "--device", "cpu", "--data", f"text:{swarm.text}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *program, *arguments],
            env={**swarm.environment, "TERM": "xterm-256color"},
            preexec_fn=lambda: os.login_tty(slave),
            pass_fds=(slave,),
        )
        self._slave = slave
        self.text = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self.text += os.read(self._master, 65536).decode("utf-8", "replace")
            except OSError:
                return

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def flags(self) -> int:
        return int(termios.tcgetattr(self._slave)[3])

    def facts(self, kind: type[Fact]) -> list[Fact]:
        path = self.folder / "events.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [event.fact for line in lines if isinstance((event := from_json(line)).fact, kind)]

    def steps(self) -> int:
        found = self.facts(TrainingProgressed)
        return found[-1].inner_steps if found else 0  # type: ignore[attr-defined]


def test_keys_pause_and_leave_and_the_terminal_is_as_before(swarm: ProcessSwarm) -> None:
    screen = Screen(swarm, "ada")
    wait_until(lambda: "Your key" in screen.text, "the checklist")
    wait_until(lambda: bool(screen.facts(JoinedRun)) and screen.steps() > 0, "it trains")
    assert not screen.flags & termios.ICANON
    screen.type("p")
    wait_until(lambda: "paused" in screen.text, "it is paused")
    last = screen.facts(TrainingProgressed)
    # Two more reports without a step between them: reports go on, training does not.
    wait_until(
        lambda: (
            len(screen.facts(TrainingProgressed)) >= len(last) + 3
            and len({one.inner_steps for one in screen.facts(TrainingProgressed)[-2:]}) == 1
        ),  # type: ignore[attr-defined]
        "no step is taken",
    )
    stopped_at = screen.steps()
    screen.type("p")
    wait_until(lambda: screen.steps() > stopped_at, "it goes on")
    screen.type("i")
    wait_until(lambda: "Peer id" in screen.text, "the page of addresses")
    screen.type("l50\r\r")  # up, and no limit down
    screen.type("q")
    assert screen.process.wait(WAIT_SECONDS) == 0
    wait_until(lambda: "Come back: peer join" in screen.text, "goodbye")
    after = screen.text.rpartition("\x1b[?1049l")[2]
    assert "Thank you, Ada." in after
    assert "--upload-limit-mbit" in after
    assert screen.flags == screen.before
    assert len(screen.facts(LeftRun)) == 1


def test_sigterm_while_it_loads_leaves_the_terminal_as_it_was(swarm: ProcessSwarm) -> None:
    screen = Screen(swarm, "ben")
    wait_until(lambda: "\x1b[?1049h" in screen.text, "a screen of its own with the checklist")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.process.wait(WAIT_SECONDS) == 130
    wait_until(lambda: "Left before training began: nothing is lost" in screen.text, "it says so")
    assert "Interrupted" not in screen.text
    assert screen.flags == screen.before
    assert "\x1b[?1049l" in screen.text


@pytest.mark.parametrize("leave", ["q", "SIGINT"])
def test_a_seed_on_a_terminal_leaves_as_politely(swarm: ProcessSwarm, leave: str) -> None:
    screen = Screen(swarm, f"seed-{leave}", "seed")
    wait_until(lambda: "waiting for the first trainer" in screen.text, "it is there")
    if leave == "q":
        screen.type("q")
    else:
        screen.process.send_signal(signal.SIGINT)
    assert screen.process.wait(WAIT_SECONDS) == 0
    assert screen.flags == screen.before
    assert (swarm.processes(), swarm.socket_directories()) == ([], [])
