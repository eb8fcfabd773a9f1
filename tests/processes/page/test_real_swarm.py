"""The page of a real swarm: a seed, two that train, one of them killed; the others leave, the model writes, an end."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dashboard.page.environment import shell_line
from dht.ground.host import PeerId
from dht.identity.join_link import join_link
from peer.cli import app
from peer.events.peer_events import StateServed
from peer.import_path import python_command, python_environment
from tests.kit.processes.process_swarm import TINY_RUN, WAIT_SECONDS, PeerProcess, free_port, process_swarm, wait_until

INSTALL = "pip install git+https://example.org/code"


def _served(peer: PeerProcess, remote: PeerId) -> int:
    facts = [event.fact for event in peer.events()]
    return sum(fact.num_bytes for fact in facts if isinstance(fact, StateServed) and fact.remote == remote)


def _children(of: int) -> set[int]:
    return {
        int(child) for task in Path(f"/proc/{of}/task").iterdir() for child in (task / "children").read_text().split()
    }


def test_a_page_says_what_is_so_while_people_come_are_killed_and_leave() -> None:
    with process_swarm(TINY_RUN) as swarm:
        seed = swarm.start("seed", command="seed", has_record=True)
        ada = swarm.start("ada", "--name", "Ada", peers=[seed.address])
        port = free_port()
        command = ("dashboard", "--run-id", swarm.run_id, "--peers", seed.address, "--port", str(port), "--db")
        samples = ("--samples-every", "1h", "--prompt", "line 7", "--prompt", "", "--host-backend", "libp2p")
        page = subprocess.Popen(
            python_command("peer", *command, ":memory:", *samples, "--install", INSTALL),
            env=python_environment(),
            stdout=subprocess.DEVNULL,
        )
        try:

            def text(path: str = "") -> str:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=WAIT_SECONDS) as answer:
                        return str(answer.read().decode())
                except OSError:
                    return "{}"

            def run() -> dict[str, Any]:
                return dict(json.loads(text("api/v1/run")))

            def until(condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
                wait_until(lambda: bool((facts := run()).get("phase")) and condition(facts), what)
                return run()

            ada.wait_joined()
            jo = swarm.start("jo", "--name", "Jo", peers=[seed.address])
            jo.wait_joined()
            until(
                lambda facts: facts["figures"]["num_training"] == 2 and facts["figures"]["evaluation"] is not None,
                "two that train",
            )
            # The call to join is one that works, and whoever gave Jo the state says so.
            shown = text()
            assert shell_line(join_link(swarm.run_id, [seed.address]).command) in shown
            assert "ADDRESS" not in shown
            assert INSTALL in shown
            wait_until(lambda: any(_served(peer, jo.peer_id) for peer in (seed, ada)), "what was given to Jo")
            # Ada's name leads to what others signed for, with a picture for links.
            wait_until(lambda: "signed by 1 other." in text(f"c/{ada.peer_id}"), "Ada's confirmed work")
            own = text(f"c/{ada.peer_id}")
            assert f'content="http://127.0.0.1:{port}/card/{ada.peer_id}.png"' in own
            card = f"http://127.0.0.1:{port}/card/{ada.peer_id}.png"
            with urllib.request.urlopen(card, timeout=WAIT_SECONDS) as answer:
                assert answer.read(8) == b"\x89PNG\r\n\x1a\n"

            def people() -> set[str]:
                return {row["name"] for row in json.loads(text("api/v1/contributors"))["contributors"]}

            wait_until(lambda: people() == {"Ada", "Jo"}, "both in the ranking")
            jo.kill_all()
            facts = until(lambda facts: facts["figures"]["num_training"] == 1, "the killed one to be missed")
            (killed,) = [one for one in json.loads(text("api/v1/peers"))["peers"] if one["name"] == "Jo"]
            # Long before its record expires.
            assert killed["condition"] == "late"
            assert facts["phase"] == "live"
            assert "1 unresponsive" in text()
            ada.process.send_signal(signal.SIGINT)
            ada.wait_end()
            facts = until(lambda facts: facts["phase"] != "live", "nobody to train")
            # The seed is heard, so the page does not say that nobody is.
            assert facts["phase"] == "resting"
            assert facts["figures"]["evaluation"] is not None
            assert facts["figures"]["tokens_per_second"] == 0
            assert facts["figures"]["committed_tokens"] > 0
            assert "peer join" in text()
            # The seed alone has the model too. What wrote for the page is gone afterwards.
            wait_until(lambda: bool(json.loads(text("api/v1/samples")).get("samples")), "a text by the model")
            (sample,) = json.loads(text("api/v1/samples"))["samples"]
            assert sample["version"] > 0
            assert sample["committed_tokens"] > 0
            assert [one["prompt"] for one in sample["texts"]] == ["line 7", ""]
            assert all(one["text"] for one in sample["texts"])
            assert "What it writes now" in text()
            assert _children(page.pid) == set()
            # The owner ends the run at once: the seed stays until a page that looks now and then knows it.
            owner = str(swarm.run.folder)
            assert app.run(["manifest", "edit", "--data-dir", owner, "--end", "--at-version", "0"]) == 0
            assert app.run(["manifest", "sign", "--data-dir", owner]) == 0
            published = swarm.call("manifest", "publish", "--data-dir", owner, "--peers", seed.address)
            assert (published.returncode, published.stderr) == (0, "")
            assert seed.wait_end() == 0
            until(lambda facts: facts["phase"] == "ended", "the page to say that the run has ended")
            shown = text()
            assert "Download the model" in shown
            assert "peer join" not in shown
        finally:
            page.terminate()
            page.wait(WAIT_SECONDS)
