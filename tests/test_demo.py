"""`peer demo` for real: what it prints last, and that it means it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FIELDS = {
    "peers", "inner_steps", "tokens", "rounds_committed", "rounds_failed", "loss_first", "loss_last",
    "bits_per_parameter_up", "bits_per_parameter_down", "trainer_wait_fraction", "anchors_equal",
    "late_joiner_caught_up", "seconds",
}  # fmt: skip


@pytest.mark.network
@pytest.mark.timeout(600)
def test_the_demo_trains_a_swarm_and_says_so() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "peer", "demo", "--peers", "2", "--minutes", "0.7", "--json", "--no-dashboard"],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout.splitlines()[-1])
    assert facts.keys() >= FIELDS
    assert facts["peers"] == 3
    assert facts["rounds_committed"] > 0
    assert facts["loss_last"] < facts["loss_first"]
    assert facts["anchors_equal"]
    assert facts["late_joiner_caught_up"]
    assert 4.125 <= facts["bits_per_parameter_up"] <= 4.25
    assert 4.125 <= facts["bits_per_parameter_down"] <= 4.25
