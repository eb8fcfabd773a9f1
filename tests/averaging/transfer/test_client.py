"""State transfer against donors that break the protocol on purpose, and commits of the largest size."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from averaging.codec.digests import digest_of
from averaging.lanes.handshake import greet_incoming
from averaging.outer.outer_step import anchor_digest
from averaging.transfer.chunked_pieces import FragmentPiece
from averaging.transfer.client import ChunkStream, commits_in, fetch_digest, fetch_header, fetch_log
from averaging.transfer.messages import STATE_PROTOCOL, Header, chunks_of
from averaging.transfer.server import StateServer
from averaging.transfer.snapshots import Snapshot
from averaging.wire.field_checks import Limits
from averaging.wire.frames import encode
from averaging.wire.messages import (
    MAX_SHARDS,
)
from dht.ground.errors import PeerFault, PeerUnreachable
from dht.ground.fields import pack
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.network.memory_networks import fixed_network, named
from tests.kit.rounds.donor_scene import RULE
from tests.simulator.network.host import MemoryHost
from tests.simulator.virtual_time import run_virtual

NUM_VALUES = 50
LIMITS = Limits((NUM_VALUES, MAX_SHARDS), 1000)
JOINER, DONOR = named(1), named(2)


def door(peer_id):
    return RunHandshakePolicy(RULE, peer_id, "trainer")


def normal(seed, size=NUM_VALUES):
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def joined(anchor, momentum):
    return b"".join(map(digest_of, chunks_of(anchor, momentum)))


def raw(values):
    return values.tobytes()


async def on_stage(handler, ask):
    """The answer to `ask(joiner host)`, with `handler` serving the donor's side after the hello."""
    network = fixed_network()
    donor, joiner = MemoryHost(network, DONOR), MemoryHost(network, JOINER)

    async def serve(stream):
        await greet_incoming(stream, door(DONOR))
        await handler(stream)

    donor.handle(STATE_PROTOCOL, serve)
    try:
        return await ask(joiner)
    finally:
        await joiner.close()
        await donor.close()
        assert network.handler_errors == []


def answering(*frames, then_silent=False):
    async def handler(stream):
        await stream.receive(300)
        for frame in frames:
            await stream.send(frame)
        if then_silent:
            await asyncio.sleep(1000)
        await stream.receive(300)

    return handler


ANCHOR, MOMENTUM = normal(1), normal(2)


def changed(values, position, value):
    copy = values.copy()
    copy[position] = value
    return copy


NAN, INFINITE = changed(ANCHOR, 3, math.nan), changed(MOMENTUM, 49, -math.inf)


async def ask_header(joiner):
    return await fetch_header(joiner, door(JOINER), DONOR, 0, NUM_VALUES)


def asking_chunks(*arrays):
    """Both chunks of a fragment, and the state that they make."""

    async def ask(joiner):
        piece = FragmentPiece(0, Header(7, 99, tuple(map(digest_of, chunks_of(*arrays)))), NUM_VALUES)
        stream = await ChunkStream.open(joiner, door(JOINER), DONOR, piece)
        try:
            assert await stream.ask(range(2)) == "chunks"
            for index in range(2):
                piece.put(index, await stream.receive(index, 30.0))
            return piece.snapshot(DONOR)
        finally:
            await stream.close()

    return ask


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (pack(["header", 7, 99, b"x" * 32]), "does not fit 50 values"),
        (pack(["header", 7, 99, b"x" * 128]), "announced a frame of|longer|at most"),
        (pack(["header", -1, 99, joined(ANCHOR, MOMENTUM)]), "does not fit 50 values"),
        (pack(["header", 7, 2**61, joined(ANCHOR, MOMENTUM)]), "does not fit 50 values"),
        (pack(["header", True, 99, joined(ANCHOR, MOMENTUM)]), "does not fit 50 values"),
        (pack(["header", 7, 99, 5]), "does not fit 50 values"),
        (pack(["state", 7, 99, joined(ANCHOR, MOMENTUM)]), "does not fit 50 values"),
        (pack([]), "not a list with a kind"),
        (b"", "not msgpack"),
        (b"\xc1garbage", "not msgpack"),
        (b"\x91" * 100, "not msgpack|not a list"),
    ],
)
def test_a_header_that_is_none_is_the_donors_fault(frame, sentence):
    with pytest.raises(PeerFault, match=sentence) as caught:
        run_virtual(on_stage(answering(frame), ask_header))
    assert caught.value.peer_id == DONOR


