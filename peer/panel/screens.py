"""Pictures of a scene as lines of text: a trainer's, a seed's, the checklist, and the pages opened by keys. Pure.

Lines are at most `width` columns wide, except text to copy, which is never broken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from rich.text import Text

from dht.ground.quantities import (
    arrival_text,
    bytes_text,
    clock_text,
    count_text,
    loss_text,
    plural,
    seconds_text,
    share_text,
)
from peer.panel.checklist import LABELS, text_of
from peer.panel.key_bindings import Controls, mbit_text
from peer.panel.news import NewsLine
from peer.panel.scene import Scene
from peer.panel.sentences import ACCENT, CARE, DIM, GOOD, age, capitalised, doing, health
from peer.panel.text_lines import flowed, joined, labelled, num_rows, part, to_copy, wrapped
from peer.view.run_clock import arrival

SMALLEST = (40, 8)
"""Columns and lines of the smallest picture; a smaller terminal does not show the rest."""
TABLE_WIDTH, WIDEST_TABLE = 52, 90
"""Columns that the table of members needs, and its largest width for readable rows."""
WIDEST_CURVE = 60
PINNED_SECONDS = 600.0
"""Time for which a warning, e.g. of a full disk, stays on top."""
STEPS = "▁▂▃▄▅▆▇█"
_NEWS_STYLE = {"person": "", "own": ACCENT, "good": GOOD, "trouble": CARE, "note": CARE}

HELP = (
    ("q", "leave: your machine finishes its round and saves; press again to leave at once"),
    ("p", "pause or resume; a paused machine still serves others"),
    ("l", "limit the upload and download rates, with immediate effect"),
    ("i", "addresses of this machine, and the command that others join with"),
    ("?", "this page; press the key again to go back"),
)
WORDS = (
    ("round", "members exchange and average their work; confirmed once another machine has signed it"),
    ("loss", "how badly the model guesses, in nats (1 nat is 1.44 bits): lower is better"),
    ("token", "a piece of text: one or several letters"),
)


def screen(scene: Scene, controls: Controls, now: float, width: int, height: int) -> list[Text]:
    """Return the picture of a page. The painter leaves out the last lines if they do not fit into `height`."""
    width, height = max(SMALLEST[0], width), max(SMALLEST[1], height)
    if controls.page != "main":
        page = help_page(controls, width) if controls.page == "help" else addresses_page(scene, now, width)
        return [*_header(scene, now, width), Text(), *page]
    if not scene.loading.is_over:
        lines = _checklist(scene, width)
    else:
        lines = [*_header(scene, now, width), *(_seed if scene.is_seed else _trainer)(scene, now, width)]
        members = members_table(scene, width, (height - num_rows(lines, width)) // 2)
        lines += [Text(), *members] if members else []
    return [*lines, Text(), *news_lines(scene, width, height - num_rows(lines, width) - 1)]


def _header(scene: Scene, now: float, width: int) -> list[Text]:
    """Return the run, this peer's activity and its duration, and the owner's name."""
    words, style = doing(scene)
    began_at = {"paused": scene.resting_at, "training alone": scene.own.alone_at}.get(words, scene.own.joined_at)
    if scene.is_seed:
        words = "seed, leaving" if words == "leaving" else "seed" if words in ("serving", "alone") else words
        words, style, began_at = f"{words}, up", GOOD, scene.began_at or scene.own.joined_at
    words += " after" if words in ("left", "ended") else ""
    since = f" {seconds_text(round(max(0.0, now - began_at)))}" if began_at else ""
    parts = [joined([part("≋ ", ACCENT), part(scene.run.name, "bold")]), part(words + since, style)]
    parts.append(part(scene.own_name, ACCENT))
    return flowed(parts, width)


def _trainer(scene: Scene, now: float, width: int) -> list[Text]:
    state = scene.own
    # First, so that the smallest terminal shows it.
    lines = [] if state.phase == "left" else labelled("Now", [part(*health(scene, now))], width)
    rounds = [part(plural(state.rounds_contributed, "round"), ACCENT)] if state.tokens else []
    lines += labelled("You", [part(f"{count_text(state.tokens)} tokens", ACCENT), *rounds], width)
    lines += labelled("Speed", _speed_parts(scene, now), width)
    progress = goal_parts(scene, now, width)
    # The sentence above already states that no other member is present.
    is_alone = state.phase == "training alone" or scene.is_left_alone
    lines += labelled("Run", progress if progress and is_alone else [*progress, _people_here(scene)], width)
    lines += _page_line(scene, scene.marked_page, width)
    return [*lines, *_loss(scene, width)]


def _speed_parts(scene: Scene, now: float) -> list[Text]:
    state = scene.own
    words, style = doing(scene)
    has_left = state.phase == "left" or state.has_ended
    if has_left or scene.is_resting or not state.phase.startswith("training"):
        parts = [part(f"{'stopped; trained' if has_left else words} on {state.device}", style)]
    elif state.tokens_per_second <= 0:
        first = scene.phase if scene.is_compiling else "first steps"
        parts = [part(f"{'waiting for the next step' if scene.session_tokens else first} on {state.device}")]
    else:
        computing = max(0.0, 1.0 - state.wait_fraction)
        parts = [part(f"{count_text(state.tokens_per_second)} tokens/s on {state.device}")]
        parts.append(part(f"{share_text(computing)} computing", GOOD if computing > 0.9 else CARE))
    return [*parts, line_use(scene, now)]


def _people_here(scene: Scene) -> Text:
    swarm, others = scene.swarm, scene.num_others
    words = "no other machine here" if swarm.at else "looking for the others"
    if others or swarm.num_silent:
        words = scene.others_here
    if others and (num_paused := swarm.run.num_paused - scene.is_resting) > 0:
        words += f", {num_paused} paused"
    return part(words)


def _page_line(scene: Scene, page: str, width: int) -> list[Text]:
    """Return the line with the run's page; none if the run has no page."""
    return [to_copy("Page", part(page, "underline"), width)] if scene.run.page else []


