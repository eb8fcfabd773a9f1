"""What a peer takes over is what was weighed: members that show one anchor and hand out another one. Simulated network.

Two peers that left one anchor, each alone, are the stage: the claimant's signed commits count, nobody else is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_step import anchor_digest
from averaging.rounds.attempt import LaterVersions
from averaging.rounds.presence import MemberPresence
from averaging.signing.commit_log import CommitLog
from averaging.transfer.client import commits_in
from averaging.transfer.snapshots import Snapshot
from averaging.wire import frames as wire
from averaging.wire.field_checks import Limits
from averaging.wire.messages import DIGEST_BYTES, Commit, RosterEntry, ShardResult
from dht.ground.host import PeerId, Stream
from peer.network.node.anchor_repairs import AnchorRepairs
from tests.kit.network.memory_networks import named, now
from tests.kit.notaries import signed
from tests.kit.rounds.donor_scene import JOINER, NUM_VALUES, Donor, Scene, empty_state, in_scene

COMMON = 4
"""The version at which both were; the claimant has made the next one alone."""


def commit_by(maker: PeerId, version: int, digest: bytes, tokens: int = 300) -> Commit:
    roster = (RosterEntry(maker, tokens, 30, version, 1),)
    shard = ShardResult(0, NUM_VALUES, 0, bytes(DIGEST_BYTES), (0,))
    return signed(Commit(0, version, 0, maker, digest[:DIGEST_BYTES], roster, (shard,)))


class Victim:
    """A peer at the anchor `main` of version `COMMON`, and all that `AnchorRepairs` needs of it."""

    def __init__(self, scene: Scene, log: Sequence[Commit] = ()) -> None:
        state = empty_state()
        start = scene.world.state("main", 0, COMMON)
        state.adopt(start.anchor, start.momentum, COMMON, start.lineage_tokens, start.digest)
        self.state = state
        self.adopted: list[tuple[int, bytes]] = []
        self.fragment = SimpleNamespace(
            index=0,
            state=state,
            log=CommitLog(),
            machine=SimpleNamespace(timing=None, later=LaterVersions()),
        )
        self.is_repairing = False
        self.fragment.log.replace(log)
        self.fragment.anchors = self._anchors
        self.fragment.had = lambda version, digest: self._anchors().get(version) == digest[:DIGEST_BYTES]
        exchange = SimpleNamespace(
            me=named(JOINER),
            fragments=[self.fragment],
            guard=SimpleNamespace(
                chain_objection=lambda commits, timing: "",
                follows=lambda commits, machine: True,
                presence=MemberPresence(named(0)),
            ),
            applying=SimpleNamespace(
                say_version=lambda fragment, peer_id: None,
                adopt=self._adopt,
                is_repairing=lambda fragment: self.is_repairing,
                begin_repair=self._begin_repair,
                end_repair=self._end_repair,
                looked_into=lambda fragment, claimed_by: None,
            ),
        )
        neighbours = SimpleNamespace(
            members=scene.company.members,
            heads=lambda index: {(one.versions[index], one.digests[index]) for one in scene.company.members()},
        )
        self.repairs = AnchorRepairs(exchange, scene.fetcher, neighbours, lambda fact: None, nothing)  # type: ignore[arg-type]

    def _anchors(self) -> dict[int, bytes]:
        return {**self.fragment.log.anchors(), self.state.version: self.state.digest[:DIGEST_BYTES]}

    def _begin_repair(self, fragment: object) -> bool:
        was_repairing, self.is_repairing = self.is_repairing, True
        return not was_repairing

    async def _adopt(
        self, fragment: object, set_state: Callable[[FragmentState], None], commits: Sequence[Commit]
    ) -> None:
        set_state(self.state)
        self.adopted.append((self.state.version, self.state.digest))

    def _end_repair(self, fragment: object) -> None:
        self.is_repairing = False


async def nothing() -> None:
    pass


def show_chain(donor: Donor, *commits: Commit) -> None:
    def frames(fragment: int, version: int) -> list[bytes]:
        return [wire.encode(commit) for commit in commits if fragment == 0 and commit.version >= version]

    donor.commit_frames = frames  # type: ignore[method-assign]


def shown(donor: Donor) -> list[Commit]:
    """What `show_chain` had it show."""
    limits = Limits((NUM_VALUES, NUM_VALUES), 4096)
    return commits_in(donor.commit_frames(0, 0), donor.peer_id, 0, 0, limits)


def hand_out(donor: Donor, version: int, value: float) -> None:
    """A constant state, whatever its digests and commits say."""
    anchor, momentum = np.full(NUM_VALUES, value, dtype=np.float32), np.zeros(NUM_VALUES, dtype=np.float32)
    bait = Snapshot(version, 10**6, anchor, momentum, anchor_digest(anchor, momentum))

    async def snapshot(fragment: int) -> Snapshot:
        return bait

    donor.snapshot = snapshot  # type: ignore[method-assign]


def other_version(donor: Donor) -> None:
    hand_out(donor, 25, 1e6)


def earlier_version(donor: Donor) -> None:
    hand_out(donor, COMMON, 1e6)


def other_digest(donor: Donor) -> None:
    hand_out(donor, COMMON + 1, 1e6)


def other_chunks(donor: Donor) -> None:
    send_chunk = donor.server._send_chunk

    async def send_other(stream: Stream, chunk: memoryview) -> None:
        await send_chunk(stream, memoryview(bytes(len(chunk))))

    donor.server._send_chunk = send_other  # type: ignore[method-assign]


def further_version_with_a_gap(donor: Donor) -> None:
    """Its signed commits lead to another one than what it hands out, with many more tokens."""
    hand_out(donor, COMMON + 3, 1e6)
    show_chain(donor, *shown(donor), commit_by(donor.peer_id, COMMON + 2, b"elsewhere" * 4, 10**6))


def claimant_of(scene: Scene) -> Donor:
    donor = scene.donors[0]
    start = scene.world.state("main", 0, COMMON)
    show_chain(donor, commit_by(donor.peer_id, COMMON, start.digest))
    return donor


SWITCHES = [other_version, earlier_version, other_digest, other_chunks, further_version_with_a_gap]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.__name__)
def test_nothing_else_than_what_was_weighed_is_taken_over(switch: Callable[[Donor], None]) -> None:
    async def play(scene: Scene) -> None:
        switch(claimant_of(scene))
        victim = Victim(scene)
        before = victim.state.version, victim.state.digest
        for _ in range(20):
            await victim.repairs.audit()
            await victim.repairs.repair(0, scene.donors[0].peer_id, "it says so")
            await asyncio.sleep(0.5)
        assert victim.adopted == []
        assert (victim.state.version, victim.state.digest) == before
        assert not victim.is_repairing, "rounds go on"

    in_scene(1, play)


def test_who_hands_out_something_else_is_listened_to_less_and_less() -> None:
    async def play(scene: Scene) -> tuple[int, int]:
        donor = claimant_of(scene)
        other_version(donor)
        victim = Victim(scene)
        fetch, num = scene.fetcher.fetch, []

        async def counted(*args: object, **kwargs: object) -> object:
            num.append(now())
            return await fetch(*args, **kwargs)  # type: ignore[arg-type]

        scene.fetcher.fetch = counted  # type: ignore[assignment,method-assign]
        for _ in range(2):
            began = now()
            while now() < began + 60.0:
                await victim.repairs.repair(0, donor.peer_id, "it says so")
                await asyncio.sleep(0.5)
        return sum(at < began for at in num), sum(at >= began for at in num)

    first, second = in_scene(1, play)
    assert first > second


def test_what_was_weighed_is_taken_over_and_what_its_members_went_on_to() -> None:
    async def weighed(scene: Scene) -> None:
        claimant_of(scene)
        victim = Victim(scene)
        await victim.repairs.repair(0, scene.donors[0].peer_id, "it says so")
        assert victim.adopted == [(COMMON + 1, scene.world.state("main", 0, COMMON + 1).digest)]

    async def gone_on(scene: Scene) -> None:
        donor = claimant_of(scene)
        victim = Victim(scene)
        standing = scene.fetcher.claims.standing

        async def weigh_and_go_on(*args: object) -> object:
            found = await standing(*args)  # type: ignore[arg-type]
            if donor.versions[0] == COMMON + 1:
                show_chain(donor, *shown(donor), commit_by(donor.peer_id, COMMON + 1, donor.state(0).digest))
                donor.advance(0)
            return found

        scene.fetcher.claims.standing = weigh_and_go_on  # type: ignore[assignment]
        await victim.repairs.repair(0, donor.peer_id, "it says so")
        last = scene.world.state("main", 0, COMMON + 2)
        assert victim.adopted == [(COMMON + 2, last.digest)]
        start = scene.world.state("main", 0, COMMON)
        assert victim.state.lineage_tokens == start.lineage_tokens + 600, "of signed commits, not as it was claimed"

    in_scene(1, weighed)
    in_scene(1, gone_on)


# --- forks on more than two sides, and donors that part ---


@pytest.mark.parametrize(("num_apart", "num_together", "is_taken"), [(1, 0, True), (3, 0, True), (0, 2, False)])
def test_where_everybody_is_alone_signed_tokens_decide(num_apart: int, num_together: int, is_taken: bool) -> None:
    """Members on third sides stood up for the own one: then nobody gave in, for ever."""

    async def play(scene: Scene) -> None:
        donor = claimant_of(scene)
        for number, other in enumerate(scene.donors[1:]):
            lineage = f"side {number if number < num_apart else 'shared'}"
            state = scene.world.state(lineage, 0, COMMON + 1)
            other.lineage, other.known = lineage, {(0, COMMON + 1): state.digest}
        victim = Victim(scene)
        await victim.repairs.repair(0, donor.peer_id, "it says so")
        theirs = scene.world.state("main", 0, COMMON + 1)
        assert (victim.state.digest == theirs.digest) == is_taken

    in_scene(1 + num_apart + num_together, play)


def seconds_in_vain(scene: Scene) -> Awaitable[float]:
    async def fetch() -> float:
        began = now()
        names = [donor.peer_id for donor in scene.donors]
        assert await scene.fetcher.fetch(0, NUM_VALUES, names, voters=frozenset(names)) is None
        return now() - began

    return fetch()


def test_members_that_part_hold_no_repair_up() -> None:
    """A repair keeps its peer out of rounds: it ends, and a later one begins anew."""

    async def play(scene: Scene) -> float:
        for number, donor in enumerate(scene.donors):
            donor.lineage = f"side {number}"
            donor.known = {(0, 5): donor.state(0).digest}

        async def move_on() -> None:
            while True:
                await asyncio.sleep(3.0)
                for donor in scene.donors:
                    donor.advance(0)

        moving = asyncio.ensure_future(move_on())
        try:
            return await seconds_in_vain(scene)
        finally:
            moving.cancel()

    assert in_scene(2, play) < 10.0


def test_a_member_that_is_always_busy_holds_no_repair_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: object) -> str:
        return "busy"

    monkeypatch.setattr("peer.network.anchors.donor_agreement.fetch_header", busy)
    assert in_scene(1, seconds_in_vain) < 5.0


@pytest.mark.parametrize(("num_others", "is_taken"), [(0, False), (1, True)])
@pytest.mark.parametrize("num_later", [0, 1])
def test_a_commit_that_was_applied_here_leads_nowhere_else(num_later: int, num_others: int, is_taken: bool) -> None:
    """Only most members together show that the wrong anchor is this peer's own. Seed 820 of the free records."""

    async def play(scene: Scene) -> None:
        victim = Victim(scene)
        before = scene.world.state("main", 0, COMMON - 1).digest
        applied = commit_by(named(JOINER), COMMON - 1, before)
        victim.fragment.log.replace([applied])
        victim.fragment.log.note_anchor(COMMON - 1, before)
        victim.fragment.log.note_anchor(COMMON, victim.state.digest)
        lineages = (f"side {number}" for number in range(100))
        # Of equally heavy anchors, the larger digest counts.
        side = next(name for name in lineages if scene.world.state(name, 0, COMMON).digest > victim.state.digest)
        version, false = COMMON + num_later, scene.world.state(side, 0, COMMON).digest
        later = [commit_by(scene.donors[0].peer_id, COMMON, false, 10**6)] * num_later
        for donor in scene.donors:
            donor.lineage, donor.versions = side, [version, version]
            donor.known = {(0, at): scene.world.state(side, 0, at).digest for at in range(COMMON, version + 1)}
            show_chain(donor, applied, *later)
        await victim.repairs.repair(0, scene.donors[0].peer_id, "it says so")
        assert bool(victim.adopted) == is_taken

    in_scene(1 + num_others, play)


def test_an_earlier_anchor_of_the_chain_is_no_switch() -> None:
    """One that is a round behind gives what it has, if that counts by itself."""

    async def play(scene: Scene) -> None:
        donor = claimant_of(scene)
        victim = Victim(scene)
        far = scene.world.state("main", 0, COMMON + 1)
        show_chain(donor, *shown(donor), commit_by(donor.peer_id, COMMON + 1, far.digest))
        donor.known[0, COMMON + 2] = scene.world.state("main", 0, COMMON + 2).digest
        await victim.repairs.repair(0, donor.peer_id, "it says so")
        assert victim.adopted == [(COMMON + 1, far.digest)]

    in_scene(1, play)


def test_a_member_on_the_way_to_the_anchor_holds_no_repair_up() -> None:
    """It stands behind the chain, and does not know the anchor yet: nor does it speak against it."""

    async def play(scene: Scene) -> None:
        late = scene.donors[1]
        late.versions, late.known = [4, 4], {(0, 4): scene.world.state("main", 0, 4).digest}
        names = [donor.peer_id for donor in scene.donors]
        found = await scene.fetcher.fetch(0, NUM_VALUES, names, voters=frozenset(names))
        assert found is not None
        assert found.snapshot.version == 5

    in_scene(2, play)
