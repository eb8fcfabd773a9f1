"""Real peers that fetch the state: a donor is killed half-way, one sends other bytes, many come at once.

The model is large enough for a transfer of many chunks. Donors that die or lie are real members with a real daemon and
the real server; the test only says when. Joiners are seeds where nothing else matters: they fetch as trainers do, and
eight of them with their daemons fit on two cores.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from averaging.rounds.round_facts import AppliedCommit
from averaging.signing.receipt_file import open_receipt
from averaging.transfer.client import fetch_digest
from averaging.transfer.server import StateServer
from averaging.transfer.snapshots import Snapshot
from averaging.wire.frames import decode
from averaging.wire.messages import Commit
from dht.ground.host import PeerId, Stream
from dht.observer.host_choice import HostBackend
from dht.records.signed_manifest import decode_run_record
from peer.config.model_shapes import seed_sizes
from peer.events.anchor_events import Fetched
from peer.network.membership.run_protocol import RUN_PROTOCOL
from peer.observe.observer import observe, open_log
from tests.kit.processes.hostile_member import HostileMember, answering, hostile_member
from tests.kit.processes.process_swarm import TINY_RUN, PeerProcess, ProcessSwarm, process_swarm, wait_until
from tests.kit.tiers import sampled

RUN = (
    TINY_RUN.replace("num_layers = 1", "num_layers = 4")
    .replace("d_model = 32", "d_model = 256")
    .replace("batch_size = 4\naccumulation_steps = 2", "batch_size = 2\naccumulation_steps = 1")
)
SLOWED = ("--upload-limit-mbit", "300")
"""Without a line that limits it, one donor has sent everything before the stream to the next one is open."""
MANY_SECONDS = 240.0
"""For many processes that import torch at once on two cores."""
ANNOUNCE_SECONDS = 5.0


@dataclass
class Kept:
    """A run whose trainer has left; a seed keeps its state."""

    swarm: ProcessSwarm
    seed: PeerProcess
    snapshots: list[Snapshot]

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(snapshot.version for snapshot in self.snapshots)


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    with process_swarm(RUN) as swarm:
        seed = swarm.start("seed", *SLOWED, command="seed", has_record=True)
        wait_until(lambda: "Listening on" in seed.stderr, "the seed is up")
        trainer = swarm.start("early", peers=[seed.address])
        # Steps are fast: after a fixed number of them the seed might have fetched the state, and seen no commit.
        for fragment in range(len(seed_sizes(swarm.run.manifest))):
            seed.wait_for(AppliedCommit, partial(applies, fragment), seconds=MANY_SECONDS)
        trainer.process.send_signal(signal.SIGTERM)
        assert trainer.wait_end(MANY_SECONDS) == 0
        kept = Kept(swarm, seed, asyncio.run(state_of(swarm, seed)))
        yield kept
        assert "Traceback" not in kept.seed.stderr


def applies(fragment: int, event: AppliedCommit) -> bool:
    return event.fragment == fragment


async def state_of(swarm: ProcessSwarm, seed: PeerProcess, backend: HostBackend = "p2pd") -> list[Snapshot]:
    async with observe(swarm.run_id, [seed.address], 60.0, backend) as observer:
        return [fetched.snapshot for fetched in await observer.fetch_anchors(await observer.records())]


class Shelf:
    """What a donor gives away: the run's state as it was left."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots

    async def snapshot(self, fragment: int) -> Snapshot | None:
        return self._snapshots[fragment]

    def digest_at(self, fragment: int, version: int) -> bytes:
        snapshot = self._snapshots[fragment]
        return snapshot.digest if version == snapshot.version else b""

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        return ()


class Donor(StateServer):
    """Serves as any member does; `on_chunk` is asked before each chunk and may wait, change it, or die."""

    def __init__(self, member: HostileMember, snapshots: Sequence[Snapshot]) -> None:
        super().__init__(member.host, member.handshake_policy, Shelf(snapshots), len(snapshots))
        self.member = member
        self.num_sent = 0

    async def on_chunk(self, chunk: memoryview) -> memoryview:
        return chunk

    async def _send_chunk(self, stream: Stream, chunk: memoryview) -> None:
        await super()._send_chunk(stream, await self.on_chunk(chunk))
        self.num_sent += 1


