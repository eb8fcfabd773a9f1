"""`peer demo` as a newcomer runs it: real processes, one killed, one late, and one JSON object at the end."""

from __future__ import annotations

import json
import math

from tests.kit.processes.process_swarm import process_swarm

DEMO_SECONDS = 280.0
"""80 s on an idle machine with two cores: 0.7 minutes of training, four starts of a peer, the measurement."""
FIELDS = {
    "peers", "inner_steps", "tokens", "rounds_committed", "rounds_failed", "loss_first", "loss_last",
    "bits_per_parameter_up", "bits_per_parameter_down", "trainer_wait_fraction", "anchors_equal",
    "late_joiner_caught_up", "seconds",
}  # fmt: skip


def test_the_demo_trains_together_survives_a_kill_and_says_so() -> None:
    with process_swarm() as swarm:
        shown = swarm.call("demo", "--peers", "2", "--minutes", "0.7", "--json", "--no-dashboard", seconds=DEMO_SECONDS)
        assert shown.returncode == 0, shown.stderr
        # It ends by itself and takes everything away that it started.
        assert swarm.processes() == []
        assert swarm.socket_directories() == []
        assert list(swarm.sockets.glob("murmuration-demo-*")) == []
    assert "Traceback" not in shown.stderr
    assert "SIGKILL" in shown.stderr
    assert "comes late" in shown.stderr
    facts = json.loads(shown.stdout.splitlines()[-1])
    assert facts.keys() >= FIELDS
    assert facts["peers"] == 3
    assert set(facts["inner_steps"]) == {"peer-1", "peer-2", "peer-3"}
    assert min(facts["inner_steps"].values()) > 0
    tokens_per_step = 4 * 128
    assert facts["tokens"] == tokens_per_step * sum(facts["inner_steps"].values())
    assert facts["rounds_committed"] > 10
    assert 0 <= facts["rounds_failed"] < facts["rounds_committed"]
    # Before training, every byte is about equally likely; a trained model is far below the first loss.
    assert abs(facts["loss_first"] - math.log(256)) < 1
    assert 0.5 < facts["loss_last"] < 0.7 * facts["loss_first"]
    assert 4 < facts["bits_per_parameter_up"] <= 4.25
    assert 4 < facts["bits_per_parameter_down"] <= 4.25
    assert 0 <= facts["trainer_wait_fraction"] < 0.05
    assert facts["anchors_equal"] is True
    assert facts["late_joiner_caught_up"] is True
    assert 42 < facts["seconds"] < DEMO_SECONDS
