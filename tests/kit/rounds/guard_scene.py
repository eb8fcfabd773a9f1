"""A guard, and offers and commits for it to judge."""

from __future__ import annotations

from types import SimpleNamespace

from averaging.wire.messages import (
    Commit,
    Offer,
    RosterEntry,
    ShardResult,
)
from dht.ground.host import PeerId

ME, LIAR, HONEST = (PeerId(name * 20) for name in ("m", "x", "h"))
DIGEST = bytes(16)


def objection(guard, sender, message, timing, version):
    """What an exchange and its machine have against a message about the own lineage."""
    machine = SimpleNamespace(version=version, timing=timing, anchor_of=lambda _: DIGEST)
    refusal = guard.objection(sender, message, machine)
    if refusal or not isinstance(message, Offer) or message.version < version:
        return refusal
    return guard.claim_objection(sender, message, timing)


def follow(guard, clock, timing, versions, seconds):
    for version in versions:
        clock.now += seconds
        guard.advanced(0, version, timing)


def offer_of(version, base_version, tokens, sequence=1):
    return Offer(0, version, 0, DIGEST, base_version, tokens, 10, sequence, 1e6, True)


def commit_with(tokens, version=14, leader=LIAR):
    roster = (RosterEntry(HONEST, 10, 1, 14, 0), RosterEntry(LIAR, tokens, 1, 14, 7))
    return Commit(0, version, 0, leader, DIGEST, roster, (ShardResult(0, 50, 1, DIGEST, (0, 1)),))