def line_use(scene: Scene, now: float) -> Text:
    """Return the current use of the connection, and the owner's limits."""

    def words(sign: str, bits: float, most: float | None) -> str:
        return f"{sign} {bits / 1e6:.1f}" + ("" if most is None else f" of {mbit_text(most)}")

    up, down = scene.own.bits_per_second(now)
    return part(f"{words('↑', up, scene.limits.up_mbit)}  {words('↓', down, scene.limits.down_mbit)} Mbit/s")


def goal_parts(scene: Scene, now: float, width: int) -> list[Text]:
    """Return a bar to the run's goal with an estimate, or the tokens of a run without a goal; and its
    validation loss.
    """
    goal = scene.run.goal_tokens or scene.own.budget_tokens
    parts = []
    if goal:
        parts.append(bar(scene.view.committed_tokens / goal, width))
        when = "" if scene.own.has_ended else _arrival(scene, goal, now)
        parts += [part(when)] if when else []
    if scene.view.evaluation is not None:
        parts.append(part(f"validation loss {loss_text(scene.view.evaluation.loss)}"))
    if not goal and scene.view.committed_tokens:
        parts.append(part(f"{count_text(scene.view.committed_tokens)} tokens learned"))
    return parts


def bar(share: float, width: int) -> Text:
    """Return a bar with its percentage."""
    share = min(1.0, max(0.0, share))
    num = 17 if width >= 76 else 10
    full = int(share * num)
    return joined([part("█" * full, GOOD), part("░" * (num - full), DIM), part(f" {share_text(share)}")])


def _arrival(scene: Scene, goal: int, now: float) -> str:
    if scene.view.committed_tokens >= goal:
        return "goal reached"
    soonest_at, latest_at = arrival(scene.own.pace, goal - scene.view.committed_tokens, now)
    return "" if soonest_at is None else f"done {arrival_text(soonest_at, latest_at, now)}"


