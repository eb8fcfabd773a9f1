"""Whole rounds over a simulated network: real frames, real tensors, virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from averaging import wire
from averaging.codec import make_codec
from averaging.exchange import Exchange
from averaging.exchange_reports import RepairNeeded, RoundBegan, RoundClosed, WorkExpired
from averaging.fragment_runtime import FragmentRuntime
from averaging.fragment_state import FragmentState
from averaging.links import ROUND_PROTOCOL, Links
from averaging.messages import DIGEST_BYTES, Contribution, Result, VersionIs
from averaging.outer import OuterRule
from averaging.round import RoundMachine
from averaging.round_timing import RoundTiming
from averaging.shard_store import ShardStore
from dht.errors import PeerFault
from dht.memory_host import MemoryHost, MemoryNetwork
from peer.virtual_time import run_virtual
from tests.memory_networks import named

SIZES = (300, 20_000)  # one reducer, and two
RULE = OuterRule("carry", 0.7, 0.5, overlay_gain=0.7)


class OpenDoor:
    """Whoever knows the word may come in."""

    def hello(self):
        return b"hello"

    def admit(self, remote, hello):
        if hello != b"hello":
            raise PeerFault(remote, "does not know the word")

    def welcome(self):
        return b"welcome"

    def refusal(self, reason):
        return reason.encode()

    def check_reply(self, remote, reply):
        if reply != b"welcome":
            raise PeerFault(remote, reply.decode())


async def inline(work):
    return work()


def now():
    return asyncio.get_running_loop().time()


class Peer:
    """An exchange on a host, and what a trainer would keep: the live parameters of each fragment."""

    def __init__(self, swarm, number, rule, codec):
        self.swarm, self.name = swarm, named(number)
        self.reports, self.refused = [], []
        self.codec = make_codec(codec, 16)
        self.fragments = [self._fragment(rule, index, size) for index, size in enumerate(SIZES)]
        self.live = [fragment.state.anchor.clone() for fragment in self.fragments]
        self.exchange = Exchange(
            self.name,
            rule,
            self.codec,
            self.fragments,
            clock=now,
            compute=inline,
            deliver=self._deliver,
            report=self._report,
            first_sequence=1000 * number,
        )
        host = MemoryHost(swarm.network, self.name)
        limits = wire.Limits(SIZES, max(self.codec.encoded_num_bytes(size) for size in SIZES))
        self.links = Links(
            host,
            OpenDoor(),
            limits,
            self.exchange.on_message,
            self.exchange.peer_lost,
            lambda remote, reason: self.refused.append((remote, reason)),
            now,
        )
        self.exchange.links = self.links

    def _fragment(self, rule, index, size):
        anchor = torch.randn(size, generator=torch.Generator().manual_seed(index))
        state = FragmentState(rule, self.codec, anchor, torch.zeros(size), torch.zeros(size))
        state.refresh_digest()
        timing = RoundTiming.with_bounds(30.0)
        machine = RoundMachine(self.name, "run", index, size, self.codec.block_size, timing)
        machine.anchor_digest = state.digest[:DIGEST_BYTES]
        return FragmentRuntime(index, state, machine, ShardStore(self.codec, size), digests={0: state.digest})

    def _deliver(self, index, change, version):
        self.live[index] += change

    def _report(self, report):
        self.reports.append(report)
        if isinstance(report, RepairNeeded):
            self.swarm.tasks.append(asyncio.get_running_loop().create_task(self._repair(report)))

    async def _repair(self, report):
        """What the node does, from the donor's memory."""
        await asyncio.sleep(0.5)
        donor = self.swarm.peers[report.peer_id].fragments[report.fragment]
        theirs, mine = donor.state, self.fragments[report.fragment].state
        reachable = self.swarm.network.can_reach(self.name, report.peer_id)
        if reachable and (theirs.lineage_tokens, theirs.digest) > (mine.lineage_tokens, mine.digest):
            values = (
                theirs.anchor.clone(),
                theirs.momentum.clone(),
                theirs.version,
                theirs.lineage_tokens,
                theirs.digest,
            )
            commits = [donor.machine.history[version] for version in sorted(donor.machine.history)]
            await self.exchange.adopt(report.fragment, lambda state: state.adopt(*values), commits)
        self.exchange.repaired(report.fragment)

    async def work(self, index, seed):
        """Local training of one interval, handed over."""
        values = 0.01 * torch.randn(SIZES[index], generator=torch.Generator().manual_seed(seed))
        self.live[index] -= values
        state = self.fragments[index].state
        base_version = max(0, state.version - 1)
        await self.exchange.work_arrived(index, lambda state: state.receive_work(values, 100, 10, base_version))

    def closed(self, *indexes):
        reports = [report for report in self.reports if isinstance(report, RoundClosed)]
        return [report for report in reports if report.fragment in (indexes or (0, 1))]


