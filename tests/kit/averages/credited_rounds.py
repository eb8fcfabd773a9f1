"""Signed rounds of four peers, and what they are worth."""

from __future__ import annotations

from dataclasses import replace

from averaging.signing.commit_credit import CreditedRound, round_of
from averaging.signing.receipt_file import RunFrame
from averaging.signing.round_signatures import Notary, Scope, mean_statement
from averaging.wire import frames
from averaging.wire.messages import DIGEST_BYTES, Commit, RosterEntry, ShardResult
from dht.identity.keys import Identity, verify

PEOPLE = sorted((Identity.from_seed(bytes([number]) * 32) for number in range(4)), key=lambda one: one.peer_id)
A, B, C, D = PEOPLE
SIZES = (60, 140)
RUN = RunFrame("tiny.abcdefghij234567abcd", bytes(range(32)), SIZES)
SCOPE = Scope(RUN.run_id, RUN.manifest_hash)


def commit_of(
    version: int,
    people: tuple[Identity, ...] = (A, B),
    *,
    fragment: int = 0,
    tokens: int = 100,
    previous: bytes = b"",
    shards: tuple[tuple[int, tuple[int, ...]], ...] | None = None,
    scope: Scope = SCOPE,
) -> Commit:
    """A commit signed by everybody; `shards` are (reducer, included) of equal parts, by default one each."""
    everybody = tuple(range(len(people)))
    rows = shards or tuple((number, everybody) for number in everybody)
    size = SIZES[fragment]
    cuts = [size * number // len(rows) for number in range(len(rows) + 1)]
    roster = tuple(RosterEntry(one.peer_id, tokens, 10, version, 1000 + version) for one in people)
    digest = bytes([version % 256]) * DIGEST_BYTES
    commit = Commit(fragment, version, 0, people[0].peer_id, digest, roster, (), previous)
    results = []
    for number, (reducer, included) in enumerate(rows):
        result = ShardResult(cuts[number], cuts[number + 1], reducer, digest if included else b"", included)
        if included:
            statement = mean_statement(scope, commit, commit.leader, result)
            result = replace(result, signature=people[reducer].sign(statement))
        results.append(result)
    return Notary(scope, people[0].sign, verify).sign_commit(replace(commit, shards=tuple(results)))


def rounds_of(*commits: Commit) -> list[CreditedRound]:
    return [round_of(commit, sum(SIZES)) for commit in commits]


def after(commit: Commit) -> bytes:
    return frames.commit_digest(commit)
