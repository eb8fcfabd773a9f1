"""Limits on the means that one peer may audit: each audit costs all members of a round an upload. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from dht.ground.bounds import Allowances, Newest
from dht.ground.host import PeerId

OWN_BUDGET, BUDGET = 8.0, 12.0
"""Audits of one fragment that a member may begin at once, and requests of one auditor that are answered at once. The
second number is larger, so that no member takes an honest auditor for greedy.
"""
LEAST_REFILL, REFILL_OF_MEAN = 1 / 8, 3.0
"""Audits allowed for each version: at least the first number, otherwise the second times the average. A hostile auditor
gets each answer twice, so it costs each member a quarter of a shard a round, or six times as much as an honest auditor.
"""
STRANGERS = PeerId("")
"""All peers that were in no round and are not members. Together they have the budget of all members of the round, since
they may be one host with many keys. Members have separate budgets, because a member that refused an honest auditor
would look evasive."""
MAX_REPEATABLE = 4096
"""Answers that may be repeated once."""


class AuditBudgets:
    """Remaining budget of each auditor and fragment. It refills with the fragment's versions.

    Args:
        audit_fraction: share of the rounds in which a member recomputes a mean.
    """

    def __init__(self, audit_fraction: float) -> None:
        self._audit_fraction = audit_fraction
        self._left = Allowances[tuple[PeerId, int]]()
        self._repeatable: Newest[tuple[PeerId, Hashable], bool] = Newest(MAX_REPEATABLE)

    def spend(
        self, auditor: PeerId, fragment: int, version: int, num_members: int, most: float, *, is_member: bool = True
    ) -> bool:
        """Spend one audit of this fragment, and return whether the budget allowed it.

        Args:
            version: the fragment's present version.
            num_members: number of members of the audited round.
            most: the initial and largest budget.
            is_member: whether the auditor is a member of the run or of that round; others share one budget.
        """
        pause = 1 / max(LEAST_REFILL, REFILL_OF_MEAN * self._audit_fraction / num_members)
        return self._left.spend((auditor, fragment), version, burst=most, seconds=pause) and (
            is_member
            or self._left.spend((STRANGERS, fragment), version, burst=num_members * most, seconds=pause / num_members)
        )

    def answers(
        self, auditor: PeerId, request: Hashable, fragment: int, version: int, num_members: int, *, is_member: bool
    ) -> bool:
        """Return whether a request is answered, and spend the budget for it.

        Each second answer to the same request is free: an honest auditor asks again if the first answer was lost.
        """
        key = (auditor, request)
        if self._repeatable.pop(key, False):
            return True
        if not self.spend(auditor, fragment, version, num_members, BUDGET, is_member=is_member):
            return False
        self._repeatable[key] = True
        return True
