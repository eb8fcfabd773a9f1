"""Bytes of a round, counted on its commit, against the same counted by hand."""

from __future__ import annotations

from averaging.wire.messages import Commit, RosterEntry, ShardResult
from dashboard.credit.credited_members import data_parallel_bytes, payload_bytes
from tests.kit.dashboard.records import PEERS


def commit_of(*shards: ShardResult, num_members: int = 3) -> Commit:
    roster = tuple(RosterEntry(identity.peer_id, 100, 10, 0, 1) for identity in PEERS[:num_members])
    return Commit(0, 0, 0, PEERS[0].peer_id, b"a" * 16, roster, shards)


def test_parts_go_to_the_reducer_and_means_to_everybody() -> None:
    # Three parts of 100 values: two members send theirs to the reducer, which sends the mean to two.
    whole = commit_of(*(ShardResult(100 * i, 100 * i + 100, i, b"d" * 16, (0, 1, 2)) for i in range(3)))
    assert payload_bytes(whole, lambda count: count // 2) == 3 * (2 + 2) * 50
    # The second member missed the first reducer; the second shard is void.
    partly = commit_of(ShardResult(0, 100, 0, b"d" * 16, (0, 2)), ShardResult(100, 200, 1, b"", ()))
    assert payload_bytes(partly, lambda count: count // 2) == (1 + 2) * 50


def test_a_lone_peer_moves_nothing_either_way() -> None:
    alone = commit_of(ShardResult(0, 300, 0, b"d" * 16, (0,)), num_members=1)
    assert payload_bytes(alone, lambda count: count) == 0
    assert data_parallel_bytes(alone, 300) == 0
    assert data_parallel_bytes(commit_of(ShardResult(0, 300, 0, b"", ())), 300) == 0


def test_data_parallel_sends_every_gradient_at_every_step() -> None:
    commit = commit_of(ShardResult(0, 300, 0, b"d" * 16, (0, 1, 2)))
    # Each of three members uploads 4/3 of 1200 bytes at each of its ten steps.
    assert data_parallel_bytes(commit, 300) == 3 * 10 * 1600
