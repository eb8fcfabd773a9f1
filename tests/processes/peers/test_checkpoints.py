"""A real peer that was killed comes back to its checkpoint, with what its volunteer chose."""

from __future__ import annotations

import csv
import json

from averaging.rounds.round_facts import SentContribution
from peer.checkpoint.checkpoint import METADATA_NAME, TRAINER_FACTS_NAME, list_checkpoints
from peer.events.peer_events import CheckpointSaved, TrainingProgressed
from tests.kit.processes.process_swarm import ProcessSwarm, process_swarm

OFTEN = ("--checkpoint-minutes", "0.01")
RARELY = ("--checkpoint-minutes", "1000")
CHOICES = ("--precision", "bf16", "--micro-batch", "1", "--checkpoint-activations", "--track", "csv")


def newest_facts(swarm: ProcessSwarm, name: str) -> tuple[tuple[int, ...], int]:
    """(versions, inner steps) of the newest checkpoint in a peer's folder."""
    path = list_checkpoints(swarm.folder / name / "checkpoints")[0]
    metadata = json.loads((path / METADATA_NAME).read_text())["content"]
    return tuple(facts["version"] for facts in metadata["fragments"]), metadata["totals"]["inner_steps"]


def test_a_lone_peer_that_was_killed_goes_on_from_its_checkpoint() -> None:
    with process_swarm() as swarm:
        peer = swarm.start("lone", *OFTEN, *CHOICES, has_record=True)
        peer.wait_for(CheckpointSaved, lambda event: min(event.versions) >= 3)
        peer.kill_all()
        versions, inner_steps = newest_facts(swarm, "lone")
        assert inner_steps >= 30
        mark = peer.mark()
        again = swarm.start("lone", *RARELY, *CHOICES, "--max-steps", str(inner_steps + 40))
        assert again.wait_joined(after=mark).versions == versions
        again.wait_for(SentContribution, after=mark)
        assert again.wait_end() == 0
        progress = [event.fact for event in again.events()[mark:] if isinstance(event.fact, TrainingProgressed)]
        assert all(inner_steps <= fact.inner_steps <= inner_steps + 40 for fact in progress)
        assert newest_facts(swarm, "lone")[1] == inner_steps + 40
        path = list_checkpoints(swarm.folder / "lone" / "checkpoints")[0]
        trainer = json.loads((path / TRAINER_FACTS_NAME).read_text())["content"]
        # The optimizer is as old as the run.
        assert trainer["loop"]["num_steps"] == inner_steps + 40
        assert min(newest_facts(swarm, "lone")[0]) > min(versions)
        with (swarm.folder_of("lone") / "metrics.csv").open(newline="") as file:
            rows = [*csv.DictReader(file)]
        assert int(rows[0]["step"]) <= inner_steps
        last = next(row for row in rows if int(row["step"]) == inner_steps + 40)
        assert all(last[name] for name in ("loss", "learning_rate", "tokens_per_second"))
        # The step is the run's batch, whatever a backward pass takes.
        assert int(last["tokens"]) == (inner_steps + 40) * 4 * 2 * 32
