"""What a lying peer of a chaos run does beside taking part."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np

from averaging.codec.blocks import EncodedBlocks
from averaging.lanes.links import ROUND_PROTOCOL
from averaging.wire import frames
from averaging.wire.messages import (
    DIGEST_BYTES,
    Abandon,
    Commit,
    Message,
    Offer,
    Plan,
    Redirect,
    Reduced,
    RosterEntry,
    ShardPlan,
    ShardResult,
    VersionIs,
    Wait,
)
from dht.ground.errors import PeerFault
from tests.kit.chaos.hostility import turn_hostile

FORGE_SECONDS = 6.0


def spoil(peer: Any) -> None:
    """Make `peer`, a `ChaosPeer`, lie in the ways of its profile."""
    for lie in (peer.profile.lie, *peer.profile.further):
        _spoil(peer, lie)


def _spoil(peer: Any, lie: str) -> None:
    match lie:
        case "poison":
            _send_instead(peer, lambda encoded: _no_numbers(encoded))
        case "reverse":
            _send_instead(peer, lambda encoded: _reversed(peer, encoded))
        case "hoard":
            _claim_old_work(peer)
        case "mute":
            _never_reduce(peer)
        case "forge":
            peer.spawn(_forge(peer))
        case "noise":
            peer.spawn(_make_noise(peer))
        case _:
            turn_hostile(peer, lie)


def _no_numbers(encoded: EncodedBlocks) -> EncodedBlocks:
    payload = b"\xff" * encoded.num_bytes
    return EncodedBlocks.unpack(encoded.codec, encoded.block_size, encoded.num_values, payload)


def _reversed(peer: Any, encoded: EncodedBlocks) -> EncodedBlocks:
    values = np.empty(encoded.num_values, dtype=np.float32)
    peer.codec.decode(encoded, values)
    return peer.codec.encode(-10 * values)


def _send_instead(peer: Any, lie: Any) -> None:
    sending = peer.exchange.sending
    post_shards = sending._post_shards

    def send_lies(fragment: Any, effect: Any) -> None:
        honest = fragment.state.pending
        if honest is not None:
            fragment.state.pending = replace(honest, encoded=lie(honest.encoded))
        post_shards(fragment, effect)
        fragment.state.pending = honest

    sending._post_shards = send_lies


def _claim_old_work(peer: Any) -> None:
    """Offers work of long ago, which an honest peer would have dropped."""
    sending = peer.exchange.sending
    offer_of = sending._offer_of

    def late_offer(fragment: Any, work: Any) -> Offer:
        offer = offer_of(fragment, work)
        return replace(offer, base_version=max(0, offer.base_version - 10))

    sending._offer_of = late_offer


def _never_reduce(peer: Any) -> None:
    async def shirk(fragment: Any, effect: Any) -> None:
        return

    peer.exchange.averaging.make_mean = shirk


async def _forge(peer: Any) -> None:
    """Messages that have the right form and no truth in them."""
    while True:
        await asyncio.sleep(FORGE_SECONDS * peer.chance.random())
        others = sorted(other.name for other in peer.world.live() if other is not peer)
        if others:
            message = _forged(peer, peer.chance.randrange(len(peer.fragments)), others)
            peer.links.post(peer.chance.choice(others), [frames.encode(message)])


def _forged(peer: Any, index: int, others: list[Any]) -> Message:
    chance, machine = peer.chance, peer.fragments[index].machine
    version = max(0, machine.version + chance.choice((-1, 0, 0, 0, 1)))
    junk = chance.randbytes(DIGEST_BYTES)
    digest = chance.choice((machine.anchor_digest, junk))
    attempt, size = chance.randrange(3), machine.num_values
    roster = tuple(RosterEntry(name, 10**6, 1, version, 1) for name in sorted([peer.name, chance.choice(others)]))
    match chance.choice(("commit", "version", "offer", "plan", "reduced", "abandon", "redirect", "wait")):
        case "commit":
            return Commit(index, version, attempt, peer.name, digest, roster, (ShardResult(0, size, 0, junk, (0, 1)),))
        case "version":
            return VersionIs(index, version, junk, 10**12)
        case "offer":
            return Offer(index, version, attempt, digest, version, 10**6, 1, 1, 0.0, True)
        case "plan":
            return Plan(index, version, attempt, digest, roster, (ShardPlan(0, size, 0),), 5.0, 10.0)
        case "reduced":
            return Reduced(index, version, attempt, 0, junk, (0,))
        case "abandon":
            return Abandon(index, version, attempt, "because")
        case "redirect":
            return Redirect(index, version, peer.name)
        case _:
            return Wait(index, version, attempt, 1, 1)


async def _make_noise(peer: Any) -> None:
    """Streams with garbage in them, before and after a proper hello."""
    chance = peer.chance
    while True:
        await asyncio.sleep(FORGE_SECONDS * chance.random())
        others = sorted(other.name for other in peer.world.live() if other is not peer)
        if not others:
            continue
        try:
            stream = await peer.host.open_stream(chance.choice(others), ROUND_PROTOCOL, 5.0)
            await stream.send(
                peer.handshake_policy.hello(stream.remote) if chance.random() < 0.7 else chance.randbytes(40)
            )
            await stream.receive(4096)
            await stream.send(chance.randbytes(chance.randrange(200)))
            await stream.close()
        except PeerFault:
            continue
