"""The ranking of teams, by the witnessed work of their members. Anyone may state any team."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dashboard.history_facts import ContributorRow

MIN_CONTRIBUTORS_PER_COUNTRY: Final = 3
"""With fewer contributors, a country could identify a person."""


@dataclass(frozen=True, slots=True)
class TeamRow:
    """The people of one team, in any letter case."""

    name: str
    """Its most common spelling."""
    num_people: int
    milli_tokens_witnessed: int
    share: float
    """Share of the witnessed tokens of all contributors, 0 to 1."""

    @property
    def tokens_witnessed(self) -> float:
        return self.milli_tokens_witnessed / 1000


def teams(rows: Sequence[ContributorRow]) -> tuple[TeamRow, ...]:
    """Return the teams by witnessed tokens, the most first."""
    members: dict[str, list[ContributorRow]] = {}
    for row in rows:
        if row.team:
            members.setdefault(row.team.casefold(), []).append(row)
    total = sum(row.milli_tokens_witnessed for row in rows)
    found = []
    for group in members.values():
        spellings = Counter(row.team for row in group)
        name = min(spellings, key=lambda text: (-spellings[text], text))
        milli = sum(row.milli_tokens_witnessed for row in group)
        found.append(TeamRow(name, len(group), milli, milli / total if total else 0.0))
    return tuple(sorted(found, key=lambda team: (-team.milli_tokens_witnessed, -team.num_people, team.name)))


def with_rare_countries_withheld(rows: Sequence[ContributorRow]) -> tuple[ContributorRow, ...]:
    """Return the rows without countries that have too few contributors."""
    counted = Counter(row.country for row in rows)
    return tuple(
        replace(row, country="") if counted[row.country] < MIN_CONTRIBUTORS_PER_COUNTRY else row for row in rows
    )
