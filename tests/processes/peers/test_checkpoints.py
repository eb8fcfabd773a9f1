"""Real peers that were killed, and come back to their checkpoints."""

from __future__ import annotations

import json

from averaging.rounds.round_facts import SentContribution
from peer.checkpoint.checkpoint import METADATA_NAME, TRAINER_FACTS_NAME, list_checkpoints
from peer.events.anchor_events import Fetched
from peer.events.peer_events import CheckpointSaved, TrainingProgressed
from tests.kit.processes.process_swarm import ProcessSwarm, process_swarm, wait_until

OFTEN = ("--checkpoint-minutes", "0.01")
RARELY = ("--checkpoint-minutes", "1000")


def newest_facts(swarm: ProcessSwarm, name: str) -> tuple[tuple[int, ...], int]:
    """(versions, inner steps) of the newest checkpoint in a peer's folder."""
    path = list_checkpoints(swarm.folder / name / "checkpoints")[0]
    metadata = json.loads((path / METADATA_NAME).read_text())["content"]
    return tuple(facts["version"] for facts in metadata["fragments"]), metadata["totals"]["inner_steps"]


def test_a_lone_peer_that_was_killed_goes_on_from_its_checkpoint() -> None:
    with process_swarm() as swarm:
        peer = swarm.start("lone", *OFTEN, has_record=True)
        peer.wait_for(CheckpointSaved, lambda event: min(event.versions) >= 3)
        peer.kill_all()
        versions, inner_steps = newest_facts(swarm, "lone")
        assert inner_steps >= 30
        mark = peer.mark()
        again = swarm.start("lone", *RARELY, "--max-steps", str(inner_steps + 40))
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


def test_a_peer_that_returns_with_an_old_checkpoint_catches_up() -> None:
    with process_swarm() as swarm:
        first = swarm.start("first", *RARELY, has_record=True)
        first.wait_joined()
        second = swarm.start("second", *OFTEN, peers=[first.address])
        second.wait_common_round(first.peer_id, after=0)
        second.wait_for(CheckpointSaved, after=second.mark())
        second.kill_all()
        versions, inner_steps = newest_facts(swarm, "second")
        wait_until(lambda: min(first.versions().values(), default=0) > max(versions) + 3, "the first goes on")
        mark, mark_first = second.mark(), first.mark()
        again = swarm.start("second", *RARELY, peers=[first.address])
        assert again.wait_for(Fetched, lambda fact: bool(fact.fragments), after=mark).fragments == (0, 1)
        joined = again.wait_joined(after=mark)
        assert all(now > then for now, then in zip(joined.versions, versions, strict=True))
        first.wait_common_round(again.peer_id, after=mark_first)
        progress = again.wait_for(TrainingProgressed, after=mark)
        assert progress.inner_steps >= inner_steps
        ours, theirs = first.outcomes(), again.outcomes()
        assert ours.keys() & theirs.keys()
        assert all(ours[key] == theirs[key] for key in ours.keys() & theirs.keys())
