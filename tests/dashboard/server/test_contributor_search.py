"""Whom a search finds, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard.history_facts import ContributorRow, HistoryView, MachineRow
from dashboard.server import contributor_search
from dashboard.server.api_queries import ContributorsQuery
from dashboard.server.contributor_search import found_contributors
from dht.identity.speakable import speakable_name
from tests.kit.dashboard.records import NOW
from tests.kit.network.memory_networks import named

IDS = [named(number) for number in range(3)]
"""The same in each process: they are in the names of tests."""


def person(number: int, name: str, **changes: object) -> ContributorRow:
    machine = MachineRow(f"machine {number}", f"GPU {number}", "here", 1, 1, NOW, NOW, 0.0)
    row = ContributorRow(IDS[number], name, "", 1, 1, 0.1, 1, 0, NOW, NOW, True, (machine,))
    return replace(row, **changes)  # type: ignore[arg-type]


VIEW = HistoryView(NOW, NOW, (person(0, "Ada", country="DE"), person(1, ""), person(2, "Bob", team="Straße")))


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("ADA", [0]),
        ("de", [0]),
        (speakable_name(IDS[1])[:-3].upper(), [1]),
        (IDS[2][-12:].lower(), [2]),
        ("STRASSE", [2]),
        ("machine 1", [1]),
        ("gpu 2", [2]),
        ("gpu", [0, 1, 2]),
        ("adade", []),
        ("ada\n", [0]),
    ],
)
def test_whom_a_search_finds(search: str, found: list[int]) -> None:
    rows = found_contributors(replace(VIEW), ContributorsQuery(search=search))
    assert [IDS.index(row.contributor_id) for row in rows] == found


def test_what_people_are_found_by_is_put_together_once_for_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each letter that somebody types is a search, on the loop that all viewers share."""
    made: list[str] = []
    put_together = contributor_search._searched
    monkeypatch.setattr(
        contributor_search, "_searched", lambda row: (made.append(row.contributor_id), put_together(row))[1]
    )
    view = replace(VIEW)
    found_contributors(view, ContributorsQuery())
    assert made == []
    for typed in ("g", "gp", "gpu"):
        assert len(found_contributors(view, ContributorsQuery(search=typed))) == 3
    assert made == IDS
    later = replace(view, contributors=(person(0, "Eve"),))
    assert found_contributors(later, ContributorsQuery(search="eve")) == list(later.contributors)
