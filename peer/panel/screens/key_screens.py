"""What a key brings up: details of this peer's rounds, addresses and help."""

from __future__ import annotations

from rich.text import Text

from dht.ground.quantities import (
    age_text,
    bit_rate_text,
    bytes_text,
    count_text,
    loss_text,
    plural,
    share_text,
    short_peer,
)
from peer.panel.scene.scene import Scene
from peer.panel.screens.text_lines_that_fit import ACCENT, CARE, DIM, GOOD, labelled, part, to_copy
from peer.view.own_view import OwnView

HELP = (
    ("q", "leave: your machine finishes its round, saves, says goodbye; again: leave at once"),
    ("p", "pause or go on; a paused machine still serves others"),
    ("l", "how much may go up and down your line, changed at once (u does the same)"),
    ("d", "details: work, loss, rounds, traffic, newest events"),
    ("i", "addresses of this machine, and the command that others join with"),
    ("?", "this page; the same key goes back"),
)
WORDS = (
    (
        "round",
        "an exchange with the others, averaged; it is confirmed once another machine signed for it",
    ),
    ("loss", "how badly the model guesses, in nats (bits are 1.44 times as many): lower is better"),
    ("token", "a piece of text: a letter, or a few of them"),
    (
        "rank",
        "place among those that this machine has met; the page ranks all, by confirmed work",
    ),
)


def help_screen(width: int, *, can_rest: bool) -> list[Text]:
    """The keys that there are, and the words of the panel."""
    lines = [part("Keys", "bold")]
    for key, what in HELP:
        if key == "p" and not can_rest:
            continue
        lines += labelled(key, [part(what)], width)
    lines += [Text(), part("Words", "bold")]
    for word, what in WORDS:
        lines += labelled(word, [part(what)], width)
    return lines


def addresses_screen(scene: Scene, command: str, now: float, width: int) -> list[Text]:
    """Where this machine is reached. Lines may be longer than `width`: what is to be copied has no break in it."""
    lines = [part("Others join this run through your machine with", "bold"), part(command, ACCENT), Text()]
    if not command:
        lines = [part("This machine has no address yet.", DIM)]
    lines += [part("Addresses", "bold"), *(part(one) for one in scene.addresses), Text()] if scene.addresses else []
    lines += labelled("Reached", [reached(scene, now)], width)
    lines.append(to_copy("Run id", part(scene.run.run_id), width))
    lines.append(to_copy("Peer id", part(scene.own.peer_id or "not known yet"), width))
    return lines


def reached(scene: Scene, now: float) -> Text:
    """Whether others can dial this machine, as the last one that tried says, and what to do if not."""
    checked = "" if scene.own.reachable_at is None else f", checked {age(scene.own.reachable_at, now)}"
    if scene.own.is_reachable and scene.own.is_private_path:
        return part(f"from the same private network{checked}; whether from outside is not known", DIM)
    if scene.own.is_reachable:
        return part(f"from outside ✓{checked}", GOOD)
    if scene.own.is_reachable is None:
        return part("no member has tried yet to reach this machine from outside", DIM)
    if scene.own.relays:
        return part(f"only through another member that relays{checked}", CARE)
    return part(f"nobody can reach this machine{checked}; forward its port in the router, or give --announce", CARE)


def details_screen(scene: Scene, now: float, width: int) -> list[Text]:
    """Figures of rounds and line, and the newest events in their own words."""
    lines: list[Text] = []
    for label, told in facts(scene, now):
        for index, line in enumerate(told):
            lines += labelled(label if index == 0 else "", [part(line)], width)
    lines.append(Text())
    for at, sentence in reversed(scene.own.recent):
        lines += labelled(age(at, now).removesuffix(" ago"), [part(sentence)], width)
    return lines


def facts(scene: Scene, now: float) -> list[tuple[str, list[str]]]:
    """Label and lines of what a peer knows of itself."""
    state, run = scene.own, scene.run
    last = "none yet" if state.last_round_at is None else age(state.last_round_at, now)
    rows = []
    if state.is_seed:
        rows.append(("Served", [f"{plural(state.num_newcomers, 'newcomer')}, {bytes_text(state.served_bytes)}"]))
    else:
        train = loss_text(state.train_loss)
        validation = loss_text(state.validation_loss)
        model = f"{state.device or 'not chosen yet'}, {count_text(state.num_parameters)} {run.trained}"
        waiting = f"{share_text(state.wait_fraction)} of the time waiting"
        speed = f"{count_text(state.tokens_per_second)} tokens/s, {waiting}"
        rows += [
            ("Device", [model, speed]),
            ("Work", [*work(state), f"as {short_peer(state.peer_id or '')}"]),
            ("Loss", [f"train {train}, validation {validation} {run.loss_unit}".rstrip()]),
        ]
    up, down = state.bits_per_second(now)
    rows += [
        ("Swarm", [f"{scene.others_here}; last round {last}", *_refusals(state, now)]),
        ("Run", [run_progress(scene), parts_averaged(state)]),
        (
            "Line",
            [
                f"up {bit_rate_text(up)} ({bytes_text(state.bytes_up)} in this session)",
                f"down {bit_rate_text(down)} ({bytes_text(state.bytes_down)} in this session)",
            ],
        ),
    ]
    return rows


def parts_averaged(state: OwnView) -> str:
    """How often the parts of the model have been averaged, since the run began."""
    if not state.versions:
        return "no part of the model is here yet"
    least, most = min(state.versions), max(state.versions)
    times = f"{least} times" if least == most else f"{least} to {most} times"
    if len(state.versions) == 1:
        return f"the model was averaged {times}"
    return f"the model's {len(state.versions)} parts were averaged {times} each"


def run_progress(scene: Scene) -> str:
    """What the swarm has committed, of its budget where it has one, and the learning rate."""
    state, tokens = scene.own, scene.committed_tokens
    done = count_text(tokens)
    if state.budget_tokens is None:
        progress = f"{done} tokens committed"
    else:
        progress = f"{share_text(tokens / state.budget_tokens)} of {count_text(state.budget_tokens)} tokens"
    return progress if state.learning_rate is None else f"{progress}, rate {state.learning_rate:.2g}"


def work(state: OwnView) -> list[str]:
    """Of this session, and with earlier sessions also altogether."""

    def line(tokens: int, inner_steps: int, rounds: int) -> str:
        return f"{count_text(tokens)} tokens in {plural(inner_steps, 'step')}, {plural(rounds, 'round')}"

    in_all = line(state.tokens, state.inner_steps, state.rounds_contributed)
    if not state.earlier_inner_steps and not state.earlier_rounds:
        return [in_all]
    session = line(
        max(0, state.tokens - state.earlier_tokens),
        max(0, state.inner_steps - state.earlier_inner_steps),
        max(0, state.rounds_contributed - state.earlier_rounds),
    )
    return [f"{session} in this session", f"{in_all} in all"]


def age(at: float, now: float) -> str:
    """How long ago, in one unit."""
    return age_text(round(now - at))


def _refusals(state: OwnView, now: float) -> list[str]:
    """One line about a remote that is left out now; none when nobody is. `peer status` has what was refused before."""
    left_out = [one for one in state.refusals if one.is_left_out(now)]
    if not left_out:
        return []
    others = f"; {len(left_out) - 1} more are left out" if len(left_out) > 1 else ""
    return [f"{left_out[0].sentence(now)}{others}"]
