"""Forks longer than the memory of own contributions: nothing is lost, or counts twice, without a word."""

from __future__ import annotations

import numpy as np
import pytest

from averaging.codec.codec import make_codec
from averaging.fragment.lost_work import KEPT_RECEIPTS, LostWork
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import RECENT_CONTRIBUTIONS, Sent, Settled
from averaging.rounds.round_facts import AppliedCommit, WorkLost
from averaging.wire.messages import DIGEST_BYTES, Commit, RosterEntry, ShardResult
from tests.kit.network.memory_networks import named
from tests.kit.rounds.exchange_swarm import Swarm, scenario

ME, OTHER = sorted((named(1), named(2)))
OURS, THEIRS = b"o" * 32, b"t" * 32


def sent_of(sequence, tokens=10):
    return Sent(sequence, None, tokens, 1, 0)


def commit_of(version, sequence, anchor=THEIRS):
    """A commit of another lineage, with contribution `sequence` of this peer in it; None: without."""
    roster = [RosterEntry(OTHER, 10, 1, version, 1)]
    if sequence is not None:
        roster.append(RosterEntry(ME, 10, 1, version, sequence))
    roster.sort(key=lambda entry: entry.peer_id)
    everybody = tuple(range(len(roster)))
    shards = (ShardResult(0, 16, 0, bytes(DIGEST_BYTES), everybody),)
    return Commit(0, version, 0, OTHER, anchor[:DIGEST_BYTES], tuple(roster), shards)


def settled(receipts, new_version, commits, *, left_version=8, pending=None, whole=()):
    zeros = np.zeros(16, dtype=np.float32)
    rule = OuterRule("carry", 0.7, 0.5)
    state = FragmentState(rule, make_codec("fp32", 16), zeros, zeros, zeros, version=new_version, pending=pending)
    state.recent = [Settled(sent_of(sequence), sequence, ()) for sequence in whole]
    return [
        (report.tokens, report.is_doubled, report.reason.split(",")[0])
        for report in receipts.settle(0, state, left_version, OURS, commits)
    ]


def receipts_of(committed, returned=()):
    """Contributions named by the version they travelled for."""
    receipts = LostWork(ME)
    for version in sorted((*committed, *returned)):
        receipts.note(sent_of(version), version, is_committed=version in committed)
    return receipts


LOST = "only the lineage that was left had it"
UNKNOWN = "the commits of the new lineage do not go back far enough to tell whether it is in them"
DOUBLED = "it had come back and was sent again"


def test_what_both_lineages_have_is_no_loss():
    receipts = receipts_of(range(8))
    assert settled(receipts, 9, [commit_of(version, version) for version in range(9)]) == []


def test_being_behind_in_the_same_lineage_costs_nothing():
    receipts = receipts_of(range(8))
    assert settled(receipts, 12, [commit_of(version, None, OURS) for version in range(8, 12)]) == []


def test_what_only_the_old_lineage_had_and_nobody_kept_is_said():
    receipts = receipts_of(range(8))
    commits = [commit_of(version, version if version < 2 else None) for version in range(9)]
    assert settled(receipts, 9, commits, whole=(5, 6, 7)) == [(30, False, LOST)]
    assert settled(receipts, 9, commits, whole=(5, 6, 7)) == []  # once


def test_versions_that_the_new_lineage_has_not_reached_are_lost_too():
    assert settled(receipts_of(range(8)), 6, [commit_of(version, version) for version in range(6)]) == [
        (20, False, LOST)
    ]


def test_what_nobody_can_tell_is_said_to_be_so():
    receipts = receipts_of(range(8))
    commits = [commit_of(version, version) for version in range(5, 30)]
    assert settled(receipts, 30, commits) == [(50, False, UNKNOWN)]


def test_work_under_way_that_is_given_up_is_said():
    assert settled(LostWork(ME), 30, [commit_of(29, None)], pending=sent_of(8, 70)) == [(70, False, UNKNOWN)]
    assert settled(LostWork(ME), 9, [commit_of(8, None)], pending=sent_of(8, 70)) == []  # it waits again


def test_what_came_back_and_is_there_after_all_counts_twice():
    receipts = receipts_of(committed=(0, 1), returned=(2,))
    commits = [commit_of(version, version) for version in range(9)]
    assert settled(receipts, 9, commits) == [(10, True, DOUBLED)]
    assert settled(receipts_of((0, 1), (2,)), 9, commits, whole=(2,)) == []  # the state takes it out again


def test_receipts_are_few():
    receipts = receipts_of(range(100))
    assert settled(receipts, 3, []) == [(10 * KEPT_RECEIPTS, False, LOST)]


@pytest.mark.parametrize("num_rounds", [2, RECENT_CONTRIBUTIONS, RECENT_CONTRIBUTIONS + 3])
def test_two_halves_that_were_apart_for_long_say_what_it_cost(num_rounds):
    async def play():
        swarm = Swarm(5, seed=2, sizes=(300,), partition_break_seconds=5.0)
        await swarm.train(2)
        left, right = swarm.live()[:2], swarm.live()[2:]
        swarm.network.partition([peer.name for peer in left], [peer.name for peer in right])
        swarm.set_views(lambda peer, other: (peer in left) == (other in left))
        apart = [len(peer.closed()) for peer in swarm.live()]
        await swarm.train(num_rounds, interval_seconds=60.0, first_seed=1000)
        own = [
            sum(closed.own_included for closed in peer.closed()[before:])
            for before, peer in zip(apart, swarm.live(), strict=True)
        ]
        swarm.network.heal()
        swarm.set_views()
        await swarm.settle()
        await swarm.train(2, first_seed=2000)
        await swarm.settle()
        swarm.assert_agreement()
        swarm.assert_shown()
        tokens = [
            sum(report.tokens for report in peer.reports if isinstance(report, WorkLost)) for peer in swarm.live()
        ]
        # 100 tokens per round; the lighter half keeps the last few of its own contributions whole.
        expected = [100 * max(0, rounds - RECENT_CONTRIBUTIONS) for rounds in own]
        assert tokens[:2] == expected[:2]
        assert tokens[2:] == [0, 0, 0]
        return swarm

    scenario(play)


def test_bytes_of_rounds_of_others_are_not_counted():
    async def play():
        swarm = Swarm(4)
        await swarm.train(2)
        idle = swarm.trainers[0]
        swarm.trainers = swarm.trainers[1:]
        swarm.set_views()
        await swarm.train(3, first_seed=500)
        await swarm.settle()
        assert any(isinstance(report, AppliedCommit) for report in idle.reports)
        for peer in swarm.live():
            for closed, said in zip(peer.closed(), peer.committed(), strict=True):
                values = (said.contribution_values_sent, said.result_values_received)
                assert closed.own_included or (said.bytes_up, said.bytes_down, *values) == (0, 0, 0, 0)
        assert not all(closed.own_included for closed in idle.closed())
        return swarm

    scenario(play)
