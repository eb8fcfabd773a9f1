"""One sentence on a screen: that all is well, or what is not."""

from __future__ import annotations

from rich.text import Text

from dht.ground.quantities import seconds_text
from peer.panel.scene.scene import Scene
from peer.panel.screens.text_lines_that_fit import CARE, DIM, GOOD, part
from peer.run_clock import has_stalled


def is_alone(scene: Scene) -> bool:
    """Whether the others have become silent."""
    return scene.own.phase in ("training alone", "alone")


def is_at_goal(scene: Scene, now: float) -> bool:
    """Whether the run has done what it was made for."""
    run, goal, loss = scene.run, scene.run.goal_tokens or scene.own.budget_tokens, scene.validation_loss
    return (
        (goal is not None and scene.committed_tokens >= goal)
        or (run.goal_until is not None and now >= run.goal_until)
        or (run.goal_loss is not None and loss is not None and loss <= run.goal_loss)
    )


def health(scene: Scene, now: float) -> Text:
    """One sentence: that all is well, or what is not."""
    state = scene.own
    left_out = [one for one in state.refusals if one.is_left_out(now)]
    if scene.own.has_ended:
        return part("The organiser has ended the run. Your machine saves its work and leaves.", GOOD)
    if scene.is_resting:
        return part("Paused by you; this machine serves others meanwhile. p goes on.", CARE)
    if not scene.has_network and not scene.num_others:
        return part(_without_network(scene), CARE)
    if scene.is_seed and is_alone(scene):
        return part("Nobody else is here now; this seed keeps the run for those who come", DIM)
    if is_alone(scene):
        return part("Nobody else answers. Your machine looks for the others again and again.", CARE)
    if left_out:
        more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        return part(f"{scene.name_of(left_out[0].remote)} is left out of rounds for a while{more}", CARE)
    silent = None if scene.own.last_round_at is None else now - scene.own.last_round_at
    if silent is not None and has_stalled(silent, scene.usual_round_seconds) and scene.num_others:
        return part(f"No exchange has ended for {seconds_text(round(silent))}", CARE)
    if not scene.num_others and scene.swarm.num_silent:
        return part("Nobody else answers at the moment; training goes on meanwhile", CARE)
    if scene.is_left_alone and scene.own.last_round_at is not None:
        everybody = "Everybody else has left; your machine trains alone, and others may join again"
        return part(lone_words(scene) if scene.lone_rounds else everybody, CARE)
    if is_at_goal(scene, now):
        return part("The goal is reached; training goes on until the organiser ends the run", GOOD)
    if not scene.num_others:
        if scene.own.last_round_at is None:
            return part(_alone_at_first(scene), DIM)
        return part(lone_words(scene) if scene.lone_rounds else "Others may join while your machine trains", DIM)
    if scene.own.last_round_at is None:
        return part("The first exchange with the others comes after a few steps", DIM)
    if scene.lone_rounds:
        return part(lone_words(scene), CARE if scene.swarm.num_other_trainers else DIM)
    if scene.own.is_reachable is False:
        how = "others reach this machine through a relay" if scene.own.relays else "nobody can dial this machine"
        return part(f"Up to date; {how} (i tells more)", GOOD)
    return part("Everything is up to date", GOOD)


def _without_network(scene: Scene) -> str:
    does = "this seed waits until it has one" if scene.is_seed else "it trains alone until it has one"
    return f"This machine has no network: {does}, and then finds the others by itself"


def _alone_at_first(scene: Scene) -> str:
    """Of a trainer that sees nobody and has not been in a round: it may be new itself, or have come too late."""
    if not scene.swarm.at:
        return "Looking for the others; your machine trains meanwhile"
    if scene.own.met or scene.committed_tokens or any(scene.own.versions):
        return "Nobody else is seen here now; others may join while your machine trains"
    return "Your machine is the first one here; others join while it trains"


def lone_words(scene: Scene) -> str:
    """That rounds have one member, where `lone_rounds` says so."""
    swarm, rounds = scene.swarm, scene.lone_rounds
    if scene.is_seed:
        return f"{swarm.num_other_trainers} train, but the last {rounds} rounds had one member each"
    if not swarm.num_other_trainers:
        return f"Nobody else trains: the last {rounds} rounds had one member"
    silent = swarm.num_silent_trainers
    why = f"; {silent} of them {'does' if silent == 1 else 'do'} not answer this machine" if silent else ""
    if swarm.num_other_trainers == 1:
        why = "; it does not answer this machine" if silent else ""
        return f"Trains alone: 1 other is known, it shared none of the last {rounds} rounds{why}"
    return f"Trains alone: {swarm.num_other_trainers} others are known, none shared the last {rounds} rounds{why}"
