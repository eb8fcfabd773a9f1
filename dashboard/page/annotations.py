"""Events beside the curves: arrivals and departures, new revisions, the organiser's notes, and samples of the model.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dashboard.history_facts import ChartMark, HistoryView, ModelSample
from dashboard.observe.dashboard_state import DashboardState
from dht.identity.speakable import speakable_name
from peer.view.run_clock import clock_at

MAX_SAMPLES: Final = 12
"""Marks of samples; the Model tab has all of them."""
MAX_LISTED_SAMPLES: Final = 5
"""Samples listed on a page without scripts."""


def annotations_of(state: DashboardState, history: HistoryView) -> tuple[ChartMark, ...]:
    """Return all annotations, oldest first."""
    names = {str(row.record.peer_id): row.record.name for row in state.peers}
    for row in history.contributors:
        names |= {machine.peer_id: row.name for machine in row.machines}
    marks = [
        replace(mark, who=(names.get(mark.peer_id) or speakable_name(mark.peer_id)) if mark.peer_id else "")
        for mark in history.marks
    ]
    notes = state.run.notes if state.run is not None else ()
    for note in notes:
        clock = [(point.at, point.tokens) for point in history.points]
        tokens = round(clock_at(clock, note.at)) if clock else 0
        marks.append(ChartMark(note.at, tokens, "note", text=note.text))
    written = chosen_samples(history.samples, MAX_SAMPLES)
    marks += [ChartMark(sample.at, sample.committed_tokens, "sample") for sample in written]
    return tuple(sorted(marks, key=lambda mark: mark.at))


def chosen_samples(samples: Sequence[ModelSample], most: int = MAX_LISTED_SAMPLES) -> list[ModelSample]:
    """Return the newest sample, a few in between, and the first, newest first.

    Those in between are evenly chosen from `samples`, which are denser at earlier times.
    """
    last = len(samples) - 1
    if last < most:
        return list(reversed(samples))
    return [samples[round(last * place / (most - 1))] for place in reversed(range(most))]
