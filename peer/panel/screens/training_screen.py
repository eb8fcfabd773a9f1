"""What a trainer's owner sees: own work, speed, the run's way to its goal, the loss, news and people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text

from dht.ground.quantities import (
    arrival_text,
    clock_text,
    count_text,
    loss_text,
    plural,
    seconds_text,
    share_text,
    short_time,
    until_text,
)
from peer.panel.scene.key_bindings import mbit_text
from peer.panel.scene.news import NewsLine, next_milestone
from peer.panel.scene.scene import Scene
from peer.panel.screens.curve import curve
from peer.panel.screens.health_sentence import health, is_alone
from peer.panel.screens.text_lines_that_fit import (
    ACCENT,
    CARE,
    DIM,
    GOOD,
    beside,
    ends,
    joined,
    labelled,
    num_rows,
    part,
    to_copy,
    wrapped,
)
from peer.run_clock import arrival
from peer.view.swarm_seen import SHARE_SECONDS, SHARE_STEP_SECONDS, PersonSeen

TWO_COLUMNS = 120
"""Columns from which curve and news stand beside the figures."""
TALL = 40
"""Lines from which there is a table of people."""
BRIEF = 14
"""Lines below which there is room for the first figures alone."""
WIDE_HEADER = 76
"""Columns from which the rank is told with its time; the share of the last hour stands below it."""
LOW = 60
"""Columns below which there is no room for a curve beside its labels."""
TABLE_WIDTH, WIDEST_TABLE = 52, 90
"""Columns that the table of people needs, and beyond which an eye loses its row."""
LONE_SHARE = 0.02
"""Of a session's work, in rounds of one member, from which it is told: a late round now and then is no news."""
FEWEST_LOSSES = 8
"""Of a curve that says something."""
PINNED_SECONDS = 600.0
"""A warning, e.g. of a full disk, stays on top for this long, whatever else happens."""
_NEWS_STYLE = {"person": "", "own": ACCENT, "good": GOOD, "trouble": CARE, "note": CARE}


