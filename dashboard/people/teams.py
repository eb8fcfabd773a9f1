"""The ranking of teams, by what others witnessed of their members. Anybody may name any team: it is a person's word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.history_facts import ContributorRow


@dataclass(frozen=True, slots=True)
class TeamRow:
    """Everybody who names one team, in whatever letter case."""

    name: str
    """As most of its members write it."""
    num_people: int
    milli_witnessed: int
    share: float
    """Of the witnessed tokens of all contributors, 0 to 1."""

    @property
    def tokens_witnessed(self) -> float:
        return self.milli_witnessed / 1000


def teams(rows: Sequence[ContributorRow]) -> tuple[TeamRow, ...]:
    """Teams by witnessed tokens, the most first."""
    members: dict[str, list[ContributorRow]] = {}
    for row in rows:
        if row.team:
            members.setdefault(row.team.casefold(), []).append(row)
    total = sum(row.milli_witnessed for row in rows)
    found = []
    for group in members.values():
        spellings = Counter(row.team for row in group)
        name = min(spellings, key=lambda text: (-spellings[text], text))
        milli = sum(row.milli_witnessed for row in group)
        found.append(TeamRow(name, len(group), milli, milli / total if total else 0.0))
    return tuple(sorted(found, key=lambda team: (-team.milli_witnessed, -team.num_people, team.name)))
