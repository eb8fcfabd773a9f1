"""What a seed's owner sees: the command that others join with, what it gave, and how the swarm is."""

from __future__ import annotations

from rich.text import Text

from dht.ground.quantities import bytes_text, plural, seconds_text
from peer.panel.scene.scene import Scene
from peer.panel.screens.health_sentence import health, lone_words
from peer.panel.screens.key_screens import age, reached
from peer.panel.screens.text_lines_that_fit import (
    ACCENT,
    CARE,
    DIM,
    GOOD,
    ends,
    joined,
    labelled,
    num_rows,
    part,
    to_copy,
)
from peer.panel.screens.training_screen import (
    goal_parts,
    line_use,
    news_lines,
    people_table,
)

TALL = 40
NUM_RELAYED_NAMES = 4
"""Of homes that are named, so that they fit two lines of 60 columns."""


def seed_screen(scene: Scene, now: float, width: int, height: int) -> list[Text]:
    """At most `height` lines. One of them may be longer than `width`: a command to be copied has no break in it."""
    state = scene.own
    up_since = scene.began_at or scene.own.joined_at
    since = "" if up_since is None else f", up {seconds_text(round(max(0.0, now - up_since)))}"
    words = "seed" if state.phase in ("serving", "alone") else state.phase
    words += ", leaving" if scene.leaving and state.phase != "left" else ""
    left = joined([part("≋ ", ACCENT), part(scene.run.name, "bold"), part(" · ", DIM), part(words + since, GOOD)])
    lines = ends(left, part("open for newcomers; does not train", DIM), width)
    command = scene.join_command
    if command:
        lines += [Text(), part(scene.join_heading, "bold"), part(command, ACCENT), Text()]
    nobody_new = state.num_readers and not state.num_newcomers
    gave = [] if nobody_new else [part(plural(state.num_newcomers, "newcomer"), ACCENT)]
    gave += [part(bytes_text(state.served_bytes), ACCENT)]
    if state.num_readers:
        gave.append(part(f"{plural(state.num_readers, 'reader')} (pages, exports)"))
    lines += labelled("Served", gave, width, line_use(scene, now))
    if scene.own.relaying == "full" or scene.swarm.relayed:
        lines += labelled("Relays", [_relayed(scene)], width)
    lines += labelled("Reached", [reached(scene, now)], width)
    parts = [
        part(f"{scene.num_training} training"),
        part("no round yet" if scene.own.last_round_at is None else f"last round {age(scene.own.last_round_at, now)}"),
    ]
    if state.versions:
        held = sum(version > 0 or scene.own.joined_at is not None for version in state.versions)
        parts.append(part(f"state complete, {held} of {len(state.versions)} parts", GOOD))
    lines += labelled("Swarm", parts, width)
    lines += labelled("Run", goal_parts(scene, now, width) or [part("nothing learned yet", DIM)], width)
    if state.phase == "alone" or not (scene.has_network or scene.num_others):
        lines += labelled("", [health(scene, now)], width)
    elif scene.lone_rounds and scene.swarm.num_other_trainers > 1:
        lines += labelled("", [part(lone_words(scene), CARE)], width)
    if scene.run.page:
        lines.append(to_copy("Page", part(scene.run.page, "underline"), width))
    if height >= TALL:
        people = people_table(scene, width, (height - num_rows(lines, width)) // 2)
        lines += [Text(), *people] if people else []
    return [*lines, Text(), *news_lines(scene, width, height - num_rows(lines, width) - 1)]


def _relayed(scene: Scene) -> Text:
    """The homes that others reach through this machine alone."""
    names = [scene.name_of(one) for one in scene.swarm.relayed]
    if not names:
        return part("for nobody now; homes that nobody can dial may come through this machine", DIM)
    more = f" and {len(names) - NUM_RELAYED_NAMES} more" if len(names) > NUM_RELAYED_NAMES else ""
    homes = plural(len(names), "home")
    return part(f"for {homes} that nobody can dial: {', '.join(names[:NUM_RELAYED_NAMES])}{more}")
