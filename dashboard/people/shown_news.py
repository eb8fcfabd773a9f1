"""News of people with the names that may be shown now."""

from __future__ import annotations

from typing import NamedTuple

from dashboard.history_facts import ContributorRow, HistoryView, PeopleNews


class ShownNews(NamedTuple):
    """One line of the list; `person` is None for a country, `other` except for somebody who was overtaken."""

    news: PeopleNews
    person: ContributorRow | None
    other: ContributorRow | None


def shown_news(history: HistoryView) -> list[ShownNews]:
    """Newest first; left out is what is about somebody without a row, and a country that is withheld again.

    What was told of a machine before its person's key was known is told of the person.
    """
    by_id = {machine.peer_id: row for row in history.contributors for machine in row.machines}
    by_id |= {row.contributor_id: row for row in history.contributors}
    countries = {name for name, _ in history.countries}
    found = []
    for news in sorted(history.news, key=lambda one: -one.at):
        person, other = by_id.get(news.contributor_id), by_id.get(news.other_id)
        if news.kind == "country":
            if news.country in countries:
                found.append(ShownNews(news, None, None))
        elif person is not None and (news.kind != "overtook" or (other is not None and other is not person)):
            found.append(ShownNews(news, person, other))
    return found
