"""Exchanges over a simulated network, with what a trainer and a node would do beside them; in virtual time."""

from __future__ import annotations

import asyncio
import functools
import random
from contextlib import nullcontext

import numpy as np

from averaging.codec.codec import make_codec
from averaging.exchange.exchange import Exchange
from averaging.exchange.exchange_ports import ExchangePorts, RoundParts
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import ShardStore
from averaging.lanes.links import LinkPorts, Links
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.shard_mean import reduce_shard
from averaging.rounds.round_facts import CommitTaken, RepairNeeded, RoundCommitted
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.wire.field_checks import Limits
from averaging.wire.messages import DIGEST_BYTES
from dht.ground.compute import compute_inline
from dht.ground.errors import PeerFault
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.virtual_time import run_virtual

SIZES = (300, 20_000)  # one reducer, and two
RULE = OuterRule("carry", 0.7, 0.5, overlay_gain=0.7)


def assert_close(found, expected, at_most, relative=0.0):
    """Both float32, of one shape, and no value further from the expected one than at_most + relative * |expected|."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape) == (np.float32, found.shape)
    np.testing.assert_allclose(found, expected, rtol=relative, atol=at_most, equal_nan=False)


class OpenDoor:
    """Whoever knows the word may come in."""

    may_exclude = False

    def hello(self, remote):
        return b"hello"

    def admit(self, remote, hello):
        if hello != b"hello":
            raise PeerFault(remote, "does not know the word")

    def welcome(self, remote, hello):
        return b"welcome"

    def refusal(self, fault):
        return fault.what.encode()

    def check_reply(self, remote, hello, reply):
        if reply != b"welcome":
            raise PeerFault(remote, reply.decode())

    def is_excluded(self, remote):
        return False


def now():
    return asyncio.get_running_loop().time()


class Peer:
    """An exchange on a host, and what a trainer would keep: the live parameters of each fragment."""

    def __init__(self, swarm, number, rule, codec):
        self.swarm, self.name = swarm, named(number)
        self.reports, self.refused = [], []
        self.compute, self.reduce, self.chance = compute_inline, reduce_shard, lambda: 1.0
        self.codec = make_codec(codec, swarm.block_size)
        watch = GuardPorts(now, self._report, on_exclusion=lambda: self.exchange.exclude())
        self.guard = Guard(self.name, rule.staleness_limit, watch, is_strict=rule.is_strict)
        self.fragments = [self._fragment(rule, index, size) for index, size in enumerate(swarm.sizes)]
        self.live = [fragment.state.anchor.copy() for fragment in self.fragments]
        host = MemoryHost(swarm.network, self.name)
        limits = Limits(swarm.sizes, max(self.codec.encoded_num_bytes(size) for size in swarm.sizes))
        heard = LinkPorts(
            lambda *message: self.exchange.on_message(*message),
            lambda remote, reason: self.exchange.peer_lost(remote, reason),
            lambda remote, reason: self.refused.append((remote, reason)),
        )
        self.links = Links(host, OpenDoor(), limits, heard, now)
        self.exchange = Exchange(
            *(self.name, rule, self.fragments, self.guard, self.links),
            ExchangePorts(
                now,
                lambda work: self.compute(work),
                self._deliver,
                lambda report: self._report(report),
                lambda index: nullcontext(np.empty(swarm.sizes[index], np.float32)),
                chance=lambda: self.chance(),
                parts=RoundParts(reduce=lambda *shard: self.reduce(*shard)),
            ),
            first_sequence=1000 * number,
        )
        self.exchange.sending.take_part(True)

    def _fragment(self, rule, index, size):
        anchor = np.random.default_rng(index).standard_normal(size, dtype=np.float32)
        state = FragmentState(rule, self.codec, anchor, np.zeros_like(anchor), np.zeros_like(anchor))
        state.refresh_digest()
        timing = Waits.with_bounds(30.0)
        settings = (self.name, "run", index, size, self.codec.block_size, timing, notary_of(self.name))
        checks = {
            "anchor_digest": state.digest[:DIGEST_BYTES],
            "objection": functools.partial(self.guard.claim_objection, timing=timing),
            "doubt": functools.partial(self.guard.doubts, timing=timing),
        }
        machine = RoundMachine(*settings, **checks)
        machine.log.note_anchor(0, state.digest)
        return FragmentRuntime(index, state, machine, ShardStore(self.codec, size))

    def _deliver(self, index, change, version):
        if change is None:
            self.live[index] = self.fragments[index].state.shown()
        else:
            self.live[index] += change

    def _report(self, report):
        self.reports.append(report)
        if isinstance(report, RepairNeeded):
            self.swarm.tasks.append(asyncio.get_running_loop().create_task(self._repair(report)))

    async def _repair(self, report):
        """What the node does, from the donor's memory."""
        await asyncio.sleep(0.5)
        donor = self.swarm.peers[report.peer_id].fragments[report.fragment]
        fragment = self.fragments[report.fragment]
        theirs, mine = donor.state, fragment.state
        reachable = self.swarm.network.can_reach(self.name, report.peer_id)
        if reachable and (theirs.lineage_tokens, theirs.digest) > (mine.lineage_tokens, mine.digest):
            values = (
                theirs.anchor.copy(),
                theirs.momentum.copy(),
                theirs.version,
                theirs.lineage_tokens,
                theirs.digest,
            )
            commits = [donor.machine.log.newest[version] for version in sorted(donor.machine.log.newest)]
            await self.exchange.applying.adopt(fragment, lambda state: state.adopt(*values), commits)
        self.exchange.applying.looked_into(fragment, report.peer_id)

    async def work(self, index, seed):
        """Local training of one interval, handed over."""
        values = 0.01 * np.random.default_rng(seed).standard_normal(self.swarm.sizes[index], dtype=np.float32)
        self.live[index] -= values
        state = self.fragments[index].state
        base_version = max(0, state.version - 1)
        await self.exchange.sending.work_arrived(index, lambda state: state.receive_work(values, 100, 10, base_version))

    def closed(self, *indexes):
        reports = [report for report in self.reports if isinstance(report, CommitTaken)]
        return [report for report in reports if report.commit.fragment in (indexes or range(len(self.fragments)))]

    def committed(self):
        return [report for report in self.reports if isinstance(report, RoundCommitted)]


class Swarm:
    def __init__(self, num_peers, *, seed=1, rule=RULE, codec="int4", num_trainers=None, sizes=SIZES, **network):
        self.sizes, self.block_size = sizes, 16 if max(sizes) < 100_000 else 128
        self.network = MemoryNetwork(seed, **network)
        self.tasks = []
        everyone = [Peer(self, number, rule, codec) for number in range(num_peers)]
        self.peers = {peer.name: peer for peer in everyone}
        self.trainers = everyone[:num_trainers] if num_trainers else everyone
        self.set_views()

    def live(self):
        return [self.peers[name] for name in sorted(self.peers) if self.network._hosts[name].is_live]

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
                    for index in range(len(self.sizes)):
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
                        peer.exchange.applying.say_version(mine, other.name)
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
        for index in range(len(self.sizes)):
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
                assert_close(live, fragment.state.shown(), 1e-4)


def scenario(play):
    async def run():
        await (await play()).close()

    run_virtual(run())
