"""How many means one may look at: an auditor costs every member of a round an upload. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from dht.ground.bounds import Allowances, Newest
from dht.ground.host import PeerId

OWN_BUDGET, BUDGET = 8.0, 12.0
"""Audits of one fragment that a member may begin at once. And requests of one auditor that are answered at once: some
more, so that nobody takes an honest auditor for greedy.
"""
LEAST_REFILL, REFILL_OF_MEAN = 1 / 8, 3.0
"""Audits that one may begin per version, and how much more often than on average. A hostile auditor has
each answer twice. So it costs each member a quarter of a shard a round, or six times what an honest one does.
"""
STRANGERS = PeerId("")
"""All who were in no round and are no members. Together they have what the members of a round have together: they may
be one with many keys. Members have their own each, for a member that refused an honest auditor would look evasive."""
MAX_REPEATABLE = 4096
"""Answers that may be had once more."""


class AuditBudgets:
    """What is left to each auditor and fragment; it comes back with the fragment's versions.

    Args:
        audit_fraction: share of the rounds of which somebody recomputes a mean.
    """

    def __init__(self, audit_fraction: float) -> None:
        self._audit_fraction = audit_fraction
        self._left = Allowances[tuple[PeerId, int]]()
        self._repeatable: Newest[tuple[PeerId, Hashable], bool] = Newest(MAX_REPEATABLE)

    def spend(
        self, auditor: PeerId, fragment: int, version: int, num_members: int, most: float, *, is_member: bool = True
    ) -> bool:
        """Whether an auditor may look at one more mean of this fragment, which counts then.

        Args:
            version: the fragment's now.
            num_members: of the round whose mean it is.
            most: what it may have left, and begins with.
            is_member: of the run, or of that round; others share what they have.
        """
        pause = 1 / max(LEAST_REFILL, REFILL_OF_MEAN * self._audit_fraction / num_members)
        return self._left.spend((auditor, fragment), version, burst=most, seconds=pause) and (
            is_member
            or self._left.spend((STRANGERS, fragment), version, burst=num_members * most, seconds=pause / num_members)
        )

    def answers(
        self, auditor: PeerId, request: Hashable, fragment: int, version: int, num_members: int, *, is_member: bool
    ) -> bool:
        """Whether a request is answered, which counts then.

        Each second answer to the same request is free: an honest auditor asks again when the first was lost.
        """
        key = (auditor, request)
        if self._repeatable.pop(key, False):
            return True
        if not self.spend(auditor, fragment, version, num_members, BUDGET, is_member=is_member):
            return False
        self._repeatable[key] = True
        return True
