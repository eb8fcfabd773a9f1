"""What each auditor may still ask for."""

from __future__ import annotations

import pytest

from averaging.trust.audit_budgets import BUDGET, AuditBudgets
from tests.kit.network.memory_networks import named


def test_others_that_come_in_numbers_give_nobody_a_new_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more auditors than are remembered the one that asked least recently begins anew, and not all of them."""
    monkeypatch.setattr("dht.ground.bounds.MAX_REMEMBERED", 8)
    budgets = AuditBudgets(1.0)
    greedy = [budgets.spend(named(0), 0, 1, 4, BUDGET) for _ in range(20)]
    assert sum(greedy) == BUDGET
    for number in range(1, 40):
        assert budgets.spend(named(number), 0, 1, 4, BUDGET)
        assert not budgets.spend(named(0), 0, 1, 4, BUDGET)
    assert budgets.spend(named(0), 0, 9, 4, BUDGET)


def test_those_who_were_not_in_a_round_have_together_what_its_members_have() -> None:
    budgets = AuditBudgets(1.0)
    spent = [budgets.spend(named(number), 0, 1, 4, BUDGET, is_member=False) for number in range(100)]
    assert sum(spent) == 4 * BUDGET
    assert budgets.spend(named(200), 0, 1, 4, BUDGET)
    assert not budgets.spend(named(201), 0, 1, 4, BUDGET, is_member=False)
    assert budgets.spend(named(202), 0, 3, 4, BUDGET, is_member=False)