@pytest.mark.parametrize(
    ("arrays", "frames", "sentence"),
    [
        ((ANCHOR, MOMENTUM), [raw(MOMENTUM)], "does not match its digest"),
        ((ANCHOR, MOMENTUM), [raw(ANCHOR)[:-1]], "does not match its digest"),
        ((ANCHOR, MOMENTUM), [b""], "does not match its digest"),
        ((ANCHOR, MOMENTUM), [raw(ANCHOR) + b"x"], "at most|longer"),
        ((ANCHOR, MOMENTUM), [raw(ANCHOR), raw(ANCHOR)], "does not match its digest"),
        ((NAN, MOMENTUM), [raw(NAN), raw(MOMENTUM)], "fragment 0 that are not finite"),
        ((ANCHOR, INFINITE), [raw(ANCHOR), raw(INFINITE)], "that are not finite"),
    ],
)
def test_chunks_that_are_others_are_the_donors_fault(arrays, frames, sentence):
    with pytest.raises(PeerFault, match=sentence) as caught:
        run_virtual(on_stage(answering(pack(["chunks"]), *frames), asking_chunks(*arrays)))
    assert caught.value.peer_id == DONOR


@pytest.mark.parametrize(
    "frames", [[], [pack(["chunks"])], [pack(["chunks"]), raw(ANCHOR)]], ids=["at once", "before chunks", "half-way"]
)
def test_a_donor_that_falls_silent_is_given_up(frames):
    with pytest.raises(PeerUnreachable, match="nothing for 30 s"):
        run_virtual(on_stage(answering(*frames, then_silent=True), asking_chunks(ANCHOR, MOMENTUM)))


@pytest.mark.parametrize("answer", [["digest"], ["digest", b"x"], ["digest", "x" * 32], ["state", bytes(32)], ["none"]])
def test_a_digest_is_empty_or_whole(answer):
    async def ask(joiner):
        return await fetch_digest(joiner, door(JOINER), DONOR, 0, 7)

    with pytest.raises(PeerFault, match="answered a digest request"):
        run_virtual(on_stage(answering(pack(answer)), ask))
    for digest in (b"", bytes(32)):
        assert run_virtual(on_stage(answering(pack(["digest", digest])), ask)) == digest


@pytest.mark.parametrize("answer", [["log", 5], ["digest", b""], ["log", b"\x01\x00"], ["log", b"x" * 90]])
def test_commits_are_checked_like_all_frames(answer):
    async def ask(joiner):
        return commits_in(await fetch_log(joiner, door(JOINER), DONOR, 0, 0), DONOR, 0, 0, LIMITS)

    with pytest.raises(PeerFault) as caught:
        run_virtual(on_stage(answering(pack(answer)), ask))
    assert caught.value.peer_id == DONOR


@pytest.mark.parametrize("answer", [["chunks", 1], ["later"], ["version", "7"], ["state", 7]])
def test_a_range_is_given_put_off_or_refused(answer):
    async def ask(joiner):
        header = Header(7, 99, tuple(map(digest_of, chunks_of(ANCHOR, MOMENTUM))))
        stream = await ChunkStream.open(joiner, door(JOINER), DONOR, FragmentPiece(0, header, NUM_VALUES))
        try:
            return await stream.ask(range(2))
        finally:
            await stream.close()

    with pytest.raises(PeerFault, match="answered a request for chunks"):
        run_virtual(on_stage(answering(pack(answer)), ask))
    for honest, found in ((["chunks"], "chunks"), (["busy"], "busy"), (["version", 3], "gone"), (["none"], "gone")):
        assert run_virtual(on_stage(answering(pack(honest)), ask)) == found


class Source:
    """A donor's state of two fragments, or none."""

    def __init__(self, commits=(), has_state=True):
        self.commits, self.has_state = commits, has_state

    async def snapshot(self, fragment):
        return Snapshot(7, 99, ANCHOR, MOMENTUM, anchor_digest(ANCHOR, MOMENTUM)) if self.has_state else None

    def digest_at(self, fragment, version):
        return anchor_digest(ANCHOR, MOMENTUM) if version == 7 and self.has_state else b""

    def commit_frames(self, fragment, version):
        return [encode(commit) for commit in self.commits if commit.version >= version]


def with_server(source, ask):
    async def main():
        network = fixed_network()
        donor, joiner = MemoryHost(network, DONOR), MemoryHost(network, JOINER)
        StateServer(donor, door(DONOR), source, 2)
        try:
            return await ask(joiner)
        finally:
            assert network.handler_errors == []
            await donor.close()

    return run_virtual(main())


def test_a_donor_without_a_state_says_so_to_everyone():
    async def ask(joiner):
        return (
            await fetch_header(joiner, door(JOINER), DONOR, 0, NUM_VALUES),
            await fetch_digest(joiner, door(JOINER), DONOR, 0, 7),
            await fetch_log(joiner, door(JOINER), DONOR, 0, 0),
        )

    assert with_server(Source(has_state=False), ask) == ("none", b"", [])
