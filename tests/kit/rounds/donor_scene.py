"""Donors that serve states on a simulated network, and a joiner: the stage of the tests of state transfer."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from averaging.arrays import F32
from averaging.codec.codec import make_codec
from averaging.codec.digests import digest_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.outer_step import anchor_digest
from averaging.transfer.server import StateServer
from averaging.transfer.snapshots import Snapshot
from averaging.wire.field_checks import Limits
from averaging.wire.file_chunks import FILE_CHUNK_BYTES
from dht.admission.handshake_frames import AccessRule
from dht.ground.host import PeerId
from dht.records.peer_record import PeerRecord
from peer.network.anchors.fetcher import Fetched, Fetcher
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.network.memory_networks import MIB, fixed_network, named
from tests.kit.notaries import CHECKER
from tests.kit.records import make_record
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.network.lines import LineSettings
from tests.simulator.virtual_time import run_virtual

RUN_ID = "tiny.abcdefghij234567abcd"
RULE = AccessRule(RUN_ID, bytes(32), "test")
NUM_VALUES = 3 * MIB // 2 + 100  # A and m: 7 chunks each, the last one short
JOINER = 1
FILE = bytes(range(256)) * (13 * MIB // 512)  # six chunks and a half
UPLOAD = 8e6  # a chunk of a MiB takes a second and a bit

T = TypeVar("T")


def array_of(label: str, num_values: int = NUM_VALUES) -> F32:
    seed = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big")
    return np.random.default_rng(seed).standard_normal(num_values, dtype=np.float32)


class World:
    """What really is: one lineage per name, a state per version."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, int, int], Snapshot] = {}

    def state(self, lineage: str, fragment: int, version: int, num_values: int = NUM_VALUES) -> Snapshot:
        key = (lineage, fragment, version)
        if key not in self.states:
            anchor = array_of(f"{key} anchor", num_values)
            momentum = array_of(f"{key} momentum", num_values)
            tokens = 1000 * version
            self.states[key] = Snapshot(version, tokens, anchor, momentum, anchor_digest(anchor, momentum))
        return self.states[key]


class MemoryFiles:
    """`averaging.transfer.server.FileSource`."""

    def __init__(self, *contents: bytes) -> None:
        self._files = {digest_of(content): content for content in contents}

    def chunk_digests(self, digest: bytes) -> Sequence[bytes]:
        content = self._files.get(digest, b"")
        return [digest_of(content[at : at + FILE_CHUNK_BYTES]) for at in range(0, len(content), FILE_CHUNK_BYTES)]

    async def chunk(self, digest: bytes, index: int) -> bytes:
        return self._files[digest][index * FILE_CHUNK_BYTES : (index + 1) * FILE_CHUNK_BYTES]


class Donor:
    """A member that serves states."""

    def __init__(self, network: MemoryNetwork, number: int, world: World, version: int = 5, **line: float) -> None:
        self.peer_id = named(number)
        self.host = MemoryHost(network, self.peer_id, LineSettings(line.get("upload", UPLOAD)))
        self.world = world
        self.versions = [version, version]
        self.lineage = "main"
        self.extra_tokens = 0
        self.num_values = NUM_VALUES
        self.known: dict[tuple[int, int], bytes] = {}
        self.num_snapshots = 0
        door = RunHandshakePolicy(RULE, self.peer_id, "trainer")
        self.server = StateServer(self.host, door, self, 2, files=MemoryFiles(FILE))
        for fragment in (0, 1):
            self._note(fragment)

    def state(self, fragment: int) -> Snapshot:
        return self.world.state(self.lineage, fragment, self.versions[fragment], self.num_values)

    def advance(self, fragment: int) -> None:
        self.versions[fragment] += 1
        self._note(fragment)

    def _note(self, fragment: int) -> None:
        self.known[fragment, self.versions[fragment]] = self.state(fragment).digest

    async def snapshot(self, fragment: int) -> Snapshot | None:
        self.num_snapshots += 1
        state = self.state(fragment)
        return replace(state, lineage_tokens=state.lineage_tokens + self.extra_tokens)

    def digest_at(self, fragment: int, version: int) -> bytes:
        return self.known.get((fragment, version), b"")

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        return ()

    def record(self) -> PeerRecord:
        states = [self.state(fragment) for fragment in (0, 1)]
        return make_record(
            self.peer_id,
            run_id=RUN_ID,
            expires_at=1e9,
            device="",
            software="test",
            versions=tuple(state.version for state in states),
            digests=tuple(state.digest[:8] for state in states),
            lineage_tokens=tuple(state.lineage_tokens + self.extra_tokens for state in states),
            started_at=0.0,
        )


class Company:
    """The joiner's view of the members, and whom it suspects."""

    def __init__(self, donors: Sequence[Donor]) -> None:
        self.donors = donors
        self.suspected: list[PeerId] = []

    def members(self) -> list[PeerRecord]:
        return [donor.record() for donor in self.donors if donor.peer_id not in self.suspected]

    def suspect(self, peer_id: PeerId, reason: str) -> None:
        self.suspected.append(peer_id)


class Scene:
    """A joiner and donors on a fresh network; the joiner's line takes far more than one donor sends."""

    def __init__(self, num_donors: int, **slow: float) -> None:
        self.network = fixed_network(upload_bits_per_second=UPLOAD, download_bits_per_second=400e6)
        self.world = World()
        self.donors = [
            Donor(self.network, 10 + number, self.world, upload=slow.get(f"upload{number}", UPLOAD))
            for number in range(num_donors)
        ]
        self.company = Company(self.donors)
        self.fetcher = self.joiner(JOINER)
        self.arrived: list[int] = []

    def joiner(self, number: int) -> Fetcher:
        host = MemoryHost(self.network, named(number))
        limits = Limits((NUM_VALUES, NUM_VALUES), 4096)
        return Fetcher(host, RunHandshakePolicy(RULE, named(number), "trainer"), limits, self.company, CHECKER)

    async def fetch(self, fragment: int = 0) -> Fetched:
        names = self.fetcher.donors.best_first(fragment)
        found = await self.fetcher.fetch(fragment, NUM_VALUES, names, self.arrived.append)
        assert found is not None
        assert_same(found.snapshot, self.world.state("main", fragment, found.snapshot.version))
        return found

    async def until_arrived(self, num_bytes: int) -> None:
        while not self.arrived or self.arrived[-1] < num_bytes:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.05)


def assert_same(found: Snapshot, expected: Snapshot) -> None:
    assert np.array_equal(found.anchor, expected.anchor)
    assert np.array_equal(found.momentum, expected.momentum)
    assert (found.version, found.lineage_tokens, found.digest) == (
        expected.version,
        expected.lineage_tokens,
        expected.digest,
    )


def in_scene(num_donors: int, play: Callable[[Scene], Awaitable[T]], **slow: float) -> T:
    async def main() -> T:
        scene = Scene(num_donors, **slow)
        result = await play(scene)
        assert scene.network.handler_errors == []
        return result

    return run_virtual(main())


def empty_state() -> FragmentState:
    """Of a peer that has nothing."""
    anchor, momentum, residual = np.zeros((3, NUM_VALUES), dtype=np.float32)
    rule = OuterRule("carry", 0.7, 0.5)
    return FragmentState(rule, make_codec("int4", 128), anchor, momentum, residual, digest=bytes(32))