class Dying(Donor):
    """Its daemon is killed when it has sent `most` chunks: the connection breaks without a word."""

    def __init__(self, member: HostileMember, snapshots: Sequence[Snapshot], most: int) -> None:
        super().__init__(member, snapshots)
        self.most = most
        self.is_dead = asyncio.Event()

    async def on_chunk(self, chunk: memoryview) -> memoryview:
        if self.num_sent >= self.most and not self.is_dead.is_set():
            process_id = self.member.host.daemon.process_id
            assert process_id is not None
            os.kill(process_id, signal.SIGKILL)
            self.is_dead.set()
        return chunk


class Lying(Donor):
    """Changes one bit of every chunk."""

    def __init__(self, member: HostileMember, snapshots: Sequence[Snapshot]) -> None:
        super().__init__(member, snapshots)
        self.has_lied = asyncio.Event()

    async def on_chunk(self, chunk: memoryview) -> memoryview:
        self.has_lied.set()
        changed = bytearray(chunk)
        changed[len(changed) // 2] ^= 1
        return memoryview(changed)


class Waiting(Donor):
    """Sends `most` chunks, and the rest when the other donor has done what it is there for."""

    def __init__(self, member: HostileMember, snapshots: Sequence[Snapshot], most: int, go_on: asyncio.Event) -> None:
        super().__init__(member, snapshots)
        self.most = most
        self.go_on = go_on

    async def on_chunk(self, chunk: memoryview) -> memoryview:
        if self.num_sent >= self.most:
            await self.go_on.wait()
        return chunk


@asynccontextmanager
async def member_with_state(kept: Kept, *addresses: str) -> AsyncIterator[HostileMember]:
    """A member that announces the state of the run, and gives the run's record to whoever asks."""
    async with hostile_member(kept.swarm, *addresses) as member:
        member.host.handle(RUN_PROTOCOL, answering(kept.swarm.run.run_record_path.read_bytes()))

        async def announce() -> None:
            while True:
                await member.announce(
                    role="seed",
                    state="serving",
                    versions=kept.versions,
                    digests=tuple(snapshot.digest[:8] for snapshot in kept.snapshots),
                    lineage_tokens=tuple(snapshot.lineage_tokens for snapshot in kept.snapshots),
                )
                await asyncio.sleep(ANNOUNCE_SECONDS)

        announcing = asyncio.create_task(announce())
        try:
            yield member
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)


async def assert_has_state(kept: Kept, joiner: PeerProcess, other: HostileMember) -> None:
    """Bit for bit: asked by another member, it names the digests that everybody had."""
    await asyncio.to_thread(joiner.wait_for, Fetched, lambda fact: bool(fact.fragments), seconds=MANY_SECONDS)
    await asyncio.to_thread(joiner.wait_joined, seconds=MANY_SECONDS)
    await other.host.connect(joiner.address, 30.0)
    for index, snapshot in enumerate(kept.snapshots):
        digest = await fetch_digest(other.host, other.handshake_policy, joiner.peer_id, index, snapshot.version)
        assert digest == snapshot.digest


