"""Commits whose results nobody has: tried again after pauses, and never in the way of another round."""

from __future__ import annotations

from averaging.rounds.waits import Waits
from averaging.trust.claim_guard import FIRST_RETRY_SECONDS, Guard, GuardPorts
from tests.kit.clock import Clock
from tests.kit.rounds.guard_scene import HONEST, ME, commit_with, objection


def test_a_commit_that_could_not_be_applied_waits_and_other_commits_do_not() -> None:
    clock, timing = Clock(), Waits.with_bounds(100.0)
    guard = Guard(ME, 4, GuardPorts(clock, print))
    failed, other = commit_with(10), commit_with(11)

    def refusal(commit):  # type: ignore[no-untyped-def]
        return objection(guard, HONEST, commit, timing, 14)

    assert not refusal(failed)
    guard.not_applied(failed)
    assert "this peer retries later" in refusal(failed)
    assert not refusal(other)
    clock.now += FIRST_RETRY_SECONDS
    assert not refusal(failed)
    guard.not_applied(failed)
    clock.now += FIRST_RETRY_SECONDS
    assert "this peer retries later" in refusal(failed)