class Swarm:
    def __init__(self, num_peers, *, seed=1, rule=RULE, codec="int4", num_trainers=None, **network):
        self.network = MemoryNetwork(seed, **network)
        self.tasks = []
        everyone = [Peer(self, number, rule, codec) for number in range(num_peers)]
        self.peers = {peer.name: peer for peer in everyone}
        self.trainers = everyone[:num_trainers] if num_trainers else everyone
        self.set_views()

    def live(self):
        return [self.peers[name] for name in sorted(self.peers) if name in self.network.live_peers()]

    def set_views(self, sees=lambda peer, other: True):
        for peer in self.live():
            trainers = [other.name for other in self.live() if other in self.trainers and sees(peer, other)]
            followers = [other.name for other in self.live() if other not in self.trainers and sees(peer, other)]
            peer.exchange.set_view(trainers, followers)

    async def train(self, num_intervals, interval_seconds=5.0, first_seed=0):
        """Everybody hands over work of every fragment once an interval, each at a time of its own."""
        chance = random.Random(first_seed)
        for interval in range(num_intervals):
            offsets = sorted((chance.uniform(0, 0.5), peer.name) for peer in self.trainers)
            began = now()
            for offset, name in offsets:
                await asyncio.sleep(max(0.0, began + offset - now()))
                if self.peers[name] in self.live():
                    for index in range(len(SIZES)):
                        await self.peers[name].work(index, first_seed + 100 * interval + 7 * index + int(1000 * offset))
            await asyncio.sleep(max(0.0, began + interval_seconds - now()))

    async def settle(self, seconds=90.0):
        """Time for the last rounds; then announced anchors are compared, as the node does."""
        await asyncio.sleep(seconds)
        for peer in self.live():
            for other in self.live():
                for mine, theirs in zip(peer.fragments, other.fragments, strict=True):
                    if (theirs.state.lineage_tokens, theirs.state.digest) > (
                        mine.state.lineage_tokens,
                        mine.state.digest,
                    ):
                        peer.exchange.audit(mine.index, other.name)
        await asyncio.sleep(seconds)

    async def close(self):
        for peer in self.peers.values():
            await peer.exchange.close()
            await peer.links.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def assert_agreement(self, least_version=1):
        assert self.network.handler_errors == []
        for index in range(len(SIZES)):
            anchors = {(p.fragments[index].state.version, p.fragments[index].state.digest) for p in self.live()}
            assert len(anchors) == 1, anchors
            assert self.live()[0].fragments[index].state.version >= least_version
            for peer in self.live():
                state = peer.fragments[index].state
                assert state.digest == state.refresh_digest()

    def assert_shown(self):
        """No trainer's live parameters have drifted from what its state says they show."""
        for peer in self.live():
            for live, fragment in zip(peer.live, peer.fragments, strict=True):
                torch.testing.assert_close(live, fragment.state.shown(), rtol=0, atol=1e-4)


def scenario(play):
    async def run():
        await (await play()).close()

    run_virtual(run())


@pytest.mark.parametrize("codec", ["int4", "fp32"])
@pytest.mark.parametrize("mode", ["carry", "eager", "sync", "delayed"])
def test_four_peers_agree_to_the_last_bit(mode, codec):
    async def play():
        swarm = Swarm(4, rule=OuterRule(mode, 0.5, 0.5, overlay_gain=0.7), codec=codec)
        await swarm.train(5)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        swarm.assert_shown()
        for peer in swarm.live():
            assert not any(isinstance(report, RepairNeeded) for report in peer.reports)
            assert sum(closed.own_included for closed in peer.closed()) >= 8
        return swarm

    scenario(play)


