"""What happened among people: who is new, who passed a number of tokens, who overtook whom. A fold of looks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dashboard.history_facts import ContributorRow, HistoryView, PeopleNews

PASSED: Final = tuple(10**power for power in range(4, 16))
"""Numbers of tokens that are news."""
MAX_RANK: Final = 30
"""Places that are watched for overtaking."""
PAIR_SECONDS: Final = 3600.0
"""Two that go past each other again and again are news so often."""
CATCHING_UP_ROUNDS: Final = 50
"""More of them at once are rounds of long ago that were fetched now: nothing of it has just happened."""
MAX_NEWS_OF_A_LOOK: Final = 10


@dataclass
class Feed:
    """Compares each look at the ranking with the one before."""

    _tokens: dict[str, float] | None = None
    _machines: frozenset[str] = frozenset()
    _ranks: dict[str, int] = field(default_factory=dict)
    _countries: frozenset[str] = frozenset()
    _num_rounds: int = 0
    _pairs: dict[frozenset[str], float] = field(default_factory=dict)

    def look(
        self,
        rows: Sequence[ContributorRow],
        countries: Collection[str],
        newcomers: Collection[str],
        num_rounds: int,
        now: float,
    ) -> list[PeopleNews]:
        """Return the news since the last look, at most `MAX_NEWS_OF_A_LOOK`.

        Args:
            countries: those that may be shown.
            newcomers: PeerIds of machines that were started lately.
            num_rounds: that are counted.
        """
        before, ranks_before, countries_before = self._tokens, self._ranks, self._countries
        is_catching_up = before is None or num_rounds - self._num_rounds > CATCHING_UP_ROUNDS
        ranked = [row for row in rows if row.rank]
        self._tokens = {row.contributor_id: row.tokens_witnessed for row in ranked}
        self._ranks = {row.contributor_id: row.rank for row in ranked}
        self._countries = frozenset(countries)
        self._num_rounds = num_rounds
        machines_before = self._machines
        self._machines = frozenset(machine.peer_id for row in ranked for machine in row.machines)
        if is_catching_up or before is None:
            return []
        found = []
        for row in ranked:
            key = row.contributor_id
            if key not in before:
                machines = {machine.peer_id for machine in row.machines}
                # A machine that was ranked before has only got its person's key: nobody came.
                if machines & set(newcomers) and not machines & machines_before:
                    # As the person's page says it; the first confirmed round may come minutes later.
                    found.append(PeopleNews(min(now, row.first_at), "joined", key))
                continue
            passed = [step for step in PASSED if before[key] < step <= row.tokens_witnessed]
            if passed:
                found.append(PeopleNews(now, "passed", key, tokens=passed[-1]))
        found += self._overtakings(ranked, ranks_before, now)
        found += [PeopleNews(now, "country", "", country=name) for name in sorted(self._countries - countries_before)]
        return found[:MAX_NEWS_OF_A_LOOK]

    def _overtakings(self, ranked: Sequence[ContributorRow], before: dict[str, int], now: float) -> list[PeopleNews]:
        self._pairs = {pair: at for pair, at in self._pairs.items() if now - at < PAIR_SECONDS}
        found = []
        for row in ranked[:MAX_RANK]:
            key = row.contributor_id
            behind = [
                other.contributor_id
                for other in ranked[row.rank : row.rank + MAX_RANK]
                if before.get(other.contributor_id, MAX_RANK * 10) < before.get(key, 0)
            ]
            if behind and (pair := frozenset((key, behind[0]))) not in self._pairs:
                self._pairs[pair] = now
                found.append(PeopleNews(now, "overtook", key, other_id=behind[0]))
        return found


class ShownNews(NamedTuple):
    """One line of the list; `person` is None for a country, `other` except for somebody who was overtaken."""

    news: PeopleNews
    person: ContributorRow | None
    other: ContributorRow | None


def shown_news(history: HistoryView) -> list[ShownNews]:
    """News, the newest first, without contributors that have no row and without countries that are withheld again.

    News of a machine whose contributor was not known yet shows the contributor.
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
