"""Questions that are answered with commits: so many of one remote, so many bytes to all."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from averaging.exchange.commit_questions import QUESTIONS_AT_ONCE, CommitQuestions
from averaging.rounds.round_facts import RepairNeeded
from averaging.wire import frames
from averaging.wire.messages import DIGEST_BYTES, Commit, CommitRequest, Offer, RosterEntry
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of
from tests.kit.rounds.exchange_swarm import Swarm, scenario


@pytest.mark.parametrize("asked_by", ["request", "old offer", "offer while the commit is applied", "lighter commit"])
def test_a_remote_gets_so_many_commits_and_no_more(asked_by):
    """A question has 23 bytes, a commit of one member 200, and the commit of a round of 256 members 80,000."""

    async def play():
        swarm = Swarm(2)
        await swarm.train(3)
        await swarm.settle()
        peer, remote = swarm.live()[0], named(66)
        machine, version = peer.fragments[0].machine, peer.fragments[0].state.version - 1
        commit = machine.known_commit(version)
        if asked_by == "offer while the commit is applied":
            version += 1
            machine.applying = commit = replace(commit, version=version)
        offer = Offer(0, version, 0, bytes(DIGEST_BYTES), 0, 1, 1, 1, 0.0, True)
        lighter = notary_of(remote).sign_commit(
            Commit(0, version, 0, remote, commit.anchor_digest, (RosterEntry(remote, 1, 1, version, 1),), ())
        )
        questions = {"request": CommitRequest(0, version), "lighter commit": lighter}
        sent = []
        peer.links.send = lambda to, message, payload=(): sent.append(message) or 0

        def ask():
            peer.exchange.on_message(remote, questions.get(asked_by, offer), memoryview(b""), 23)

        for _ in range(2 * QUESTIONS_AT_ONCE):
            ask()
        assert sent == [commit] * QUESTIONS_AT_ONCE
        await asyncio.sleep(1.0)
        ask()
        assert len(sent) == QUESTIONS_AT_ONCE + 1
        return swarm

    scenario(play)


def test_many_keys_together_get_so_many_bytes_of_commits_and_no_more():
    """In an open run somebody has as many keys as they like, and each of them may ask."""

    async def play():
        swarm = Swarm(2)
        await swarm.train(3)
        await swarm.settle()
        peer = swarm.live()[0]
        version = peer.fragments[0].state.version - 1
        num_bytes = len(frames.encode(peer.fragments[0].machine.known_commit(version)))
        peer.exchange._questions = CommitQuestions(10 * num_bytes, 0.1 / num_bytes)
        sent = []
        peer.links.send = lambda to, message, payload=(): sent.append(to) or 0
        for number in range(100):
            peer.exchange.on_message(named(100 + number), CommitRequest(0, version), memoryview(b""), 23)
        assert sent == [named(100 + number) for number in range(10)]
        await asyncio.sleep(1.05)
        for number in range(200):
            peer.exchange.on_message(named(200 + number), CommitRequest(0, version), memoryview(b""), 23)
        assert len(sent) == 20
        return swarm

    scenario(play)


def test_a_member_that_is_not_answered_fetches_the_fragment():
    """Others used up what all together are answered; one that missed a round is at the version of all nevertheless."""

    async def play():
        swarm = Swarm(3, num_trainers=2)
        await swarm.train(1)
        *others, away = swarm.peers.values()
        swarm.network.partition([peer.name for peer in others], [away.name])
        swarm.set_views(lambda peer, other: (peer is away) == (other is away))
        for peer in others:
            peer.exchange._questions = CommitQuestions(answer_bytes=0, seconds_per_answer_byte=1e9)
        await swarm.train(2, first_seed=1000)
        assert others[0].fragments[0].state.version > away.fragments[0].state.version
        swarm.network.heal()
        swarm.set_views()
        await swarm.settle()
        await swarm.train(1, first_seed=2000)
        await swarm.settle()
        swarm.assert_agreement(least_version=3)
        assert [report for report in away.reports if isinstance(report, RepairNeeded)]
        return swarm

    scenario(play)
