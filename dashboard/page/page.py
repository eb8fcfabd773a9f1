"""The page, complete without JavaScript: one string for each section, so that live updates can replace sections.

The curves, which are large and change often, are rendered once for each load; scripts then draw them from the API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from markupsafe import Markup

from dashboard.history_facts import ContributorRow, HistoryView, RoundFacts
from dashboard.observe.dashboard_state import DashboardState
from dashboard.observe.join_addresses import is_of_this_machine, repository_of
from dashboard.page.annotations import chosen_samples
from dashboard.page.assets import LICENSES, Assets
from dashboard.page.curves import NO_CURVE, curves
from dashboard.page.environment import TEMPLATES, with_ages
from dashboard.page.goal_progress import progress_of, when_text
from dashboard.page.ranking import MAX_CONTRIBUTORS_SHOWN, MAX_LISTED
from dashboard.page.rounds import health, lone_words, timeline
from dashboard.page.task_scores import metric_words, score_curves
from dashboard.people.teams_and_countries import teams

REFRESH_SECONDS: Final = 5
"""Seconds after which browsers without scripts reload the page."""

STREAM_PATH: Final = "/events/stream"
"""Path of the server-sent events."""

TABS: Final = {
    "overview": ("progress", "way-in", "writes", "figures", "join", "notes", "feed", "top"),
    "people": ("contributors", "teams"),
    "model": ("samples", "evaluations", "model", "gaps"),
    "engine-room": ("timeline", "health", "fragments", "bandwidth", "rounds", "peers"),
}
"""Live sections of each tab; each tab is a separate page."""
CURVES: Final = {"losses": "overview", "swarm": "engine-room", "lines": "engine-room"}
"""The tab of each curve."""
SECTIONS: Final = ("status", *(section for sections in TABS.values() for section in sections))
"""Sections that are replaced one by one while the page is open; each has a template."""

TEMPLATES.filters.update(metric_words=metric_words, repository_of=repository_of)
TEMPLATES.tests["of_this_machine"] = is_of_this_machine
TEMPLATES.globals.update(
    {
        "max_contributors": MAX_CONTRIBUTORS_SHOWN,
        "max_listed": MAX_LISTED,
        "refresh_seconds": REFRESH_SECONDS,
        "stream_path": STREAM_PATH,
        "licenses": LICENSES,
    }
)


@dataclass(frozen=True, slots=True)
class Frame:
    """The parts of a page besides its content."""

    now: float
    """Unix seconds."""
    assets: Assets
    snapshot_id: str = ""
    """Snapshot from which live updates continue."""
    origin: str = ""
    """Scheme and host of the server as visitors see them; empty: unknown, so no absolute address is written."""
    path: str = "/"
    image: str = ""
    """Path of the picture of 1200 x 630 pixels in a preview of the page's link, or empty."""
    is_for_others: bool = False
    """Whether other machines can open the page, so that a printed address is useful."""


def render_sections(state: DashboardState, history: HistoryView) -> dict[str, str]:
    """Return the HTML of each of `SECTIONS`. It does not depend on the time of rendering."""
    values = round_values(state, history.rounds, history.contributors)
    progress = progress_of(state, history)
    values |= {
        "history": history,
        "ended_at": _ended_at(state, history),
        "progress": progress,
        "when": when_text(progress, state.now),
        "samples": chosen_samples(history.samples),
        "scores": score_curves(history.scores),
        "teams": teams(history.contributors),
        "found": history.contributors,
        "sort": "tokens",
        "limit": MAX_CONTRIBUTORS_SHOWN,
        "offset": 0,
        "search": "",
        "peers": state.shown_peers,
        "timeline": timeline(state, history, values["names"]),
        "health": health(state, history.rounds),
        "lone_words": lone_words(history.rounds, [record.started_at for record in state.trainers]),
    }
    return {key: TEMPLATES.get_template(f"{key}.html").render(values).strip() for key in SECTIONS}


def render_page(
    state: DashboardState,
    sections: Mapping[str, str],
    history: HistoryView,
    frame: Frame,
    *,
    tab: str = "",
    found: str | None = None,
) -> str:
    """Return the whole page.

    Args:
        sections: result of `render_sections`.
        tab: a key of `TABS`: only its content is sent, the rest when it is opened; empty: everything.
        found: result of `render_people`: search results to show instead of the ranking.
    """
    values: dict[str, Any] = {
        "state": state,
        "history": history,
        "curves": curves(history),
    }
    values |= {"tab": tab, "found": Markup(found) if found is not None else None}
    if tab:
        wanted = ("status", *TABS[tab])
        shown = {key: curve for key, curve in values["curves"].items() if CURVES.get(key, tab) == tab}
        values["curves"] = {key: shown.get(key, NO_CURVE) for key in values["curves"]}
        sections = {key: html if key in wanted else "" for key, html in sections.items()}
    # The sections' templates have escaped all values.
    values["sections"] = {key: Markup(html) for key, html in sections.items()}
    return document("page.html", values, frame)


def rooted(html: str, base: str) -> str:
    """Return `html` with its links below `base`, such as ``/r/RUN`` on a server with several runs. Repeating it changes
    nothing.
    """
    if not base:
        return html
    # Only this page's links match: in strangers' texts a quotation mark is escaped.
    link = rf'="/(?!/|r/|{re.escape(base[1:])}/)'
    return re.sub(link, lambda found: f'="{base}/', html).replace("<body data-", f'<body data-base="{base}" data-', 1)


def document(template: str, values: Mapping[str, Any], frame: Frame) -> str:
    """Return a whole page from `template`."""
    framed = {field.name: getattr(frame, field.name) for field in fields(frame)}
    return with_ages(TEMPLATES.get_template(template).render(values, **framed), frame.now)


def render_missing(detail: str, frame: Frame) -> str:
    """Render the page for an unknown address; `detail` gives the reason, or is empty."""
    sentence = f"{detail[:1].upper()}{detail[1:]}." if detail else "The address may be mistyped, or its page is gone."
    return document("missing.html", {"sentence": sentence}, frame)


def round_values(
    state: DashboardState, rounds: Sequence[RoundFacts], contributors: Sequence[ContributorRow]
) -> dict[str, Any]:
    """Return the values for a table of rounds, including names of absent machines whose contributors have a row."""
    names = {machine.peer_id: row.name for row in contributors for machine in row.machines if row.name}
    names |= {str(row.record.peer_id): row.record.name for row in state.peers if row.record.name}
    return {"state": state, "rounds": rounds, "names": names}


def _ended_at(state: DashboardState, history: HistoryView) -> float | None:
    """Return when the newest round closed or, without one, when a peer last announced itself; unix seconds."""
    rounds = (row.seen_at for row in (*history.rounds[:1], *state.rounds[:1]))
    return max(rounds, default=state.heard_at)
