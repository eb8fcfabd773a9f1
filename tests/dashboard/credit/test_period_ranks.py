"""Ranks by period, and where everybody was yesterday."""

from __future__ import annotations

from dashboard.credit.contributor_ledger import Ledger, ranks, recent_work, standings
from dashboard.history_facts import PeriodRank
from tests.kit.dashboard.history import check_raw, raw_commit
from tests.kit.dashboard.records import NOW

DAY = 86_400.0
TODAY = int(NOW // DAY)


def test_today_and_the_week_rank_apart_and_say_where_one_was() -> None:
    work = {
        "ada": {TODAY - 7: 900, TODAY: 10},
        "jo": {TODAY - 1: 100, TODAY: 20},
        "kim": {TODAY - 2: 50},
    }
    assert standings(work, TODAY, 1) == {"jo": PeriodRank(20, 1, 1), "ada": PeriodRank(10, 2, 0)}
    # Yesterday's week began a day earlier, with Ada's large day.
    assert standings(work, TODAY, 7) == {
        "jo": PeriodRank(120, 1, 2),
        "kim": PeriodRank(50, 2, 3),
        "ada": PeriodRank(10, 3, 1),
    }


def test_equal_ones_keep_their_order_so_that_nobody_moves_for_nothing() -> None:
    assert ranks({"b": 5, "a": 5, "c": 0}) == {"b": 1, "a": 2}


def test_machines_of_one_person_are_one_sum() -> None:
    assert recent_work([{TODAY: 1, TODAY - 8: 9}, {TODAY: 2, TODAY - 7: 4}], TODAY) == {TODAY: 3, TODAY - 7: 4}


def test_a_ledger_says_who_passed_whom_since_yesterday() -> None:
    ledger = Ledger()
    for version, (at, ada, jo) in enumerate([(NOW - DAY, 100.0, 90.0), (NOW, 10.0, 50.0)]):
        raw = raw_commit(0, version, [("ada", ada, True), ("jo", jo, True)], at=at)
        ledger.put(check_raw(raw), at)
        ledger.settle()
    rows, _ = ledger.rows(NOW)
    assert [(row.contributor_id, row.rank, row.rank_before) for row in rows] == [("jo", 1, 2), ("ada", 2, 1)]
    assert [row.today for row in rows] == [PeriodRank(50_000, 1, 2), PeriodRank(10_000, 2, 1)]
    assert rows[0].week.milli_tokens_witnessed == 140_000
    assert [(one.day - TODAY, one.milli_tokens_witnessed, one.rounds) for one in ledger.days_of(["jo"])] == [
        (-1, 90_000, 1),
        (0, 50_000, 1),
    ]
