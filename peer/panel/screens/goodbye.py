"""What stays on the terminal when a peer has left: thanks, what was given, where to see it, how to come back."""

from __future__ import annotations

from dht.ground.quantities import bytes_text, count_text, loss_text, plural, seconds_text
from peer.panel.scene.scene import Scene

PAGE, COMMAND = "Your page: ", "Come back: "
"""Before what is to be copied: such a line is not broken."""


def goodbye(scene: Scene, now: float) -> list[str]:
    """Sentences, one a line; none for a peer that never became a member."""
    if scene.own.joined_at is None:
        return []
    began_at = (scene.began_at if scene.is_seed else 0.0) or scene.own.joined_at
    took = seconds_text(round(max(0.0, now - began_at)))
    last = _last_words(scene)
    if scene.is_seed:
        state = scene.own
        whom = plural(state.num_newcomers, "newcomer")
        if not state.num_newcomers and state.num_readers:
            whom = plural(state.num_readers, "reader")
        served = f"{whom}, {bytes_text(state.served_bytes)}"
        return [f"Thank you, {scene.own_name}. Your seed was up for {took} and served {served}.", *last]
    state = scene.own
    rounds = max(0, state.rounds_contributed - state.earlier_rounds)
    parts = [took, f"{count_text(scene.session_tokens)} tokens", _rounds(rounds, scene.own.confirmed_rounds)]
    if scene.own.first_validation_loss is not None and state.validation_loss is not None:
        before = (
            f"{loss_text(scene.own.first_validation_loss)} -> "
            if scene.own.first_validation_loss != state.validation_loss
            else ""
        )
        parts.append(f"validation loss {before}{loss_text(state.validation_loss, scene.run.loss_unit)}")
    if state.earlier_tokens:
        parts[0] = f"This session: {took}"
        parts.append(f"{count_text(state.tokens)} tokens in all sessions")
    lines = [f"Thank you, {scene.own_name}. {' · '.join(parts)}"]
    row = scene.swarm.own_row
    if row is not None and row.tokens and scene.swarm.num_ranked > 1:
        lines.append(
            f"Of the {scene.swarm.num_ranked} people that this machine has met you are rank {row.rank}"
            f"{'; the page ranks everybody, by work that others confirmed' if scene.own_page else ''}."
        )
    if scene.own_page:
        lines.append(f"{PAGE}{scene.own_page}")
    return [*lines, *last]


def _last_words(scene: Scene) -> list[str]:
    """What was not saved, and how to come back. For good: the reason follows, as the last line on the terminal."""
    unsaved = "The newest work of this machine is not saved here: the last checkpoint could not be written."
    lines = [unsaved] if scene.own.is_unsaved else []
    if scene.is_ended_for_good:
        return lines
    ended = f"The run {scene.run.name} has ended; its owner closed it."
    return [*lines, ended if scene.own.has_ended else f"{COMMAND}{comeback(scene)}"]


def comeback(scene: Scene) -> str:
    """The command for the next time; the data folder remembers addresses."""
    plain = f"peer {'seed' if scene.is_seed else 'join'} {scene.run.run_id}"
    return scene.same_again(scene.limits, scene.listening) or plain


def _rounds(num_rounds: int, num_confirmed: int) -> str:
    if not num_rounds:
        return "no round yet"
    if not num_confirmed:
        return f"{plural(num_rounds, 'round')} that nobody else shared"
    if num_confirmed >= num_rounds:
        return f"{plural(num_rounds, 'round')}, all confirmed" if num_rounds > 1 else "1 round, confirmed"
    return f"{plural(num_rounds, 'round')}, {num_confirmed} confirmed by others"
