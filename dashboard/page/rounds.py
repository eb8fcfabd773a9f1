"""Rounds as plain values for the templates: a lane for each peer, and the health of rounds."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import Any, Final, NamedTuple

from dashboard.history_facts import HistoryView, RoundFacts
from dashboard.observe.dashboard_state import DashboardState
from dashboard.observe.round_timeline import Lanes
from dht.ground.quantities import plural, seconds_text
from dht.identity.speakable import speakable_name
from dht.records.peer_record import RoundTimes
from peer.events.lone_rounds import LONE_ROUNDS

MAX_LANES: Final = 16
MAX_TIMELINE_ROUNDS: Final = 40
MAX_TIMELINE_SECONDS: Final = 180.0
MAX_REASONS: Final = 6

PHASES: Final = {
    "compute": "computes",
    "send": "sends",
    "receive": "receives",
    "apply": "applies",
    "exchange": "takes part in a round",
}
_WIDTH: Final = 1000


# The timeline


class _Block(NamedTuple):
    kind: str
    begin: float
    end: float


def timeline(state: DashboardState, history: HistoryView, names: Mapping[str, str]) -> dict[str, Any]:
    """Return one lane for each peer over the newest rounds: `who`, a `sentence` for screen readers, `paths` by kind."""
    blocks = _blocks(history.rounds, state.lanes)
    if not blocks:
        return {"lanes": ()}
    end = max(block.end for found in blocks.values() for block in found)
    begin = max(min(block.begin for found in blocks.values() for block in found), end - MAX_TIMELINE_SECONDS)
    span = max(1.0, end - begin)
    # Lanes keep their places while the page is open: the order does not depend on the members of the newest round.
    shown = sorted(sorted(blocks, key=lambda peer_id: (-len(blocks[peer_id]), peer_id))[:MAX_LANES])
    kinds = {block.kind for found in blocks.values() for block in found}
    return {
        "width": _WIDTH,
        "lanes": [
            {
                "who": names.get(peer_id) or speakable_name(peer_id),
                "sentence": _lane_sentence(blocks[peer_id], span),
                "paths": _paths(blocks[peer_id], begin, span),
            }
            for peer_id in shown
        ],
        "kinds": [(kind, text) for kind, text in PHASES.items() if kind in kinds],
        "span_seconds": round(span),
        "ended_at": end,
        "num_more": len(blocks) - len(shown),
    }


def _blocks(rounds: Sequence[RoundFacts], lanes: Lanes) -> dict[str, list[_Block]]:
    found = {peer_id: [block for times in lane for block in _round_blocks(times)] for peer_id, lane in lanes.items()}
    for row in rounds[:MAX_TIMELINE_ROUNDS]:
        # A peer that reports no durations gets one mark, at the time of the round.
        for peer_id in row.contributors:
            if peer_id not in lanes:
                found.setdefault(peer_id, []).append(_Block("exchange", row.seen_at, row.seen_at))
    return found


def _round_blocks(times: RoundTimes) -> Iterator[_Block]:
    at = times.started_at
    for kind in ("compute", "send", "receive", "apply"):
        seconds = getattr(times, f"{kind}_seconds")
        if seconds > 0:
            yield _Block(kind, at, at + seconds)
            at += seconds


def _paths(blocks: Sequence[_Block], begin: float, span: float) -> list[tuple[str, str]]:
    """Return one path for each kind, with a stroke for each block, as short as possible: paths are most bytes of this
    tab.
    """
    paths: dict[str, str] = {}
    ends: dict[str, int] = {}
    for block in blocks:
        if block.end < begin:
            continue
        # At least three units wide, however short the block was; a unit is about a pixel.
        width = max(3, round(_WIDTH * (block.end - max(block.begin, begin)) / span))
        x = min(round(_WIDTH * (max(block.begin, begin) - begin) / span), _WIDTH - width)
        step = f"m{x - ends[block.kind]} 0" if block.kind in ends else f"M{x} 10"
        paths[block.kind] = paths.get(block.kind, "") + f"{step}h{width}"
        ends[block.kind] = x + width
    return [(kind, paths[kind]) for kind in PHASES if kind in paths]


def _lane_sentence(blocks: Sequence[_Block], span: float) -> str:
    totals: Counter[str] = Counter()
    for block in blocks:
        totals[block.kind] += round(block.end - block.begin)
    parts = [f"{PHASES[kind]} {seconds_text(totals[kind])}" for kind in PHASES if kind in totals and kind != "exchange"]
    number = max(Counter(block.kind for block in blocks).values())
    return f"{plural(number, 'round')} in {seconds_text(round(span))}" + (f": {', '.join(parts)}" if parts else "")


# Round health
JOINING_SECONDS: Final = 60.0
"""Generous time from a peer's start until it has the model and is in its first round."""


def health(state: DashboardState, rounds: Sequence[RoundFacts]) -> dict[str, Any]:
    """Return a summary of the newest rounds, with the reasons for missing parts in words."""
    told = chain.from_iterable(state.lanes.values())
    durations = sorted(one.send_seconds + one.receive_seconds + one.apply_seconds for one in told)
    return {
        "num_lone": num_lone(rounds),
        "num_whole": sum(not row.num_missed and not row.num_void_shards and not row.drop_reasons for row in rounds),
        "mean_contributors": statistics.mean(len(row.contributors) for row in rounds) if rounds else 0.0,
        "typical_seconds": statistics.median(durations) if durations else None,
        "slow_seconds": durations[max(0, math.ceil(0.95 * len(durations)) - 1)] if durations else None,
        "reasons": _reasons(rounds).most_common(MAX_REASONS),
    }


def _reasons(rounds: Sequence[RoundFacts]) -> Counter[str]:
    reasons: Counter[str] = Counter()
    for row in rounds:
        reasons.update(dict(row.drop_reasons))
    # Commits that were only fetched later may have no reasons.
    silent = [row for row in rounds if not row.drop_reasons]
    missed, void = sum(row.num_missed for row in silent), sum(row.num_void_shards for row in silent)
    if missed:
        reasons["planned, but none of its work arrived (the reason is unknown)"] += missed
    if void:
        reasons["shards that no reducer delivered; their owners keep this work for the next round"] += void
    return reasons


def num_lone(rounds: Sequence[RoundFacts]) -> int:
    """Count the consecutive newest rounds with one member; `rounds` begin with the newest."""
    known = (row for row in rounds if row.contributors)
    return sum(1 for _ in takewhile(lambda row: len(row.contributors) == 1, known))


def lone_words(rounds: Sequence[RoundFacts], started_at: Sequence[float]) -> str:
    """Return a sentence if several machines train but share nothing; empty if they share, or lone rounds may be chance.

    Args:
        rounds: rounds, the newest first.
        started_at: start times of the present trainers, unix seconds. Rounds before the second had joined do not count.
    """
    if len(started_at) < 2:
        return ""
    joined_at = sorted(started_at)[1] + JOINING_SECONDS
    number = num_lone([row for row in rounds if row.seen_at > joined_at])
    if number < LONE_ROUNDS:
        return ""
    return f"{len(started_at)} machines train, but the newest {number} rounds had one member each: they share nothing"
