"""The model of a real swarm writes for the page, through a process that is gone afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from peer.import_path import python_command, python_environment
from tests.kit.processes.process_swarm import TINY_RUN, WAIT_SECONDS, free_port, process_swarm, wait_until


def _writers(of: int) -> list[int]:
    """Children of a process."""
    return [int(one) for task in Path(f"/proc/{of}/task").iterdir() for one in (task / "children").read_text().split()]


def test_the_page_of_a_real_swarm_shows_what_its_model_writes() -> None:
    with process_swarm(TINY_RUN) as swarm:
        seed = swarm.start("seed", command="seed", has_record=True)
        ada = swarm.start("ada", peers=[seed.address])
        port = free_port()
        flags = ("--run-id", swarm.run_id, "--peers", seed.address, "--port", str(port), "--db", ":memory:")
        samples = ("--samples-every", "1h", "--prompt", "line 7", "--prompt", "", "--host-backend", "libp2p")
        page = subprocess.Popen(
            python_command("peer", "dashboard", *flags, *samples), env=python_environment(), stdout=subprocess.DEVNULL
        )
        try:

            def text(path: str = "") -> str:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=WAIT_SECONDS) as answer:
                        return str(answer.read().decode())
                except OSError:
                    return "{}"

            def shown() -> list[dict[str, Any]]:
                return list(json.loads(text("api/v1/samples")).get("samples", []))

            ada.wait_joined()
            wait_until(lambda: json.loads(text("api/v1/run"))["figures"]["committed_tokens"] > 0, "a first commit")
            # A seed alone has the model too, and leaves the processor to the one that writes.
            ada.process.send_signal(signal.SIGINT)
            wait_until(lambda: bool(shown()), "a text by the model")
            (sample,) = shown()
            assert sample["version"] > 0
            assert sample["committed_tokens"] > 0
            assert [one["prompt"] for one in sample["texts"]] == ["line 7", ""]
            assert all(one["text"] for one in sample["texts"])
            assert "What it writes now" in text()
            assert _writers(page.pid) == []
        finally:
            page.terminate()
            page.wait(WAIT_SECONDS)