def training_screen(scene: Scene, now: float, width: int, height: int, *, ascii_only: bool = False) -> list[Text]:
    """At most `height` lines of at most `width` columns; what does not fit any more is left out whole."""
    head = header(scene, now, width)
    if width >= TWO_COLUMNS:
        head += page_line(scene, width)
        left_width = (width - 4) // 2
        left = [*_figures(scene, now, left_width), Text()]
        right_width = width - left_width - 4
        right = _loss(scene, right_width, max(6, min(24, (height - 6) // 2)), ascii_only=ascii_only)
        room = height - len(head) - 2
        left += people_table(scene, left_width, room - len(left))
        right += [Text(), *news_lines(scene, right_width, room - len(right) - 1)]
        return [*head, Text(), *beside(left[:room], right[:room], left_width, 4)]
    figures = _figures(scene, now, width, is_brief=height < BRIEF)
    room = height - len(head) - len(figures) - 2
    curve_height = 0 if width < LOW else max(4, min(10, room - 6)) if room >= 9 else 0
    shown = [*head, *figures, *page_line(scene, width), *_loss(scene, width, curve_height, ascii_only=ascii_only)]
    if height >= TALL:
        people = people_table(scene, width, (height - len(shown)) // 2)
        shown += [Text(), *people] if people else []
    return [*shown, Text(), *news_lines(scene, width, height - num_rows(shown, width) - 1)]


def header(scene: Scene, now: float, width: int) -> list[Text]:
    """Run, what this peer does, for how long; who its owner is and which rank they have."""
    words, style = doing(scene)
    words += " after" if words in ("left", "ended") else ""
    began_at = {"paused": scene.resting_at, "training alone": scene.own.alone_at}.get(words, scene.own.joined_at)
    since = f" {seconds_text(round(max(0.0, now - began_at)))}" if began_at else ""
    left = joined([part("≋ ", ACCENT), part(scene.run.name, "bold"), part(" · ", DIM), part(words + since, style)])
    row, num_ranked = scene.swarm.own_row, scene.swarm.num_ranked
    row = row if row is not None and row.tokens else None  # no work, no rank
    since_when = ", whole run" if width >= WIDE_HEADER else ""
    # Not of how many: people met are no machines here, and two counts on one screen would seem to disagree.
    rank = f" · rank {row.rank}{since_when}" if row is not None and num_ranked > 1 else ""
    right = [part(scene.own_name, ACCENT), part(rank)]
    if rank and row is not None and scene.first_rank is not None and scene.first_rank != row.rank:
        moved = scene.first_rank - row.rank
        right.append(part(f" {'▲' if moved > 0 else '▼'}{abs(moved)}", GOOD if moved > 0 else CARE))
    return ends(left, joined(right), width)


def doing(scene: Scene) -> tuple[str, str]:
    """What the peer does, in a word or two, and the style of that."""
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


def _figures(scene: Scene, now: float, width: int, *, is_brief: bool = False) -> list[Text]:
    state, swarm = scene.own, scene.swarm
    work = [
        part(scene.own_work, ACCENT),
        *([part(plural(state.rounds_contributed, "round"), ACCENT)] if state.tokens else []),
    ]
    if scene.lone_tokens >= LONE_SHARE * max(1, scene.session_tokens) and not is_brief:
        session = f"this session's {count_text(scene.session_tokens)}" if state.earlier_tokens else "it"
        alone = f"{count_text(scene.lone_tokens)} of {session} alone"
        work.append(part(f"{alone}; the page counts what others confirmed", DIM))
    here_seconds = 0.0 if scene.own.joined_at is None else now - scene.own.joined_at
    if swarm.share_of_hour is not None and here_seconds >= SHARE_STEP_SECONDS and not is_brief:
        whole = "of the last hour's work" if here_seconds >= SHARE_SECONDS else "of the work since you joined"
        work.append(joined([part(share_text(swarm.share_of_hour), ACCENT), part(f" {whole}")]))
    lines = labelled("You", work, width, part("" if is_brief else _milestone(scene), DIM))
    words, style = doing(scene)
    has_left = state.phase == "left" or scene.own.has_ended
    if has_left or scene.is_resting or not state.phase.startswith("training"):
        speed = [part(f"{'stopped; it trained' if has_left else words} on {state.device}", style)]
    elif state.tokens_per_second <= 0:
        first = scene.phase if scene.is_compiling else "first steps"
        speed = [part(f"{'waiting for the next step' if scene.session_tokens else first} on {state.device}")]
    else:
        computing = max(0.0, 1.0 - state.wait_fraction)
        speed = [part(f"{count_text(state.tokens_per_second)} tokens/s on {state.device}")]
        speed.append(part(f"{share_text(computing)} computing", GOOD if computing > 0.9 else CARE))
    lines += labelled("Speed", speed[:1] if is_brief else speed, width, part("") if is_brief else line_use(scene, now))
    progress = goal_parts(scene, now, width)[: 1 if is_brief else None]
    others = scene.num_others
    nobody = "nobody else here" if swarm.at else "looking for the others"
    here = scene.others_here if others or swarm.num_silent else nobody
    if others and swarm.num_countries > 1:
        here += f", {swarm.num_countries} countries"
    num_resting = swarm.run.num_paused - scene.is_resting
    resting = f", {num_resting} paused" if others and num_resting > 0 else ""
    # That nobody else is here is said in the sentence below.
    told = progress if progress and (is_alone(scene) or scene.is_left_alone) else [*progress, part(here + resting)]
    lines += labelled("Run", told, width)
    if state.phase != "left":
        lines += labelled("", [health(scene, now)], width)
    return lines


def page_line(scene: Scene, width: int) -> list[Text]:
    """Where the owner is seen on the run's page."""
    if not scene.run.page:
        return []
    return [to_copy("Page", part(scene.marked_page, "underline"), width)]


def _milestone(scene: Scene) -> str:
    state = scene.own
    if not state.tokens or scene.own.has_ended or state.phase == "left":
        return ""
    goal = next_milestone(state.tokens)
    if state.tokens_per_second <= 0 or scene.is_resting:
        return f"next milestone {count_text(goal)}"
    return f"next milestone {count_text(goal)}, ~{short_time((goal - state.tokens) / state.tokens_per_second)}"


def line_use(scene: Scene, now: float) -> Text:
    """What goes up and down the line now, of what the owner allows."""
    up, down = (bits / 1e6 for bits in scene.own.bits_per_second(now))

    def one(sign: str, mbit: float, most: float | None) -> str:
        return f"{sign} {mbit:.1f}" + ("" if most is None else f" of {mbit_text(most)}")

    return part(f"{one('↑', up, scene.limits.up_mbit)}  {one('↓', down, scene.limits.down_mbit)} Mbit/s")


def goal_parts(scene: Scene, now: float, width: int) -> list[Text]:
    """A bar to the run's goal with an estimate, where it has one; what it has done, where it has none; and its loss."""
    state, run = scene.own, scene.run
    goal = run.goal_tokens or state.budget_tokens
    loss = scene.validation_loss
    told = []
    if goal:
        told.append(bar(scene.committed_tokens / goal, width))
        when = "" if scene.own.has_ended else _arrival(scene, goal, now)
        if when:
            told.append(part(when))
    elif run.goal_until is not None:
        told.append(part(until_text(run.goal_until, now)))
    if loss is not None:
        aim = f", goal {loss_text(run.goal_loss)}" if run.goal_loss is not None else ""
        told.append(part(f"validation loss {loss_text(loss)}{aim}"))
    if not goal and scene.committed_tokens:
        told.append(part(f"{count_text(scene.committed_tokens)} tokens learned"))
    return told


def bar(share: float, width: int) -> Text:
    """A bar with its percentage."""
    share = min(1.0, max(0.0, share))
    num = 17 if width >= 76 else 10
    full = int(share * num)
    return joined([part("█" * full, GOOD), part("░" * (num - full), DIM), part(f" {share_text(share)}")])


def _arrival(scene: Scene, goal: int, now: float) -> str:
    if scene.committed_tokens >= goal:
        return "goal reached"
    soonest_at, latest_at = arrival(scene.own.pace, goal - scene.committed_tokens, now)
    return "" if soonest_at is None else f"done {arrival_text(soonest_at, latest_at, now)}"


def _loss(scene: Scene, width: int, height: int, *, ascii_only: bool) -> list[Text]:
    """What the loss was first, at best and is now, and its curve."""
    state = scene.own
    now_at = state.train_loss
    if not state.losses or scene.own.losses_at is None or now_at is None or not all(map(math.isfinite, state.losses)):
        return labelled("Loss", [part("the first one comes after a few steps", DIM)], width)
    means = [part(f"first {loss_text(state.losses[0])}"), part(f"best {loss_text(min(state.losses))}", GOOD)]
    means.append(joined([part("now "), part(loss_text(now_at), ACCENT), part(f" {scene.run.loss_unit}".rstrip(), DIM)]))
    lines = labelled("Loss", means, width)
    dots = (
        curve(state.losses, scene.own.losses_at, width, height, ascii_only=ascii_only)
        if len(state.losses) >= FEWEST_LOSSES
        else []
    )
    return [*lines, *(part(line, "cyan") for line in dots[:-1]), *(part(line, DIM) for line in dots[-1:])]


def news_lines(scene: Scene, width: int, room: int) -> list[Text]:
    """The newest news first, each whole, as many as `room` lines hold."""
    lines: list[Text] = []
    for one in _newest_first(scene):
        told = wrapped(_said(scene, one), width - 6)
        if len(lines) + len(told) > room:
            break
        at = part(f"{clock_text(one.at)[:5]} ", DIM)
        lines += [joined([at if index == 0 else Text(" " * 6), line]) for index, line in enumerate(told)]
    return lines


def _newest_first(scene: Scene) -> list[NewsLine]:
    """News in the order in which they are shown: a warning that came after joining stays on top for a while."""
    news = list(reversed(scene.news))
    pinned = next((one for one in news if one.kind == "note"), None)
    since = scene.own.joined_at
    if pinned is None or since is None or pinned.at <= since or news[0].at - pinned.at > PINNED_SECONDS:
        return news
    return [pinned, *(one for one in news if one is not pinned)]


def _said(scene: Scene, one: NewsLine) -> Text:
    # A name that begins a line stays as its owner writes it.
    text = one.text[:1].upper() + one.text[1:]
    told = text if one.remote is None else text.replace("{who}", scene.name_of(one.remote))
    return part(told, _NEWS_STYLE[one.kind])


def people_table(scene: Scene, width: int, room: int) -> list[Text]:
    """The ranking as far as it is heard of, one line each; nothing while there is nobody to compare with."""
    rows = scene.swarm.rows
    if len(rows) < 2 or room < 4 or width < TABLE_WIDTH:
        return []
    shown: Sequence[PersonSeen] = rows[: room - 1]
    own = scene.swarm.own_row
    if own is not None and own not in shown:
        shown = [*shown[:-1], own]
    name_width = max(12, min(width, WIDEST_TABLE) - 36)
    lines = [part(f"{'Rank':>4} {'Name':<{name_width}}{'Tokens':>10}{'Tokens/s':>11}  Now", "bold")]
    for row in shown:
        name = part(row.name or scene.name_of(row.peer_id))
        name.truncate(name_width - 1, overflow="ellipsis")
        style = ACCENT if row.is_own else ""
        speed = count_text(row.tokens_per_second) if row.tokens_per_second else ""
        figures = f"{count_text(row.tokens):>10}{speed:>11}  "
        doing = row.doing
        state = part(doing, GOOD if row.doing == "training" else CARE if row.doing == "paused" else DIM)
        pad = " " * (name_width - name.cell_len)
        lines.append(joined([part(f"{row.rank:>4} ", style), name, part(pad + figures, style), state]))
    return lines
