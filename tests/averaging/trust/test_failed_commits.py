"""Commits whose results nobody has: tried again after pauses, and never in the way of another round."""

from __future__ import annotations

from dataclasses import replace

from averaging.trust.claim_guard import LONGEST_RETRY_SECONDS, MAX_FAILED, FailedCommits
from averaging.wire.messages import Commit
from dht.ground.host import PeerId

COMMIT = Commit(0, 5, 0, PeerId("leader"), bytes(16), (), ())


def test_a_commit_that_failed_waits_twice_as_long_each_time() -> None:
    failed, now = FailedCommits(), 10.0
    assert not failed.waits(COMMIT, now)
    pauses = []
    for _ in range(10):
        failed.note(COMMIT, now)
        since = now
        while failed.waits(COMMIT, now):
            now += 0.5
        pauses.append(now - since)
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_RETRY_SECONDS


def test_another_commit_of_that_version_is_taken_at_once() -> None:
    failed = FailedCommits()
    failed.note(COMMIT, 0.0)
    assert not failed.waits(replace(COMMIT, attempt=1), 0.0)
    assert not failed.waits(replace(COMMIT, fragment=1), 0.0)


def test_what_failed_at_an_earlier_version_is_forgotten() -> None:
    failed = FailedCommits()
    failed.note(COMMIT, 0.0)
    failed.note(replace(COMMIT, version=6), 0.0)
    assert not failed.waits(COMMIT, 0.0)


def test_those_who_sign_many_commits_of_a_version_cost_little() -> None:
    failed = FailedCommits()
    for attempt in range(3 * MAX_FAILED):
        failed.note(replace(COMMIT, attempt=attempt), 0.0)
    waiting = [attempt for attempt in range(3 * MAX_FAILED) if failed.waits(replace(COMMIT, attempt=attempt), 0.5)]
    assert waiting == list(range(2 * MAX_FAILED, 3 * MAX_FAILED))
