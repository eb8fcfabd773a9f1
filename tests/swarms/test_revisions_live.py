"""An allowlist swarm in virtual time: strangers train alone; the owner's changes count at one version on every peer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from averaging.rounds.round_facts import AppliedCommit, RoundCommitted
from dht.admission.admission import Admission
from dht.admission.handshake_frames import AccessRule
from dht.identity.keys import Identity, make_run_id
from dht.records.signature_cache import VerifiedRecords
from peer.config.manifest import RunManifest
from peer.events.peer_events import Event, RefusedPeer, RunChanged
from peer.network.membership.manifest_revisions import WHEN_JOINING, member_rules
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.simulator.network.host import MemoryNetwork
from tests.simulator.network.store import MemoryRecords
from tests.simulator.peer import EPOCH_SECONDS, SOFTWARE, Life, SimulatedPeer, World, simulated_identity, workload_of
from tests.simulator.scenarios.spec import LIGHT_WORK, SimulationSpec, tiny_manifest
from tests.simulator.virtual_time import run_virtual
from tests.simulator.workload import one_thread

OWNER = Identity.from_seed(b"o" * 32)
SEED = 5
MEMBERS = tuple(simulated_identity(SEED, index).peer_id for index in range(3))
LONG_SECONDS = 300.0
EARLY = 4
"""By this version everybody has met everybody."""


def listed(*changes: dict[str, Any], revision: int = 1) -> RunManifest:
    fields = tiny_manifest(SEED).model_dump(mode="json")
    fields["access"] = {"mode": "allowlist", "members": sorted(MEMBERS)}
    return RunManifest.from_fields({**fields, "revision": revision, "changes": list(changes)})


class Swarm:
    """Three listed peers and, as the last one, a stranger who has somebody's manifest but is on no list."""

    def __init__(self, num_peers: int = 3) -> None:
        self.events: dict[int, list[Event]] = {index: [] for index in range(num_peers)}
        self.manifest = listed()
        spec = SimulationSpec(num_peers, 0, SEED, self.manifest, duration_seconds=LONG_SECONDS, workload=LIGHT_WORK)
        network = MemoryNetwork(SEED, latency_seconds=spec.latency_seconds)
        records = MemoryRecords(network, lambda: EPOCH_SECONDS + World.now(), 0.5, VerifiedRecords(256))
        self.run_id = make_run_id("simulated", OWNER.public_key)
        self.world = World(
            spec, self.run_id, network, records, workload_of(spec), self._note, asyncio.Event(), entry=self._entry
        )
        self.peers = [SimulatedPeer(self.world, index) for index in range(num_peers)]
        for peer in self.peers:
            peer.start()

    def _note(self, index: int, event: Event) -> None:
        self.events[index].append(event)

    def _entry(self, identity: Identity) -> tuple[RunHandshakePolicy, bytes]:
        nonces = iter(range(10**9))
        admission = Admission(
            identity,
            self.run_id,
            self.world.wall_clock,
            lambda: next(nonces).to_bytes(8, "big") + identity.public_key[:8],
            rules=member_rules(self.manifest, OWNER.public_key, WHEN_JOINING),
        )
        rule = AccessRule(self.run_id, self.manifest.hash, SOFTWARE, self.manifest.rules)
        return RunHandshakePolicy(rule, identity.peer_id, "trainer", admission), OWNER.public_key

    def life(self, index: int) -> Life:
        return self.peers[index].lives[-1]

    def version(self, index: int) -> int:
        return min(self.life(index).node.versions())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONG_SECONDS):
            while not condition():  # noqa: ASYNC110 (the swarm is looked at from outside)
                await asyncio.sleep(0.5)

    async def revise(self, newer: RunManifest, *indices: int) -> None:
        """What `NetworkSide` does once it has found the owner's later revision; each peer at a time of its own."""
        for index in indices:
            assert self.life(index).node.revisions.take(newer)
            await asyncio.sleep(1.0)

    def digests(self, index: int) -> dict[tuple[int, int], str]:
        return {
            (e.fact.fragment, e.fact.version): e.fact.digest
            for e in self.events[index]
            if isinstance(e.fact, AppliedCommit)
        }

    async def end(self) -> None:
        for peer in self.peers:
            for life in peer.lives:
                life.kill()
        await asyncio.gather(*(life.ended() for peer in self.peers for life in peer.lives))


def run(scene: Callable[[Swarm], Awaitable[None]], num_peers: int = 3) -> None:
    """Play a scene in virtual time; afterwards nobody lives, also when it failed."""

    async def play() -> None:
        swarm = Swarm(num_peers)
        try:
            await scene(swarm)
        finally:
            await swarm.end()

    with one_thread():
        run_virtual(play(), seed=SEED)


