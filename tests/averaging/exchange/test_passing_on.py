"""Means that members pass on: to each site once, and to peers without work in a large round."""

from __future__ import annotations

import asyncio
from collections import Counter

from averaging.rounds import round_machine
from averaging.rounds.passing_on import passer_of
from averaging.wire.messages import Result, ResultRequest
from tests.kit.rounds.exchange_swarm import SIZES, Swarm, scenario

LARGEST = SIZES.index(max(SIZES))


def watch(swarm):
    """Counts of (kind, version, shard, sender, receiver) of all results of one fragment, and of requests for them."""
    sent = Counter()

    def watched(name, send):
        def note(to, message, payload=()):
            if isinstance(message, Result | ResultRequest) and message.fragment == LARGEST:
                sent[type(message), message.version, message.shard, name, to] += 1
            return send(to, message, payload)

        return note

    for peer in swarm.live():
        peer.links.send = watched(peer.name, peer.links.send)
    return sent


def test_a_mean_crosses_between_two_sites_once_and_everybody_has_the_same_bits():
    async def play():
        swarm = Swarm(8)
        site_of = {name: "east" if number % 2 else "west" for number, name in enumerate(sorted(swarm.peers))}
        for peer in swarm.live():
            for fragment in peer.fragments:
                fragment.machine.site_of = site_of.__getitem__
        sent = watch(swarm)
        await swarm.train(4)
        await swarm.settle()
        swarm.assert_agreement()
        first = swarm.live()[0].closed(LARGEST)
        assert len(first[0].commit.roster) == 8
        abroad = Counter()
        for (kind, version, shard, sender, to), num in sent.items():
            if kind is Result and version == first[0].commit.version and site_of[sender] != site_of[to]:
                abroad[shard] += num
        assert abroad == dict.fromkeys(range(len(first[0].commit.shards)), 1)
        return swarm

    scenario(play)


def test_a_member_whose_passer_keeps_the_mean_asks_another_holder():
    async def play():
        swarm = Swarm(6)
        site_of = {name: "east" if number % 2 else "west" for number, name in enumerate(sorted(swarm.peers))}
        for peer in swarm.live():
            for fragment in peer.fragments:
                fragment.machine.site_of = site_of.__getitem__
                fragment.machine.next_to = lambda *result: ()  # everybody keeps what came from another site
        sent = watch(swarm)
        await swarm.train(3)
        await swarm.settle()
        swarm.assert_agreement(least_version=2)
        assert any(kind is ResultRequest for kind, *_ in sent)
        return swarm

    scenario(play)


def test_those_without_work_in_a_large_round_get_its_means_from_their_contributor(monkeypatch):
    """With 3 members for the 64 from which on commits are passed on."""

    async def play():
        monkeypatch.setattr(round_machine, "DIRECT", 3)
        swarm = Swarm(10, num_trainers=4)
        sent = watch(swarm)
        await swarm.train(4)
        await asyncio.sleep(60)
        swarm.assert_agreement(least_version=2)
        commit = next(one.commit for one in swarm.live()[0].closed(LARGEST) if len(one.commit.roster) == 4)
        others = [peer.name for peer in swarm.live() if peer not in swarm.trainers]
        assert len({passer_of(name, commit) for name in others}) > 1
        got = Counter()
        for (kind, version, shard, _, to), num in sent.items():
            if kind is Result and version == commit.version and to in others:
                got[shard, to] += num
        assert got == Counter((shard, to) for shard in range(len(commit.shards)) for to in others)
        asked = {sender for kind, version, _, sender, _ in sent if kind is ResultRequest and version == commit.version}
        assert not asked.intersection(others)
        return swarm

    scenario(play)
