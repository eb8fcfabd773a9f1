"""Signatures for peers that have no keys: whoever knows the name can make them, and they are 64 bytes."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from averaging.signing.round_signatures import Checker, Notary, Scope
from averaging.wire.messages import Commit, ShardResult
from dht.ground.host import PeerId

SCOPE = Scope("run", bytes(32))


def signature_of(name: PeerId, message: bytes) -> bytes:
    return hashlib.sha512(name.encode() + message).digest()


def is_signed(name: PeerId, message: bytes, signature: bytes) -> bool:
    return signature == signature_of(name, message)


def notary_of(name: PeerId, scope: Scope = SCOPE) -> Notary:
    return Notary(scope, lambda message: signature_of(name, message), is_signed)


CHECKER = Checker(SCOPE, is_signed)


def signed(commit: Commit, scope: Scope = SCOPE) -> Commit:
    """The commit with all signatures that an honest round would have given it."""

    def by_its_reducer(shard: ShardResult) -> bytes:
        reducer = notary_of(commit.roster[shard.reducer].peer_id, scope)
        return reducer.sign_result(commit, commit.leader, shard) if shard.digest else b""

    shards = tuple(replace(shard, signature=by_its_reducer(shard)) for shard in commit.shards)
    return notary_of(commit.leader, scope).sign_commit(replace(commit, shards=shards))
