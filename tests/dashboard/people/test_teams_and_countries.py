"""Teams are ranked by their members' work, whatever letters they write themselves with."""

from __future__ import annotations

from dataclasses import replace

from dashboard.people.teams_and_countries import teams
from tests.kit.dashboard.scene import contributor_of


def member(index: int, team: str, milli: int) -> object:
    return replace(contributor_of(index), team=team, milli_tokens_witnessed=milli)


def test_a_team_is_the_sum_of_those_who_name_it() -> None:
    rows = [member(0, "Owls", 400), member(1, "", 1000), member(2, "owls", 300), member(3, "Bats", 300)]
    found = teams([*rows, member(4, "owls", 0)])  # type: ignore[list-item]
    assert [(team.name, team.num_people, team.milli_tokens_witnessed, team.share) for team in found] == [
        ("owls", 3, 700, 0.35),
        ("Bats", 1, 300, 0.15),
    ]


def test_without_teams_there_is_no_ranking_of_them() -> None:
    assert teams([replace(contributor_of(0), team="")]) == ()
