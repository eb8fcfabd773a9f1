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
    # A session of seconds leaves a curve. A measurement after the last step has a row that repeats nothing.
    assert len(rows) >= 4
    last = next(row for row in rows if int(row["step"]) == 60)
    assert all(last[name] for name in ("loss", "learning_rate", "tokens_per_second"))
    # The step is the run's batch, whatever a backward pass takes.
    assert int(last["tokens"]) == 60 * 4 * 2 * 32
