"""Page, API, panel and status show the same text for a figure: each of them writes the same `RunView`."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import urllib.request
from typing import Any

from dht.ground.quantities import count_text, loss_text
from peer.import_path import python_command, python_environment
from tests.kit.processes.process_swarm import (
    STEP_SECONDS,
    TINY_RUN,
    UNHURRIED,
    WAIT_SECONDS,
    ProcessSwarm,
    free_port,
    process_swarm,
    wait_until,
)

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class PanelProcess:
    """A `peer join` on a terminal of 140 columns and 50 lines."""

    def __init__(self, swarm: ProcessSwarm, address: str) -> None:
        swarm.identity_of("ada")
        self._screen, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 140, 0, 0))
        folder, port = swarm.folder_of("ada"), free_port()
        arguments = ["join", "--run-id", swarm.run_id, "--data-dir", str(folder), "--peers", address, "--name", "Ada"]
        arguments += ["--listen", f"/ip4/127.0.0.1/tcp/{port}", "--threads", "1", "--device", "cpu"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", UNHURRIED, str(STEP_SECONDS), *arguments, "--data", f"text:{swarm.text}"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**swarm.environment, "TERM": "xterm", "NO_COLOR": "1"},
            start_new_session=True,
        )
        os.close(theirs)
        self._shown = ""
        threading.Thread(target=self._read, daemon=True).start()

    def press(self, key: str) -> None:
        os.write(self._screen, key.encode())

    def newest(self, pattern: str) -> str:
        """What the panel showed last where the pattern has a group; empty: nothing yet."""
        found = re.findall(pattern, _ESCAPE.sub("", self._shown))
        return str(found[-1]) if found else ""

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._screen, 65_536)
            except OSError:
                return
            self._shown += data.decode(errors="replace")


def test_page_api_panel_and_status_show_the_same_text_at_one_moment() -> None:
    with process_swarm(TINY_RUN) as swarm:
        seed = swarm.start("seed", command="seed", has_record=True)
        panel = PanelProcess(swarm, seed.address)
        port = free_port()
        command = ("dashboard", "--run-id", swarm.run_id, "--peers", seed.address, "--port", str(port), "--db")
        page = subprocess.Popen(
            python_command("peer", *command, ":memory:", "--samples-every", "never"),
            env=python_environment(),
            stdout=subprocess.DEVNULL,
        )
        try:

            def read(path: str = "") -> str:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=WAIT_SECONDS) as answer:
                        return str(answer.read().decode())
                except OSError:
                    return "{}"

            def figures() -> dict[str, Any]:
                return dict(json.loads(read("api/v1/run")).get("figures", {}))

            wait_until(lambda: figures().get("evaluation") is not None, "a validation loss", 2 * WAIT_SECONDS)
            panel.press("p")
            wait_until(lambda: figures().get("num_paused") == 1, "the trainer to pause")

            def texts() -> list[tuple[str, str]]:
                """(validation loss, committed tokens) of API, page, panel and status."""
                asked = swarm.call("status", "--run-id", swarm.run_id, "--peers", seed.address, "--json")
                status, api, shown = json.loads(asked.stdout), figures(), read()
                lines = swarm.call("status", "--run-id", swarm.run_id, "--peers", seed.address).stdout
                told = " ".join(lines.split())
                return [
                    (loss_text(api["evaluation"]["loss"]), count_text(api["committed_tokens"])),
                    (loss_text(status["evaluation"]["loss"]), count_text(status["committed_tokens"])),
                    (
                        re.findall(r"Validation loss</dt><dd class=\"value\">([^<]+)<", shown)[0],
                        re.findall(r'Text learned so far</dt><dd class="value">([^<]+)<', shown)[0],
                    ),
                    (
                        panel.newest(r"validation loss ([0-9.]+)"),
                        panel.newest(r"([0-9.]+(?: [kMGTP])?) tokens learned"),
                    ),
                    (
                        re.findall(r"validation loss ([0-9.]+)", told)[0],
                        re.findall(r" ([0-9.]+(?: [kMGTP])?) tokens ", told)[0],
                    ),
                ]

            try:
                wait_until(lambda: len(set(texts())) == 1, "one text in all")
            except AssertionError as error:
                raise AssertionError(f"{error}: {texts()}") from error
            assert texts()[0][0] != "–"
        finally:
            page.terminate()
            page.wait(WAIT_SECONDS)
            panel.process.send_signal(signal.SIGINT)
            panel.process.wait(WAIT_SECONDS)
