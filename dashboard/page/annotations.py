"""What happened beside the curves: who came and went, new revisions, the organiser's notes, and
samples of the model. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.progress import tokens_at
from dashboard.page.samples import chosen_samples
from dht.identity.speakable import speakable_name

MAX_SAMPLES: Final = 12
"""Marks of samples; the Model tab has all of them."""

AnnotationKind = Literal["join", "leave", "revision", "note", "sample"]


@dataclass(frozen=True, slots=True)
class Annotation:
    """Something that happened at `at` (unix seconds)."""

    at: float
    tokens: int
    """Committed until then."""
    kind: AnnotationKind
    peer_id: str = ""
    """The peer that came or went; empty for the others."""
    who: str = ""
    """That peer's name."""
    text: str = ""
    """Of a note: the organiser's words."""


def annotations_of(state: DashboardState, history: HistoryView) -> tuple[Annotation, ...]:
    """All of them, oldest first."""
    names = {str(row.record.peer_id): row.record.name for row in state.peers}
    for row in history.contributors:
        names |= {machine.peer_id: row.name for machine in row.machines}
    marks = [
        Annotation(
            mark.at,
            mark.tokens,
            mark.kind,
            mark.peer_id,
            (names.get(mark.peer_id) or speakable_name(mark.peer_id)) if mark.peer_id else "",
        )
        for mark in history.marks
    ]
    notes = state.run.notes if state.run is not None else ()
    marks += [Annotation(note.at, tokens_then(history, note.at), "note", text=note.text) for note in notes]
    written = chosen_samples(history.samples, MAX_SAMPLES)
    marks += [Annotation(sample.at, sample.tokens, "sample") for sample in written]
    return tuple(sorted(marks, key=lambda mark: mark.at))


def tokens_then(history: HistoryView, at: float) -> int:
    """Tokens that were committed at `at`, as far as this history knows."""
    return round(tokens_at(history.points, at)) if history.points else 0
