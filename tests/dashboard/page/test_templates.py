"""Strangers' text is text in every template, whichever field it comes in; a value that is missing is an error."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from jinja2 import UndefinedError

from dashboard.history_facts import Gap, HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.page.assets import load_assets
from dashboard.page.contributor import render_certificate, render_contributor
from dashboard.page.environment import TEMPLATES
from dashboard.page.page import SECTIONS, Frame, render_missing, render_page, render_sections
from dashboard.page.ranking import render_people
from dashboard.several_runs.index import card_of, render_index
from tests.kit.dashboard.records import NOW, TextOnly
from tests.kit.dashboard.scene import contributor_view, history_of_run, state_of

HARMLESS = "plain"
HOSTILE = """'"><script>alert(1)</script><img src=x onerror=alert(1)>&lt;{{ 7 * 7 }}{% endif %}"""
OURS = ("condition", "kind", "loss_unit")
"""Fields with one of a few words that the dashboard itself chooses."""


def marked(value: Any, mark: str) -> Any:
    """`value` with `mark` at the beginning of every string in it."""
    if isinstance(value, str):
        return type(value)(mark + value)
    if isinstance(value, tuple):
        return tuple(marked(each, mark) for each in value)
    if isinstance(value, dict):
        return {marked(key, mark): marked(each, mark) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value) if each.init and each.name not in OURS]
        return replace(value, **{name: marked(getattr(value, name), mark) for name in names})
    return value


def everything(mark: str) -> dict[str, str]:
    """Every section and page of a run in which every string begins with `mark`."""
    state: DashboardState = marked(state_of(), mark)
    state = replace(state, problem=mark, run=marked(state.run, mark))
    history: HistoryView = replace(history_of_run(), problem="x", storage="x", gaps=(Gap(NOW - 9, NOW, "x"),))
    history = marked(history, mark)
    view = marked(contributor_view(1), mark)
    frame = Frame(NOW, load_assets(), mark)
    found = render_sections(state, history)
    assert list(found) == list(SECTIONS)
    found["page"] = render_page(state, found, history, frame)
    found["index"] = render_index([card_of(state, history)], Frame(NOW, load_assets()))
    found["people"] = render_people(state, history.contributors, history, sort="name", limit=3, search=mark, now=NOW)
    linked = replace(frame, origin=mark, path=mark, image=mark, is_for_others=True)
    found["contributor"] = render_contributor(state, view, linked)
    found["certificate"] = render_certificate(state, view, linked)
    found["missing"] = render_missing(f"nobody is called {mark}", frame)
    return found


def test_text_of_strangers_is_text_in_every_template(monkeypatch: pytest.MonkeyPatch) -> None:
    read = set()
    load = TEMPLATES.loader.get_source  # type: ignore[union-attr]

    def noting(environment: Any, name: str) -> Any:
        read.add(name)
        return load(environment, name)

    monkeypatch.setattr(TEMPLATES.loader, "get_source", noting)
    TEMPLATES.cache.clear()  # type: ignore[union-attr]
    hostile, harmless = everything(HOSTILE), everything(HARMLESS)
    assert read == set(TEMPLATES.list_templates())
    shows_text = 0
    for name, html in hostile.items():
        seen, expected = TextOnly(html), TextOnly(harmless[name])
        assert seen.tags == expected.tags, name
        assert [key for key, _ in seen.attributes] == [key for key, _ in expected.attributes], name
        assert not [key for key, _ in seen.attributes if key == "style" or key.startswith("on")]
        shows_text += HOSTILE[:20] in seen.text
    # Only figures, progress, fragments and bandwidth hold nothing but numbers.
    assert shows_text == len(hostile) - 4


def test_no_template_turns_escaping_off_and_nothing_is_missing_silently() -> None:
    for name in TEMPLATES.list_templates():
        source, _, _ = TEMPLATES.loader.get_source(TEMPLATES, name)  # type: ignore[union-attr]
        assert not re.search(r"\bsafe\b|autoescape", source), name
    with pytest.raises(UndefinedError):
        TEMPLATES.get_template("peers.html").render()