def test_listed_keys_train_together_and_a_stranger_alone() -> None:
    async def scene(swarm: Swarm) -> None:
        await swarm.until(lambda: all(swarm.version(index) >= 6 for index in range(4)))
        stranger = swarm.peers[3].identity.peer_id
        for index in range(4):
            commits = [event.fact for event in swarm.events[index] if isinstance(event.fact, RoundCommitted)]
            assert commits
            expected = set(MEMBERS) if index < 3 else {stranger}
            assert all(set(commit.contributors) <= expected for commit in commits)
        together = [e for e in swarm.events[0] if isinstance(e.fact, RoundCommitted) and len(e.fact.contributors) == 3]
        assert together
        refused = [e.fact for index in range(3) for e in swarm.events[index] if isinstance(e.fact, RefusedPeer)]
        assert {fact.remote for fact in refused} == {stranger}
        assert any("is not on the list" in fact.reason for fact in refused)

    run(scene, num_peers=4)


def test_a_lower_rate_counts_from_its_version_on_every_peer_and_anchors_stay_equal() -> None:
    kept: dict[bool, dict[tuple[int, int], str]] = {}
    at = EARLY + 4
    for is_revised in (False, True):

        async def scene(swarm: Swarm) -> None:
            await swarm.until(lambda: all(swarm.version(index) >= EARLY for index in range(3)))
            assert max(max(swarm.life(index).node.versions()) for index in range(3)) < at - 1
            if is_revised:  # noqa: B023
                await swarm.revise(listed({"at_version": at, "outer_lr": 0.01}, revision=2), 2, 0, 1)
            await swarm.until(lambda: all(swarm.version(index) >= at + 3 for index in range(3)))
            digests = [swarm.digests(index) for index in range(3)]
            # Before everybody had met everybody there may have been forks.
            common = {key for key in digests[0] if key[1] > EARLY and all(key in others for others in digests)}
            assert all(digests[0][key] == digests[1][key] == digests[2][key] for key in common)
            assert any(key[1] > at for key in common)
            kept[is_revised] = {key: digests[0][key] for key in common}  # noqa: B023

        run(scene)
    both = set(kept[False]) & set(kept[True])
    # The commit that leaves version `at` is the first with the lower rate; it makes version at + 1.
    same = {key for key in both if kept[False][key] == kept[True][key]}
    assert {key for key in both if key[1] <= at} == {key for key in same if key[1] <= at + 1}
    assert any(key[1] == at + 1 for key in both)


def test_the_run_ends_at_one_version_on_every_peer() -> None:
    async def scene(swarm: Swarm) -> None:
        await swarm.until(lambda: all(swarm.version(index) >= 2 for index in range(3)))
        end = 3 + max(max(swarm.life(index).node.versions()) for index in range(3))
        await swarm.revise(listed({"at_version": end, "ends_run": True}, revision=2), 1, 2, 0)
        await swarm.until(lambda: all(swarm.life(index).node.revisions.has_ended for index in range(3)))
        for index in range(3):
            assert [
                e.fact.end_version for e in swarm.events[index] if isinstance(e.fact, RunChanged) and e.fact.has_ended
            ] == [end]
            assert swarm.version(index) >= end

    run(scene)


def test_who_is_revoked_or_too_old_stops_at_the_version_and_says_why() -> None:
    async def scene(swarm: Swarm) -> None:
        await swarm.until(lambda: all(swarm.version(index) >= 2 for index in range(3)))
        at = 2 + max(max(swarm.life(index).node.versions()) for index in range(3))
        revoked = {"at_version": at, "revoke": [MEMBERS[2]]}
        await swarm.revise(listed(revoked, revision=2), 0, 1, 2)
        await swarm.until(lambda: swarm.life(2).running.done())
        assert "the owner of the run revoked this peer's key" in "".join(swarm.life(2).failures)
        assert swarm.life(2).mailbox.network.stop == 1
        reached = swarm.version(0)
        await swarm.until(lambda: swarm.version(0) >= reached + 3)
        late = [e.fact for e in swarm.events[0] if isinstance(e.fact, RoundCommitted) and e.fact.version > at + 1]
        assert late
        assert all(MEMBERS[2] not in commit.contributors for commit in late)

        at = 2 + max(max(swarm.life(index).node.versions()) for index in range(2))
        await swarm.revise(listed(revoked, {"at_version": at, "minimum_software": "99.0.0"}, revision=3), 0, 1)
        await swarm.until(lambda: all(swarm.life(index).running.done() for index in range(2)))
        for index in range(2):
            assert "requires software 99.0.0 or newer" in "".join(swarm.life(index).failures)

    run(scene)
