"""A contributor's own page, the certificate of it, and the choice between people of one name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from dashboard.history_facts import ContributorRow, ContributorView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.curves import work_curve
from dashboard.page.environment import contributor_path
from dashboard.page.page import Frame, document, round_values
from dashboard.page.work_calendar import weeks
from dashboard.people.ranking_words import percentile_words, share_words
from dht.identity.speakable import speakable_name


def shown_name(row: ContributorRow) -> str:
    """The chosen name, or the one that follows from the key."""
    return row.name or speakable_name(row.contributor_id)


def render_contributor(
    state: DashboardState,
    view: ContributorView,
    frame: Frame,
    contributors: Sequence[ContributorRow] = (),
    num_namesakes: int = 0,
) -> str:
    """The whole page of `view`'s contributor: what others witnessed of one person's work, and the proof.

    Args:
        contributors: whose names may stand beside rounds.
        num_namesakes: others of the same name.
    """
    row = view.row
    values = _person(state, view) | round_values(state, view.rounds, contributors) | {"curve": work_curve(view.curve)}
    values |= {
        "weeks": weeks(view.days, frame.now),
        "num_namesakes": num_namesakes,
        "short_path": _short_path(row, num_namesakes),
    }
    return document("contributor.html", values, frame)


def render_certificate(state: DashboardState, view: ContributorView, frame: Frame) -> str:
    """A page to print: who gave what to which run, and where the proof of it is."""
    return document("certificate.html", _person(state, view), frame)


def render_namesakes(state: DashboardState, name: str, rows: Sequence[ContributorRow], frame: Frame) -> str:
    """Several people of one name, told apart by their keys."""
    values: dict[str, Any] = {"state": state, "run": state.run_id.partition(".")[0], "asked": name, "rows": rows}
    return document("namesakes.html", values, frame)


def _short_path(row: ContributorRow, num_namesakes: int) -> str:
    """``/@Ada``, where nobody else is called so; else the address of the key."""
    name = shown_name(row)
    if num_namesakes or "/" in name or "." in name:
        return contributor_path(row.contributor_id)
    return f"/@{quote(name.replace(' ', '-') if not row.name else name, safe='')}"


def _person(state: DashboardState, view: ContributorView) -> dict[str, Any]:
    row = view.row
    num_ranked = max(view.num_ranked, row.rank)
    return {
        "state": state,
        "view": view,
        "row": row,
        "run": state.run_id.partition(".")[0],
        "shown_name": shown_name(row),
        "key": contributor_path(row.contributor_id).removeprefix("/c/"),
        "num_ranked": num_ranked,
        "percentile": percentile_words(row.rank, num_ranked),
        "share_words": share_words(row.share),
    }