def test_bytes_on_the_wire_are_few():
    """Payload and all framing of a round, per value of the fragment: 4.125 bits and under 3 % on top, each way."""

    async def play():
        swarm = Swarm(4)
        await swarm.train(4)
        await swarm.settle()
        closed = [closed for peer in swarm.live() for closed in peer.closed(1) if closed.own_included]
        assert len(closed) >= 12
        payload_bits = swarm.live()[0].codec.bits_per_value
        up = 8 * sum(one.up_bytes for one in closed) / sum(one.up_values for one in closed)
        down = 8 * sum(one.down_bytes for one in closed) / sum(one.down_values for one in closed)
        assert payload_bits < up < 1.2 * payload_bits
        assert payload_bits < down < 1.2 * payload_bits
        return swarm

    scenario(play)


def test_a_lone_peer_goes_on():
    async def play():
        swarm = Swarm(1)
        await swarm.train(4)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        swarm.assert_shown()
        return swarm

    scenario(play)


def test_a_follower_has_every_commit():
    """A seed takes no part in rounds, fetches their results and ends with the same bits."""

    async def play():
        swarm = Swarm(4, num_trainers=3)
        seed = next(peer for peer in swarm.live() if peer not in swarm.trainers)
        seed.exchange.takes_part = False
        await swarm.train(4)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        assert not any(isinstance(report, RepairNeeded) for report in seed.reports)
        return swarm

    scenario(play)


async def when_round_begins(swarm, index, choose):
    """Wait until a round of fragment `index` has its plan; returns the peer that `choose` picks from that round."""
    while True:
        for peer in swarm.live():
            for report in peer.reports:
                if isinstance(report, RoundBegan) and report.fragment == index and report.num_members == 4:
                    return choose(peer, report)
        await asyncio.sleep(0.005)


def leader_of(peer, report):
    return report.leader


def reducer_of(peer, report):
    reductions = peer.fragments[1].machine._reducing.reductions.values()
    plans = [reduction.plan for reduction in reductions] or [peer.fragments[1].machine._member.plan]
    reducers = [plans[0].roster[shard.reducer].peer_id for shard in plans[0].shards]
    return next((name for name in reducers if name != report.leader), reducers[0])


@pytest.mark.parametrize("choose", [leader_of, reducer_of], ids=["leader", "reducer"])
@pytest.mark.parametrize("how", ["crash", "stall"])
@pytest.mark.parametrize("seed", range(3))
def test_whoever_dies_in_mid_round_the_others_go_on(choose, how, seed):
    async def play():
        swarm = Swarm(4, seed=seed)
        training = asyncio.get_running_loop().create_task(swarm.train(6))
        victim = await when_round_begins(swarm, 1, choose)
        getattr(swarm.network, how)(victim)
        version = max(peer.fragments[1].state.version for peer in swarm.live())
        await asyncio.sleep(10.0)  # its record runs out, and the others see one trainer less
        others = [peer for peer in swarm.live() if peer.name != victim]
        swarm.set_views(lambda peer, other: other.name != victim)
        await training
        if how == "stall":
            swarm.network.crash(victim)
        await swarm.settle()
        swarm.assert_agreement(least_version=4)
        swarm.assert_shown()
        assert swarm.live() == others
        assert min(peer.fragments[1].state.version for peer in others) > version
        return swarm

    scenario(play)


@pytest.mark.parametrize("seed", range(3))
def test_two_halves_go_on_and_become_one(seed):
    async def play():
        swarm = Swarm(5, seed=seed, partition_break_seconds=5.0)
        await swarm.train(2)
        left, right = swarm.live()[:2], swarm.live()[2:]
        swarm.network.partition([peer.name for peer in left], [peer.name for peer in right])
        swarm.set_views(lambda peer, other: (peer in left) == (other in left))
        await swarm.train(2, interval_seconds=40.0, first_seed=1000)
        digests = {peer.fragments[0].state.digest for peer in swarm.live()}
        assert len(digests) == 2
        swarm.network.heal()
        swarm.set_views()
        await swarm.settle()
        await swarm.train(3, first_seed=2000)
        await swarm.settle()
        swarm.assert_agreement(least_version=6)
        swarm.assert_shown()
        return swarm

    scenario(play)