def _loss(scene: Scene, width: int) -> list[Text]:
    """Return the first, best and newest loss, and a line of bars."""
    state = scene.own
    if not state.losses or state.train_loss is None or not all(map(math.isfinite, state.losses)):
        return labelled("Loss", [part("the first value comes after a few steps", DIM)], width)
    means = [part(f"first {loss_text(state.losses[0])}"), part(f"best {loss_text(min(state.losses))}", GOOD)]
    now_is = [part("now "), part(loss_text(state.train_loss), ACCENT)]
    means.append(joined([*now_is, part(f" {scene.run.loss_unit}".rstrip(), DIM)]))
    bars = part(sparkline(state.losses, min(WIDEST_CURVE, width - 10)), "cyan")
    return [*labelled("Loss", means, width), *labelled("", [bars], width)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as at most `width` bars, oldest first; each is the mean of neighbours."""
    num = min(width, len(values))
    cuts = [len(values) * index // num for index in range(num + 1)]
    means = [sum(values[begin:end]) / (end - begin) for begin, end in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    scale = (len(STEPS) - 1) / (high - low) if high > low else 0.0
    return "".join(STEPS[round((mean - low) * scale)] for mean in means)


def members_table(scene: Scene, width: int, room: int) -> list[Text]:
    """Return the present trainers, one line each; nothing if there is only one."""
    rows = scene.swarm.rows
    if len(rows) < 2 or room < 4 or width < TABLE_WIDTH:
        return []
    name_width = max(12, min(width, WIDEST_TABLE) - 31)
    lines = [part(f"{'Name':<{name_width}}{'Tokens':>10}{'Tokens/s':>11}  Now", "bold")]
    for row in rows[: room - 1]:
        name = part(row.name or scene.name_of(row.peer_id), ACCENT if row.is_own else "")
        name.truncate(name_width - 1, overflow="ellipsis")
        speed = count_text(row.tokens_per_second) if row.tokens_per_second else ""
        figures = " " * (name_width - name.cell_len) + f"{count_text(row.tokens):>10}{speed:>11}  "
        state = part(row.doing, GOOD if row.doing == "training" else CARE if row.doing == "paused" else DIM)
        lines.append(joined([name, part(figures, ACCENT if row.is_own else ""), state]))
    return lines


def news_lines(scene: Scene, width: int, room: int) -> list[Text]:
    """Return the newest news first, each complete, as many as fit into `room` lines."""
    lines: list[Text] = []
    for news in _newest_first(scene):
        # A name at the beginning of a line keeps its owner's spelling.
        text = capitalised(news.text)
        text = text if news.remote is None else text.replace("{who}", scene.name_of(news.remote))
        told = wrapped(part(text, _NEWS_STYLE[news.kind]), width - 6)
        if len(lines) + len(told) > room:
            break
        at = part(f"{clock_text(news.at)[:5]} ", DIM)
        lines += [joined([at if index == 0 else Text(" " * 6), line]) for index, line in enumerate(told)]
    return lines


def _newest_first(scene: Scene) -> list[NewsLine]:
    """Return news in display order: a warning after joining stays on top for a while."""
    news = list(reversed(scene.news))
    pinned = next((line for line in news if line.kind == "note"), None)
    since = scene.own.joined_at
    if pinned is None or since is None or pinned.at <= since or news[0].at - pinned.at > PINNED_SECONDS:
        return news
    return [pinned, *(line for line in news if line is not pinned)]


def _seed(scene: Scene, now: float, width: int) -> list[Text]:
    """Return a seed's picture: the join command, served data, and the state of the swarm."""
    state, command = scene.own, scene.join_command
    lines = [Text(), part(scene.join_heading, "bold"), part(command, ACCENT), Text()] if command else []
    gave = [part(bytes_text(state.served_bytes), ACCENT)]
    if state.num_newcomers or not state.num_readers:
        gave.insert(0, part(plural(state.num_newcomers, "newcomer"), ACCENT))
    if state.num_readers:
        gave.append(part(f"{plural(state.num_readers, 'reader')} (pages, exports)"))
    lines += labelled("Served", [*gave, line_use(scene, now)], width)
    if state.relaying == "full":
        lines += labelled("Relays", [part("for members that cannot be dialled")], width)
    lines += labelled("Reached", [reached(scene, now)], width)
    last = "no round yet" if state.last_round_at is None else f"last round {age(state.last_round_at, now)}"
    lines += labelled("Swarm", [part(f"{scene.num_training} training"), part(last)], width)
    lines += labelled("Run", goal_parts(scene, now, width) or [part("nothing learned yet", DIM)], width)
    is_cut_off = state.phase == "alone" or not (scene.has_network or scene.num_others)
    if is_cut_off or (scene.lone_rounds and scene.swarm.num_other_trainers > 1):
        lines += labelled("", [part(*health(scene, now))], width)
    return [*lines, *_page_line(scene, scene.run.page, width)]


def _checklist(scene: Scene, width: int) -> list[Text]:
    """Return the finished, current and remaining steps until this peer is a member."""
    words = "opening as a seed" if scene.is_seed else "joining"
    lines = [joined([part("≋ ", ACCENT), part(scene.run.name, "bold"), part(" · ", DIM), part(words, CARE)]), Text()]
    for step in scene.loading.lines:
        sign, style = ("✓", GOOD) if step.is_done else ("›", CARE) if step.is_begun else ("·", DIM)
        detail = wrapped(part(text_of(step), CARE if step.is_waiting else ""), width - 13)
        begin = [part(f" {sign} ", style), part(f"{LABELS[step.name]:<10}", "" if step.is_begun else DIM)]
        lines += [joined([*(begin if index == 0 else [Text(" " * 13)]), text]) for index, text in enumerate(detail)]
    if scene.is_seed and (command := scene.join_command):
        lines += [Text(), part(scene.join_heading, "bold"), part(command, ACCENT)]
    return lines


def help_page(controls: Controls, width: int) -> list[Text]:
    """Return the available keys and the words of the panel."""
    lines = [part("Keys", "bold")]
    for key, text in HELP:
        if key != "p" or controls.can_rest:
            lines += labelled(key, [part(text)], width)
    lines += [Text(), part("Words", "bold")]
    for word, text in WORDS:
        lines += labelled(word, [part(text)], width)
    return lines


def addresses_page(scene: Scene, now: float, width: int) -> list[Text]:
    """Return the page with this machine's addresses."""
    command = scene.join_command
    lines = [part("Others join this run through your machine with", "bold"), part(command, ACCENT), Text()]
    if not command:
        lines = [part("This machine has no address yet.", DIM)]
    lines += [part("Addresses", "bold"), *map(part, scene.addresses), Text()] if scene.addresses else []
    lines += labelled("Reached", [reached(scene, now)], width)
    lines.append(to_copy("Run id", part(scene.run.run_id), width))
    lines.append(to_copy("Peer id", part(scene.own.peer_id or "not known yet"), width))
    return lines


def reached(scene: Scene, now: float) -> Text:
    """Return whether others can dial this machine, according to the last member that tried, and what to do if not."""
    own = scene.own
    checked = "" if own.reachable_at is None else f", checked {age(own.reachable_at, now)}"
    if own.is_reachable and own.is_private_path:
        return part(f"from the same private network{checked}; from outside: unknown", DIM)
    if own.is_reachable:
        return part(f"from outside ✓{checked}", GOOD)
    if own.is_reachable is None:
        return part("no member has tried to reach this machine from outside yet", DIM)
    if own.relays:
        return part(f"only through a member that relays{checked}", CARE)
    return part(f"no member can reach this machine{checked}; forward its port in the router, or use --announce", CARE)
