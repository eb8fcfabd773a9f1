"""Sentences about a scene that all views share: the state of health, a one-line summary, and the goodbye. Pure."""

from __future__ import annotations

from dht.ground.quantities import age_text, bytes_text, count_text, loss_text, plural, seconds_text
from peer.panel.scene import Scene
from peer.view.run_clock import has_stalled

ACCENT, GOOD, CARE, DIM = "bold cyan", "green", "yellow", "bright_black"
"""Colours from the terminal's theme: own figures, and states."""
PAGE, COMMAND = "Your page: ", "Come back: "
"""Prefixes of text to copy; such a line is not broken."""


def health(scene: Scene, now: float) -> tuple[str, str]:
    """Return one sentence about the state of health, and its colour."""
    own, swarm = scene.own, scene.swarm
    left_out = [remote for remote, until in own.left_out if now < until]
    silent = None if own.last_round_at is None else now - own.last_round_at
    if own.has_ended:
        return "The organiser has ended the run. Your machine saves its work and leaves.", GOOD
    if scene.is_resting:
        return "You paused training; this machine still serves others. Press p to resume.", CARE
    if not scene.has_network and not scene.num_others:
        does = "this seed waits until it has one" if scene.is_seed else "it trains alone until it has one"
        return f"This machine has no network: {does}, then finds the others by itself", CARE
    if scene.is_seed and own.phase == "alone":
        return "No other machine is here now; this seed keeps the run for new members", DIM
    if own.phase == "training alone":
        return "No other machine answers. Your machine keeps looking for the others.", CARE
    if left_out:
        more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        return f"{scene.name_of(left_out[0])} is left out of rounds for a while{more}", CARE
    if silent is not None and has_stalled(silent, scene.usual_round_seconds) and scene.num_others:
        return f"No exchange has ended for {seconds_text(round(silent))}", CARE
    if not scene.num_others and swarm.num_silent:
        return "No other machine answers at the moment; training continues", CARE
    if scene.is_left_alone and own.last_round_at is not None:
        alone = "All others have left; your machine trains alone, and others may join again"
        return lone_words(scene) if scene.lone_rounds else alone, CARE
    if _is_at_goal(scene):
        return "The goal is reached; training continues until the organiser ends the run", GOOD
    if not scene.num_others:
        if own.last_round_at is None:
            return _alone_at_first(scene), DIM
        return lone_words(scene) if scene.lone_rounds else "Others may join while your machine trains", DIM
    if own.last_round_at is None:
        return "The first exchange with the others comes after a few steps", DIM
    if scene.lone_rounds:
        return lone_words(scene), CARE if swarm.num_other_trainers else DIM
    if own.is_reachable is False:
        how = "others reach this machine through a relay" if own.relays else "no member can dial this machine"
        return f"Up to date; {how} (press i for details)", GOOD
    return "Everything is up to date", GOOD


def _is_at_goal(scene: Scene) -> bool:
    goal = scene.run.goal_tokens or scene.own.budget_tokens
    return goal is not None and scene.view.committed_tokens >= goal


def _alone_at_first(scene: Scene) -> str:
    """Return the sentence for a trainer without others and rounds: it may be new itself, or have arrived late."""
    if not scene.swarm.at:
        return "Looking for the others; your machine trains meanwhile"
    if scene.own.met or scene.view.committed_tokens or any(scene.own.versions):
        return "No other machine is here now; others may join while your machine trains"
    return "Your machine is the first one here; others join while it trains"


def lone_words(scene: Scene) -> str:
    """Return a sentence about rounds with one member, as counted by `lone_rounds`."""
    swarm, rounds = scene.swarm, scene.lone_rounds
    if scene.is_seed:
        return f"{swarm.num_other_trainers} train, but the last {rounds} rounds had one member each"
    if not swarm.num_other_trainers:
        return f"No other machine trains: the last {rounds} rounds had one member"
    silent = swarm.num_silent_trainers
    if swarm.num_other_trainers == 1:
        why = "; it does not answer this machine" if silent else ""
        return f"Trains alone: 1 other is known; it shared none of the last {rounds} rounds{why}"
    why = f"; {silent} of them {'does' if silent == 1 else 'do'} not answer this machine" if silent else ""
    return f"Trains alone: {swarm.num_other_trainers} others are known; none shared the last {rounds} rounds{why}"


def doing(scene: Scene) -> tuple[str, str]:
    """Return the peer's activity in a word or two, and its colour."""
    phase = scene.own.phase
    if scene.own.has_ended:
        return "ended", DIM
    if phase == "left":
        return "left", DIM
    if scene.leaving:
        return "leaving", CARE
    if scene.is_resting:
        return "paused", CARE
    if scene.is_compiling:
        return "compiling", CARE
    if phase == "training" and (scene.is_left_alone or not (scene.has_network or scene.num_others)):
        return "training alone", CARE
    return phase, GOOD if phase in ("training", "serving") else CARE