def test_streams_that_break_all_the_time_stop_nobody():
    async def play():
        swarm = Swarm(4, seed=5, stream_loss=0.2)
        await swarm.train(10)
        await swarm.settle()
        swarm.assert_agreement(least_version=5)
        swarm.assert_shown()
        return swarm

    scenario(play)


def hostile_frames(me, victim):
    """Frames that a hostile member sends after a proper hello: from nonsense to nearly right."""
    chance = random.Random(9)
    digest, version = bytes(DIGEST_BYTES), victim.fragments[1].machine.version
    of_a_shard = victim.codec.encoded_num_bytes(160)
    yield b""
    yield chance.randbytes(500)
    yield b"\x01\xff\xff" + bytes(100)
    yield wire.encode(Contribution(1, version, 0, me, 0, 1, 0, 160)) + bytes(5)
    yield wire.encode(Contribution(1, version, 0, me, 0, 1, 0, 160)) + chance.randbytes(of_a_shard)
    yield wire.encode(Result(1, version, 0, 0, 160)) + chance.randbytes(of_a_shard)
    yield wire.encode(VersionIs(1, 10**9, digest, 2**60))
    yield wire.encode(VersionIs(1, version, digest, 2**59))


def test_garbage_from_a_hostile_member_stops_no_round():
    async def play():
        swarm = Swarm(4)
        villain = MemoryHost(swarm.network, named(66))

        async def attack():
            for round_ in range(6):
                for victim in swarm.trainers:
                    for frame in hostile_frames(villain.peer_id, victim):
                        try:
                            stream = await villain.open_stream(victim.name, ROUND_PROTOCOL, 5.0)
                            await stream.send(b"hello" if round_ % 3 else b"let me in")
                            await stream.receive(100)
                            await stream.send(frame)
                            await stream.send(chance.randbytes(20))
                        except PeerFault:
                            continue
                await asyncio.sleep(2.0)

        chance = random.Random(4)
        attacking = asyncio.get_running_loop().create_task(attack())
        swarm.peers[villain.peer_id] = swarm.trainers[0]  # a repair from it finds nothing heavier
        await swarm.train(6)
        await attacking
        await villain.close()
        del swarm.peers[villain.peer_id]
        await swarm.settle()
        swarm.assert_agreement(least_version=5)
        swarm.assert_shown()
        for peer in swarm.trainers:
            reasons = " ".join(reason for remote, reason in peer.refused if remote == villain.peer_id)
            for part in ("does not know the word", "frame of 0 bytes", "wire version", "5 bytes in a contribution"):
                assert part in reasons
        return swarm

    scenario(play)


def test_work_that_nobody_may_apply_any_more_is_dropped_and_leaves_the_live_parameters():
    async def play():
        swarm = Swarm(2)
        peer = swarm.trainers[0]
        peer.exchange.takes_part = False
        await peer.work(0, 1)
        fragment = peer.fragments[0]
        fragment.state.version = fragment.machine.version = 9
        peer.exchange.takes_part = True
        await peer.exchange.offer(fragment)
        assert [report.staleness for report in peer.reports if isinstance(report, WorkExpired)] == [8]
        torch.testing.assert_close(peer.live[0], fragment.state.anchor)
        return swarm

    scenario(play)


def test_nothing_is_left_behind_after_many_rounds():
    async def play():
        swarm = Swarm(3)
        await swarm.train(30)
        await swarm.settle()
        swarm.assert_agreement(least_version=25)
        for peer in swarm.live():
            assert len(peer.exchange._tasks) <= 2
            for fragment in peer.fragments:
                assert len(fragment.store._results) <= 5 * 2
                assert len(fragment.digests) <= 5
                assert len(fragment.store._inbound) <= 2
        assert swarm.network.num_streams <= 2 * 3 * 2
        return swarm

    scenario(play)
