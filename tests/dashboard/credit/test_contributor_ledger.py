"""Who is credited with what: order does not matter, forks count once, people have machines, floods collapse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard.credit import contributor_ledger as ledger_module
from dashboard.credit.contributor_ledger import Ledger
from dashboard.history_facts import ContributorRow
from dashboard.observe.listed_peers import PeerRow
from dashboard.people.teams_and_countries import with_rare_countries_withheld
from tests.kit.dashboard.history import check_raw, usual_commit
from tests.kit.dashboard.records import NOW, bare_record, profile_of

PEERS = [f"peer-{index}" for index in range(6)]


def ledger_of(*raws: bytes) -> Ledger:
    ledger = Ledger()
    for raw in raws:
        ledger.put(check_raw(raw), NOW)
        ledger.settle()
    return ledger


def here(peer_id: str, key: str = "", name: str = "", first_at: float = NOW) -> PeerRow:
    return PeerRow(replace(bare_record(peer_id), name=name), "here", first_at, NOW, True, contributor_id=key)


def row_of(ledger: Ledger, contributor_id: str) -> ContributorRow:
    return next(row for row in ledger.rows()[0] if row.contributor_id == contributor_id)


def test_a_person_is_one_row_over_machines_when_both_name_each_other() -> None:
    ledger = ledger_of(usual_commit(0, PEERS[:3]))
    ledger.look([here(PEERS[0], "ada"), here(PEERS[1], "ada"), here(PEERS[2], "ada")], NOW)
    ledger.add_profile(profile_of("ada", PEERS[0], PEERS[1], "peer-of-somebody-else"))
    row = row_of(ledger, "ada")
    assert {machine.peer_id for machine in row.machines} == {PEERS[0], PEERS[1]}
    assert (row.name, row.rounds, row.tokens_witnessed) == ("Ada", 2, 201.0)
    # Whoever only claims a contributor keeps a row of its own, and so does whoever is only claimed.
    assert row_of(ledger, PEERS[2]).rounds == 1


def test_a_hidden_profile_takes_name_and_country_away_and_leaves_the_totals() -> None:
    ledger = ledger_of(usual_commit(0, PEERS[:2]))
    ledger.look([here(PEERS[0], "ada", name="Ada's box"), here(PEERS[1])], NOW)
    ledger.add_profile(profile_of("ada", PEERS[0]))
    assert row_of(ledger, "ada").name == "Ada"
    assert ledger.add_profile(profile_of("ada", PEERS[0], sequence=2, is_hidden=True))
    row = row_of(ledger, "ada")
    assert (row.name, row.country, row.tokens_witnessed) == ("", "", 100.0)
    assert ledger.is_withdrawn(PEERS[0])
    assert not ledger.is_withdrawn(PEERS[1])
    # An older profile, sent again by anybody, brings nothing back.
    assert not ledger.add_profile(profile_of("ada", PEERS[0]))
    assert row_of(ledger, "ada").name == ""


def test_a_rename_keeps_the_credit() -> None:
    ledger = ledger_of(usual_commit(0, PEERS[:2]))
    ledger.look([here(PEERS[0], "ada"), here(PEERS[1])], NOW)
    ledger.add_profile(profile_of("ada", PEERS[0]))
    ledger.add_profile(profile_of("ada", PEERS[0], sequence=2, name="Countess"))
    ledger.put(check_raw(usual_commit(1, PEERS[:2])), NOW)
    ledger.settle()
    row = row_of(ledger, "ada")
    assert (row.name, row.rounds, row.tokens_witnessed) == ("Countess", 2, 200.0)


def test_a_flood_of_keys_collapses_and_costs_no_contributor_a_row() -> None:
    ledger = ledger_of(usual_commit(0, PEERS[:2]))
    flood = [here(f"flood-{index:05}", first_at=NOW - 10) for index in range(5000)]
    ledger.look([*flood, here(PEERS[0])], NOW)
    rows, num_unverified = ledger.rows()
    assert {row.contributor_id for row in rows} == set(PEERS[:2])
    assert [row.rank for row in rows] == [1, 2]
    assert num_unverified == 5000


def test_before_the_first_commit_a_bounded_number_of_machines_is_listed() -> None:
    ledger = ledger_of()
    ledger.look([here(f"flood-{index:05}", first_at=NOW - 10) for index in range(5000)], NOW)
    rows, num_unverified = ledger.rows()
    assert [row.rank for row in rows] == [0] * ledger_module.MAX_UNWITNESSED_ROWS
    assert num_unverified == 5000 - ledger_module.MAX_UNWITNESSED_ROWS


def test_rows_are_bounded_even_when_keys_sign_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_MACHINES", 4)
    ledger = ledger_of(*(usual_commit(version, [f"a{version}", f"b{version}"]) for version in range(10)))
    assert len(ledger.machines) == 4
    assert ledger.num_unlisted == 16
    ledger.put(check_raw(usual_commit(10, ["a0", "b0"])), NOW)
    ledger.settle()
    assert row_of(ledger, "a0").rounds == 2


def test_uptime_counts_watched_time_only() -> None:
    ledger = ledger_of(usual_commit(0, PEERS[:1]))
    for at in (NOW, NOW + 2, NOW + 4, NOW + 4000, NOW + 4002):
        ledger.look([here(PEERS[0])], at)
    assert ledger.machines[PEERS[0]].uptime_seconds == 6.0


def test_countries_of_fewer_than_three_are_nowhere() -> None:
    ledger = ledger_of(usual_commit(0, PEERS[:4]))
    ledger.look([here(peer_id, f"c-{peer_id}") for peer_id in PEERS[:4]], NOW)
    for index, peer_id in enumerate(PEERS[:4]):
        ledger.add_profile(profile_of(f"c-{peer_id}", peer_id, country="FR" if index == 3 else "DE"))
    rows, _ = ledger.rows()
    assert sorted(row.country for row in with_rare_countries_withheld(rows)) == ["", "DE", "DE", "DE"]


def test_versions_that_are_not_known_are_told_as_ranges() -> None:
    ledger = ledger_of(*(usual_commit(version, PEERS[:2]) for version in (1, 2, 5)))
    assert ledger.num_versions(0) == 6
    assert ledger.absent(0, 8) == [(0, 1), (3, 5), (6, 8)]
    assert ledger.absent(0, 2) == [(0, 1)]
    assert ledger.num_versions(1) == 0
    assert ledger.absent(1, 3) == [(0, 3)]
    assert ledger.absent(1, 0) == []
