"""What a volunteer chooses about computing and recording, in a real peer that leaves and comes back."""

from __future__ import annotations

import csv

from tests.kit.processes.process_swarm import process_swarm

CHOICES = ("--precision", "bf16", "--micro-batch", "1", "--checkpoint-activations", "--track", "csv")


def test_a_peer_that_comes_back_goes_on_in_the_same_record() -> None:
    with process_swarm() as swarm:
        for num_steps in (30, 60):
            peer = swarm.start("tracked", "--max-steps", str(num_steps), *CHOICES, has_record=True)
            assert peer.wait_end() == 0, peer.last_words()
        with (swarm.folder_of("tracked") / "metrics.csv").open(newline="") as file:
            rows = [*csv.DictReader(file)]
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(steps)
    assert {30, 60} <= set(steps)
    # A session of seconds leaves a curve, and its last row has everything.
    assert len(rows) >= 4
    assert all(rows[-1][name] for name in ("loss", "learning_rate", "tokens_per_second"))
    # The step is the run's batch, whatever a backward pass takes.
    assert int(rows[-1]["tokens"]) == 60 * 4 * 2 * 32