def summary(scene: Scene, now: float) -> str:
    """Return one line for people: this peer's activity, and its and the run's progress."""
    state, swarm = scene.own, scene.swarm
    if state.last_event_at is None or not scene.loading.is_over:
        is_found = not scene.is_seed and not any(line.is_waiting for line in scene.loading.lines)
        return "Still starting." if is_found and state.phase == "waiting for peers" else f"Still {state.phase}."
    others = scene.others_here
    if scene.lone_rounds and (swarm.num_other_trainers > 1 or not scene.is_seed):
        others += f". {lone_words(scene)}"
    if scene.is_seed:
        served = f"{plural(state.num_newcomers, 'newcomer')} served"
        return f"Seed: {served}, {scene.num_training} training, {others}."
    phase = "Paused" if scene.is_resting else capitalised(scene.phase)
    parts = [f"{count_text(state.tokens)} tokens", plural(state.rounds_contributed, "round")]
    if not scene.is_resting and not scene.is_compiling:
        parts.append(f"{count_text(state.tokens_per_second)} tokens/s")
    if state.train_loss is not None:
        parts.append(f"loss {loss_text(state.train_loss, scene.run.loss_unit)}")
    if state.joined_at is not None:
        parts.append(seconds_text(round(max(0.0, now - state.joined_at))))
    return f"{phase}: {', '.join([*parts, others])}."


def goodbye(scene: Scene, now: float) -> list[str]:
    """Return sentences that stay on the terminal, one per line; none for a peer that never became a member."""
    state = scene.own
    if state.joined_at is None:
        return []
    took = seconds_text(round(max(0.0, now - ((scene.began_at if scene.is_seed else 0.0) or state.joined_at))))
    if scene.is_seed:
        whom = plural(state.num_newcomers, "newcomer")
        if not state.num_newcomers and state.num_readers:
            whom = plural(state.num_readers, "reader")
        served = f"{whom}, {bytes_text(state.served_bytes)}"
        return [f"Thank you, {scene.own_name}. Your seed was up for {took} and served {served}.", *_last_words(scene)]
    rounds = max(0, state.rounds_contributed - state.earlier_rounds)
    parts = [took, f"{count_text(scene.session_tokens)} tokens", _rounds(rounds, state.confirmed_rounds)]
    first, last = state.first_evaluation, state.evaluation
    if first is not None and last is not None:
        before = f"{loss_text(first.loss)} -> " if first.loss != last.loss else ""
        parts.append(f"validation loss {before}{loss_text(last.loss, scene.run.loss_unit)}")
    if state.earlier_tokens:
        parts[0] = f"This session: {took}"
        parts.append(f"{count_text(state.tokens)} tokens in all sessions")
    lines = [f"Thank you, {scene.own_name}. {' · '.join(parts)}"]
    if scene.own_page:
        lines.append(f"{PAGE}{scene.own_page}")
    return [*lines, *_last_words(scene)]


def _last_words(scene: Scene) -> list[str]:
    """Return what was not saved, and how to return. If the peer ended for good, the reason follows as the last line."""
    unsaved = "The newest work of this machine is not saved: the last checkpoint could not be written."
    lines = [unsaved] if scene.own.is_unsaved else []
    if scene.is_ended_for_good:
        return lines
    ended = f"The run {scene.run.name} has ended; its owner closed it."
    return [*lines, ended if scene.own.has_ended else f"{COMMAND}{comeback(scene)}"]


def comeback(scene: Scene) -> str:
    """Return the command for the next start; the data folder stores the addresses."""
    plain = f"peer {'seed' if scene.is_seed else 'join'} {scene.run.run_id}"
    return scene.same_again(scene.limits, scene.listening) or plain


def _rounds(num_rounds: int, num_confirmed: int) -> str:
    if not num_rounds:
        return "no round yet"
    if not num_confirmed:
        return f"{plural(num_rounds, 'round')} that no other machine shared"
    if num_confirmed >= num_rounds:
        return f"{plural(num_rounds, 'round')}, all confirmed" if num_rounds > 1 else "1 round, confirmed"
    return f"{plural(num_rounds, 'round')}, {num_confirmed} confirmed by others"


def age(at: float, now: float) -> str:
    """Return the age in one unit."""
    return age_text(round(now - at))


def capitalised(sentence: str) -> str:
    """Return the sentence with a capital first letter."""
    return sentence[:1].upper() + sentence[1:]
