"""Signatures under rounds: honest ones hold, and nothing about a round can be changed under them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.signing.round_signatures import Checker, Notary, Scope
from averaging.wire import frames
from averaging.wire.field_checks import Limits
from averaging.wire.messages import DIGEST_BYTES, Commit, Plan, RosterEntry, ShardPlan, ShardResult
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.identity.keys import Identity, verify
from dht.records.signature_cache import VerifiedRecords

SCOPE = Scope("tiny.abcdefghij234567abcd", bytes(range(32)))
PEOPLE = sorted((Identity.from_seed(bytes([number]) * 32) for number in range(4)), key=lambda one: one.peer_id)
A, B, C, STRANGER = PEOPLE
DIGEST = bytes([7]) * DIGEST_BYTES
CHECKER = Checker(SCOPE, verify)


def notary(person: Identity) -> Notary:
    return Notary(SCOPE, person.sign, verify)


ROSTER = tuple(RosterEntry(one.peer_id, 100 + n, 10, 6, 50 + n) for n, one in enumerate((A, B, C)))
PLAN = Plan(0, 7, 1, DIGEST, ROSTER, (ShardPlan(0, 40, 0), ShardPlan(40, 80, 1), ShardPlan(80, 100, 2)), 5.0, 9.0)


def result(shard: int, included: tuple[int, ...], digest: bytes = DIGEST) -> ShardResult:
    part = PLAN.shards[shard]
    return ShardResult(part.start, part.end, part.reducer, digest, included)


def make_commit(leader: Identity = B) -> Commit:
    """Three shards: everybody's, without C's, and void."""
    shards = []
    for index, (reducer, included) in enumerate(((A, (0, 1, 2)), (B, (0, 1)))):
        bare = result(index, included)
        shards.append(replace(bare, signature=notary(reducer).sign_result(PLAN, leader.peer_id, bare)))
    shards.append(ShardResult(80, 100, 2, b"", ()))
    bare_commit = Commit(0, 7, 1, leader.peer_id, DIGEST, ROSTER, tuple(shards), DIGEST)
    return notary(leader).sign_commit(bare_commit)


COMMIT = make_commit()


def test_an_honest_commit_holds_also_after_the_wire():
    assert CHECKER.objection(COMMIT) == ""
    received, _ = frames.decode(frames.encode(COMMIT), PeerId("x" * 20), Limits((100,), 10))
    assert isinstance(received, Commit)
    assert CHECKER.objection(received) == ""


def resigned(**changes: object) -> Commit:
    """A leader that changes something and signs again."""
    return notary(B).sign_commit(replace(COMMIT, **changes))  # type: ignore[arg-type]


FIRST = COMMIT.shards[0]


@pytest.mark.parametrize(
    "changed",
    [
        resigned(version=8),
        resigned(attempt=2),
        resigned(anchor_digest=bytes(DIGEST_BYTES)),
        resigned(roster=(replace(ROSTER[0], tokens=10**9), *ROSTER[1:])),
        resigned(roster=(replace(ROSTER[0], sequence=9), *ROSTER[1:])),
        resigned(shards=(replace(FIRST, included=(0, 1)), *COMMIT.shards[1:])),
        resigned(shards=(replace(FIRST, digest=bytes([8]) * DIGEST_BYTES), *COMMIT.shards[1:])),
        resigned(shards=(replace(FIRST, reducer=2), *COMMIT.shards[1:])),
        resigned(shards=(replace(FIRST, end=41), replace(COMMIT.shards[1], start=41), COMMIT.shards[2])),
        resigned(shards=(replace(FIRST, signature=COMMIT.shards[1].signature), *COMMIT.shards[1:])),
        notary(STRANGER).sign_commit(replace(COMMIT, leader=STRANGER.peer_id)),
    ],
)
def test_a_leader_cannot_change_what_the_reducers_signed(changed):
    assert CHECKER.is_leaders(changed)
    assert "is not signed by its reducer" in CHECKER.objection(changed)


@given(st.data())
def test_nobody_can_change_a_bit_that_the_leader_signed(data):
    frame = bytearray(frames.encode(COMMIT))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        received, _ = frames.decode(bytes(frame), PeerId("x" * 20), Limits((100, 100), 10))
    except PeerFault:
        return
    if isinstance(received, Commit):
        assert "is not signed" in CHECKER.objection(received)


def test_signatures_are_for_one_run_one_manifest_and_one_kind_of_statement():
    for scope in (replace(SCOPE, run_id="other.abcdefghij234567abcd"), replace(SCOPE, manifest_hash=bytes(32))):
        assert "is not signed by its leader" in Checker(scope, verify).objection(COMMIT)
    assert not CHECKER.is_leaders(replace(make_commit(A), signature=FIRST.signature))


def test_a_leader_takes_only_reports_that_their_reducer_signed():
    bare = result(0, (0, 1))
    signature = notary(A).sign_result(PLAN, B.peer_id, bare)
    told = replace(bare, signature=signature)
    assert CHECKER.is_makers(A.peer_id, PLAN, B.peer_id, told)
    for wrong in (replace(told, included=(0,)), replace(told, digest=bytes(16)), bare):
        assert not CHECKER.is_makers(A.peer_id, PLAN, B.peer_id, wrong)
    assert not CHECKER.is_makers(A.peer_id, PLAN, C.peer_id, told)
    assert not CHECKER.is_makers(A.peer_id, replace(PLAN, attempt=2), B.peer_id, told)
    assert not CHECKER.is_makers(STRANGER.peer_id, PLAN, B.peer_id, told)


def test_what_was_found_good_is_not_computed_again_and_what_was_bad_is():
    calls: list[bytes] = []

    def counted(peer_id: PeerId, message: bytes, signature: bytes) -> bool:
        calls.append(message)
        return verify(peer_id, message, signature)

    checker = Checker(SCOPE, counted, VerifiedRecords())
    assert checker.objection(COMMIT) == checker.objection(COMMIT) == ""
    assert len(calls) == 3
    forged = replace(COMMIT, signature=bytes(64))
    assert all(checker.objection(forged) for _ in range(2))
    assert len(calls) == 5
