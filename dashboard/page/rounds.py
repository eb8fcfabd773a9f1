"""Rounds as they happen: a lane per peer, how stale each fragment is, and how well rounds go."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from dashboard.facts import AgeAt, FragmentAges, HistoryView, LaneFacts, RoundFacts
from dashboard.observe.state import DashboardState, FragmentRow, RoundRow
from dashboard.page.parts import age, empty, whole_text
from peer.quantities import count_text, plural, seconds_text, short_peer

MAX_LANES: Final = 16
MAX_TIMELINE_ROUNDS: Final = 40
MAX_TIMELINE_SECONDS: Final = 180.0
MAX_STRIP_ROWS: Final = 24
MAX_STRIP_LOOKS: Final = 60
MAX_ROUNDS_SHOWN: Final = 12
MAX_REASONS: Final = 6

PHASES: Final = (
    ("compute", "computes"),
    ("send", "sends"),
    ("receive", "receives"),
    ("apply", "applies"),
    ("exchange", "takes part in a round"),
)
LAGS: Final = ((0, "current"), (1, "1 behind"), (2, "2 behind"), (4, "3 or 4 behind"), (math.inf, "5 or more behind"))
"""(largest lag in versions, what it is called); the index is the heat."""
_WIDTH: Final = 1000.0


# The timeline


@dataclass(frozen=True, slots=True)
class _Block:
    kind: str
    begin: float
    end: float


def timeline(state: DashboardState, history: HistoryView) -> str:
    """One lane per peer over the newest rounds."""
    blocks = _blocks(history.rounds, state.lanes)
    if not blocks:
        return empty(
            "No round has been seen yet. From the first one on, each peer has a lane here: what it computes, sends, "
            "receives and applies."
        )
    names = _names(state)
    end = max(block.end for found in blocks.values() for block in found)
    begin = min(block.begin for found in blocks.values() for block in found)
    begin = max(begin, end - MAX_TIMELINE_SECONDS)
    span = max(1.0, end - begin)
    # Lanes keep their places while the page is open: the order does not depend on who was in the newest round.
    shown = sorted(sorted(blocks, key=lambda peer_id: (-len(blocks[peer_id]), peer_id))[:MAX_LANES])
    lanes = "".join(
        f'<div class="lane"><span class="who"><bdi>{escape(names.get(peer_id) or short_peer(peer_id))}</bdi></span>'
        f'<svg viewBox="0 0 {_WIDTH:.0f} 20" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(_lane_sentence(blocks[peer_id], span))}">'
        f'<rect class="track" width="{_WIDTH:.0f}" height="20"/>{_drawn(blocks[peer_id], begin, span)}</svg></div>'
        for peer_id in shown
    )
    kinds = {block.kind for found in blocks.values() for block in found}
    keys = "".join(f'<span class="key {kind}">{text}</span>' for kind, text in PHASES if kind in kinds)
    more = len(blocks) - len(shown)
    note = f'<span class="quiet">{plural(more, "more peer")} not drawn</span>' if more > 0 else ""
    return (
        f'<div class="lanes">{lanes}<div class="lane scale" aria-hidden="true"><span></span>'
        f"<p><span>{seconds_text(round(span))} before</span><span>newest round {age(end)}</span></p></div></div>"
        f'<p class="legend">{keys}{note}</p>'
    )


def _blocks(rounds: Sequence[RoundFacts], lanes: Sequence[LaneFacts]) -> dict[str, list[_Block]]:
    found: dict[str, list[_Block]] = {}
    for lane in lanes:
        found.setdefault(lane.peer_id, []).extend(_lane_blocks(lane))
    tellers = set(found)
    for row in rounds[:MAX_TIMELINE_ROUNDS]:
        told = tellers | {lane.peer_id for lane in row.lanes}
        for lane in row.lanes:
            found.setdefault(lane.peer_id, []).extend(_lane_blocks(lane))
        # Of those who tell no times only the round itself is known.
        began = row.seen_at - (row.duration_seconds or 0.0)
        for peer_id in row.contributors:
            if peer_id not in told:
                found.setdefault(peer_id, []).append(_Block("exchange", began, row.seen_at))
    return found


def _lane_blocks(lane: LaneFacts) -> list[_Block]:
    at, blocks = lane.started_at, []
    for kind, seconds in (
        ("compute", lane.compute_seconds),
        ("send", lane.send_seconds),
        ("receive", lane.receive_seconds),
        ("apply", lane.apply_seconds),
    ):
        if seconds > 0:
            blocks.append(_Block(kind, at, at + seconds))
            at += seconds
    return blocks


def _drawn(blocks: Sequence[_Block], begin: float, span: float) -> str:
    """One path per kind: a lane of many rounds stays small."""
    paths: dict[str, str] = {}
    for block in blocks:
        if block.end < begin:
            continue
        x = _WIDTH * (max(block.begin, begin) - begin) / span
        # Three units are always visible, however short it was.
        width = max(3.0, _WIDTH * (block.end - max(block.begin, begin)) / span)
        paths[block.kind] = paths.get(block.kind, "") + f"M{min(x, _WIDTH - width):.0f} 0h{width:.1f}v20h-{width:.1f}z"
    return "".join(f'<path class="{kind}" d="{paths[kind]}"/>' for kind, _ in PHASES if kind in paths)


def _lane_sentence(blocks: Sequence[_Block], span: float) -> str:
    totals: Counter[str] = Counter()
    for block in blocks:
        totals[block.kind] += round(block.end - block.begin)
    parts = [f"{text} {seconds_text(totals[kind])}" for kind, text in PHASES if kind in totals and kind != "exchange"]
    number = max(Counter(block.kind for block in blocks).values())
    return f"{plural(number, 'round')} in {seconds_text(round(span))}" + (f": {', '.join(parts)}" if parts else "")


def _names(state: DashboardState) -> Mapping[str, str]:
    return {str(row.record.peer_id): row.record.name for row in state.peers}


# The staleness strip


def strip(state: DashboardState, history: HistoryView) -> str:
    """A row of cells per fragment, a cell per look: how far the slowest live peer was behind."""
    rows = [row for row in history.fragments if row.strip]
    table = _fragment_table(state, history)
    if not rows:
        return table or empty("No peer has announced its fragments yet.")
    # The most stale first when there are too many to draw.
    shown = sorted(sorted(rows, key=_staleness, reverse=True)[:MAX_STRIP_ROWS], key=lambda row: row.fragment)
    drawn = "".join(_strip_row(row) for row in shown)
    keys = "".join(f'<span class="key heat-{index}">{text}</span>' for index, (_, text) in enumerate(LAGS))
    more = len(rows) - len(shown)
    note = f'<span class="quiet">{plural(more, "fresher fragment")} not drawn</span>' if more else ""
    return (
        f'<div class="strip">{drawn}</div><p class="legend">{keys}{note}</p>'
        '<p class="quiet">A column per look, newest on the right; a peer shows the versions it had when it last wrote '
        f'its record.</p><details id="fragments-table"><summary>Show as table</summary>{table}</details>'
    )


def _staleness(row: FragmentAges) -> tuple[int, float]:
    return row.strip[-1].largest_lag, row.strip[-1].mean_lag


def heat(lag: int) -> int:
    """Which of `LAGS` a lag belongs to."""
    return next(index for index, (largest, _) in enumerate(LAGS) if lag <= largest)


def _strip_row(row: FragmentAges) -> str:
    cells = row.strip[-MAX_STRIP_LOOKS:]
    left = MAX_STRIP_LOOKS - len(cells)
    parts, index = [], 0
    while index < len(cells):
        # Equal neighbours are one rectangle: most of a healthy strip is.
        stop = index
        while stop < len(cells) and cells[stop].largest_lag == cells[index].largest_lag:
            stop += 1
        parts.append(
            f'<rect class="heat-{heat(cells[index].largest_lag)}" x="{left + index}" width="{stop - index}" '
            f'height="1"><title>{_cell_text(cells[stop - 1])}</title></rect>'
        )
        index = stop
    label = f"Fragment {row.fragment}: {_cell_text(cells[-1])}"
    return (
        f'<div class="lane"><span class="who">{row.fragment}</span><svg viewBox="0 0 {MAX_STRIP_LOOKS} 1" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f'<rect class="track" width="{MAX_STRIP_LOOKS}" height="1"/>{"".join(parts)}</svg></div>'
    )


def _cell_text(cell: AgeAt) -> str:
    if not cell.largest_lag:
        return f"{plural(cell.num_peers, 'peer')}, all current"
    return (
        f"of {plural(cell.num_peers, 'peer')} the last is {plural(cell.largest_lag, 'version')} behind, "
        f"{cell.mean_lag:.1f} on average"
    )


def _fragment_table(state: DashboardState, history: HistoryView) -> str:
    if not state.fragments:
        return ""
    names = _names(state)
    behind = {row.fragment: row.ages for row in history.fragments}
    body = "".join(_fragment_row(row, behind.get(row.fragment, ()), names) for row in state.fragments)
    return (
        '<table class="stack"><thead><tr><th scope="col">Fragment</th><th scope="col" class="number">Version</th>'
        '<th scope="col" class="number">Peers at it</th><th scope="col">Furthest behind</th>'
        f'<th scope="col">Anchors</th></tr></thead><tbody>{body}</tbody></table>'
    )


def _fragment_row(row: FragmentRow, ages: Sequence[tuple[str, int]], names: Mapping[str, str]) -> str:
    if ages:
        peer_id, lag = ages[0]
        last = f"<bdi>{escape(names.get(peer_id) or short_peer(peer_id))}</bdi>, {count_text(lag)}"
    else:
        last = count_text(row.largest_lag) if row.largest_lag else "–"
    anchors = (
        f'<span class="state silent">{plural(row.num_forked, "peer")} differ</span>'
        if row.num_forked
        else '<span class="state training">equal</span>'
    )
    return (
        f'<tr><th scope="row"><span class="only-phone">Fragment </span>{row.fragment}</th>'
        f'<td data-label="Version" class="number">{count_text(row.version)}</td>'
        f'<td data-label="Peers at it" class="number">{row.num_current} of {row.num_peers}</td>'
        f'<td data-label="Furthest behind">{last}</td><td data-label="Anchors">{anchors}</td></tr>'
    )


# Round health


def health(state: DashboardState, history: HistoryView) -> str:
    """How the newest rounds went, with the reasons for what was left out, in words."""
    rounds = history.rounds
    if not rounds:
        return empty("No signed round has been collected yet. Once there is one, this says how rounds go and why not.")
    whole = sum(not row.num_missed and not row.num_void_shards for row in rounds)
    durations = [row.duration_seconds for row in rounds if row.duration_seconds is not None]
    if not durations:
        durations = [lane.send_seconds + lane.receive_seconds + lane.apply_seconds for lane in state.lanes]
    facts = [
        ("complete", f"{100 * whole / len(rounds):.0f} %", f"{whole} of the newest {len(rounds)}"),
        ("contributors", f"{statistics.mean(len(row.contributors) for row in rounds):.1f}", "in a round, on average"),
    ]
    if durations:
        slow = sorted(durations)[max(0, math.ceil(0.95 * len(durations)) - 1)]
        facts.append(
            ("an exchange took", seconds_text(statistics.median(durations)), f"19 of 20 within {seconds_text(slow)}")
        )
    cards = "".join(
        f'<div><dt>{title}</dt><dd class="value">{value}</dd><dd class="quiet">{note}</dd></div>'
        for title, value, note in facts
    )
    return f'<dl class="facts">{cards}</dl>{_reasons(rounds)}'


def _reasons(rounds: Sequence[RoundFacts]) -> str:
    reasons: Counter[str] = Counter()
    for row in rounds:
        reasons.update(dict(row.drop_reasons))
    # Commits of rounds that were only fetched later may come without reasons.
    silent = [row for row in rounds if not row.drop_reasons]
    missed, void = sum(row.num_missed for row in silent), sum(row.num_void_shards for row in silent)
    if missed:
        reasons["planned, but nothing of it got in (no reason is known)"] += missed
    if void:
        reasons["shards that no reducer delivered; their part stayed with its owners for the next round"] += void
    if not reasons:
        return '<p class="good">Nobody was left out and nothing got lost.</p>'
    rows = "".join(
        f'<tr><td class="number">{count_text(number)}</td><td>{escape(reason)}</td></tr>'
        for reason, number in reasons.most_common(MAX_REASONS)
    )
    return (
        '<table class="plain reasons"><thead><tr><th scope="col" class="number">Times</th>'
        f'<th scope="col">What was left out, and why</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def rounds_table(state: DashboardState, rounds: Sequence[RoundFacts]) -> str:
    """The newest rounds, one per row."""
    if not rounds:
        return _rounds_from_records(state)
    names = _names(state)
    body = "".join(_round_row(row, names) for row in rounds[:MAX_ROUNDS_SHOWN])
    return (
        '<table class="stack"><thead><tr><th scope="col">Fragment</th><th scope="col" class="number">Version</th>'
        '<th scope="col" class="number">Contributors</th><th scope="col" class="number">Tokens</th>'
        '<th scope="col">Led by</th><th scope="col" class="number">Took</th><th scope="col" class="number">Seen</th>'
        f"</tr></thead><tbody>{body}</tbody></table>"
    )


def _round_row(row: RoundFacts, names: Mapping[str, str]) -> str:
    notes = []
    if row.num_missed:
        notes.append(f"{count_text(row.num_missed)} missed")
    if row.num_void_shards:
        notes.append(plural(row.num_void_shards, "void shard"))
    note = f'<span class="quiet">{", ".join(notes)}</span>' if notes else ""
    took = seconds_text(row.duration_seconds) if row.duration_seconds is not None else "–"
    return (
        f'<tr><th scope="row"><span class="only-phone">Fragment </span>{row.fragment}</th>'
        f'<td data-label="Version" class="number">{count_text(row.version + 1)}</td>'
        f'<td data-label="Contributors" class="number">{len(row.contributors)}{note}</td>'
        f'<td data-label="Tokens" class="number">{whole_text(row.tokens)}</td>'
        f'<td data-label="Led by"><bdi>{escape(names.get(row.leader) or short_peer(row.leader))}</bdi></td>'
        f'<td data-label="Took" class="number">{took}</td>'
        f'<td data-label="Seen" class="number">{age(row.seen_at)}</td></tr>'
    )


def _rounds_from_records(state: DashboardState) -> str:
    if not state.rounds:
        return empty("No round has ended since this page began to watch.")
    body = "".join(
        f'<tr><th scope="row">{row.fragment}</th><td class="number">{count_text(row.version)}</td>'
        f'<td>{_known(row)}</td><td class="number">{age(row.seen_at)}</td></tr>'
        for row in state.rounds[:MAX_ROUNDS_SHOWN]
    )
    note = "Told from the versions in peer records; who took part is not known here yet."
    return (
        '<table><thead><tr><th scope="col">Fragment</th><th scope="col" class="number">Version</th>'
        '<th scope="col">What is known</th><th scope="col" class="number">Seen</th></tr></thead>'
        f"<tbody>{body}</tbody></table>" + f'<p class="quiet">{note}</p>'
    )


def _known(row: RoundRow) -> str:
    return "committed" if row.num_rounds == 1 else f"{count_text(row.num_rounds)} rounds committed"