def num_chunks(kept: Kept) -> int:
    """Of all fragments together."""
    megabytes = 1024 * 1024
    return sum(2 * -(-4 * snapshot.anchor.size // megabytes) for snapshot in kept.snapshots)


def test_an_observer_without_a_daemon_fetches_the_same_state_and_the_commits(kept: Kept) -> None:
    pytest.importorskip("libp2p", reason="the observer extra is not installed: pip install '.[observer]'")
    found = asyncio.run(state_of(kept.swarm, kept.seed, "libp2p"))
    assert [snapshot.digest for snapshot in found] == [snapshot.digest for snapshot in kept.snapshots]
    for ours, theirs in zip(found, kept.snapshots, strict=True):
        assert np.array_equal(ours.anchor, theirs.anchor)
        assert np.array_equal(ours.momentum, theirs.momentum)

    async def commits() -> list[Commit]:
        async with observe(kept.swarm.run_id, [kept.seed.address], 60.0, "libp2p") as observer:
            run = await observer.store.fetch_run(kept.swarm.run_id)
            assert run is not None
            fetch = open_log(observer.host, decode_run_record(run, run_id=kept.swarm.run_id))
            found: list[Commit] = []
            while page := await fetch(kept.seed.peer_id, 0, found[-1].version + 1 if found else 0):
                for receipt in page:
                    frame_of, frame = open_receipt(kept.swarm.run_id, receipt)
                    commit, _ = decode(frame, kept.seed.peer_id, frame_of.limits)
                    assert isinstance(commit, Commit)
                    found.append(commit)
            return found

    known = asyncio.run(commits())
    assert known
    assert known[-1].version == kept.versions[0] - 1


def test_a_donor_that_is_killed_only_slows_it_down_and_one_that_sends_other_bytes_is_named(kept: Kept) -> None:
    async def play_death() -> None:
        async with member_with_state(kept) as steady, member_with_state(kept, steady.address) as victim:
            dying = Dying(victim, kept.snapshots, num_chunks(kept) // 4)
            Waiting(steady, kept.snapshots, num_chunks(kept) // 2, dying.is_dead)
            joiner = kept.swarm.start("half-way", command="seed", peers=[steady.address])
            await assert_has_state(kept, joiner, steady)
            assert dying.is_dead.is_set()
            assert dying.num_sent >= dying.most
            assert "Traceback" not in joiner.stderr
            joiner.kill_all()

    async def play_lie() -> None:
        async with member_with_state(kept) as steady, member_with_state(kept, steady.address) as liar:
            lying = Lying(liar, kept.snapshots)
            Waiting(steady, kept.snapshots, num_chunks(kept) // 2, lying.has_lied)
            joiner = kept.swarm.start("lied-to", command="seed", peers=[steady.address])
            await assert_has_state(kept, joiner, steady)
            assert lying.has_lied.is_set()
            assert f"donor {liar.identity.peer_id[-8:]}" in joiner.stderr
            assert f"donor {steady.identity.peer_id[-8:]}" not in joiner.stderr
            assert "Traceback" not in joiner.stderr
            joiner.kill_all()

    # The seed is away meanwhile, and comes back from its disk, alone.
    kept.seed.process.send_signal(signal.SIGTERM)
    assert kept.seed.wait_end() == 0
    assert "Traceback" not in kept.seed.stderr
    asyncio.run(play_death())
    asyncio.run(play_lie())
    mark = kept.seed.mark()
    kept.seed = kept.swarm.start("seed", *SLOWED, command="seed", port=kept.seed.port)
    assert kept.seed.wait_joined(after=mark, seconds=MANY_SECONDS).versions == kept.versions


@pytest.mark.parametrize("num_seeds", sampled([1, 8], one_in=2))
def test_many_joiners_at_once_share_the_donors(kept: Kept, num_seeds: int) -> None:
    swarm, seed = kept.swarm, kept.seed
    second = swarm.start(f"second-{num_seeds}", *SLOWED, command="seed", peers=[seed.address])
    second.wait_joined(seconds=MANY_SECONDS)
    addresses = [seed.address, second.address]
    trainers = [swarm.start(f"trainer-{num_seeds}-{number}", peers=addresses) for number in range(2)]
    seeds = [swarm.start(f"seed-{num_seeds}-{number}", command="seed", peers=addresses) for number in range(num_seeds)]
    donors: set[PeerId] = set()
    for joiner in (*trainers, *seeds):
        caught_up = joiner.wait_for(Fetched, lambda fact: bool(fact.fragments), seconds=MANY_SECONDS)
        assert caught_up.fragments == (0, 1)
        donors.update(caught_up.donors)
    assert {seed.peer_id, second.peer_id} <= donors
    # Newcomers are part of the rounds, and everybody follows them.
    trainers[0].wait_common_round(trainers[1].peer_id, after=0, seconds=MANY_SECONDS)
    for follower in (seed, second, *seeds):
        follower.wait_for(AppliedCommit, lambda event: event.version > max(kept.versions), seconds=MANY_SECONDS)
    for peer in (*trainers, *seeds, second):
        peer.process.send_signal(signal.SIGTERM)
    for peer in (*trainers, *seeds, second):
        assert peer.wait_end(MANY_SECONDS) == 0, peer.last_words()
