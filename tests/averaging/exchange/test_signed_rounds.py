"""Whole rounds under which somebody forges signatures: nobody follows, and the rounds go on without the forger."""

from __future__ import annotations

from dataclasses import replace

from averaging.rounds.round_facts import PeerRefused
from tests.kit.notaries import CHECKER, SCOPE, notary_of
from tests.kit.rounds.exchange_swarm import Swarm, scenario


def refusals(swarm, forger):
    return {
        (report.peer_id, "signature" in report.reason or "signed" in report.reason)
        for peer in swarm.live()
        if peer is not forger
        for report in peer.reports
        if isinstance(report, PeerRefused)
    }


def test_every_kept_commit_is_a_proof_and_names_the_one_before():
    async def play():
        swarm = Swarm(3)
        await swarm.train(4)
        await swarm.settle()
        for fragment in swarm.live()[1].fragments:
            history = fragment.machine.log.newest
            assert len(history) >= 4
            assert not any(CHECKER.objection(commit) for commit in history.values())
            assert all(commit.previous for version, commit in history.items() if version > min(history))
        return swarm

    scenario(play)


def test_nobody_applies_the_commits_of_a_leader_that_changes_what_reducers_signed():
    async def play():
        swarm = Swarm(4)
        forger = swarm.live()[0]
        honest = notary_of(forger.name)

        class Forging(type(honest)):
            def sign_commit(self, commit):
                roster = (replace(commit.roster[0], tokens=10 * commit.roster[0].tokens), *commit.roster[1:])
                return honest.sign_commit(replace(commit, roster=roster))

        for fragment in forger.fragments:
            fragment.machine.notary = Forging(SCOPE, honest._sign, honest._verify)
        await swarm.train(6)
        await swarm.settle()
        assert (forger.name, True) in refusals(swarm, forger)
        for peer in swarm.live():
            if peer is not forger:
                applied = [closed.commit for closed in peer.closed()]
                assert len(applied) >= 3
                assert not any(CHECKER.objection(commit) for commit in applied)
        return swarm

    scenario(play)


def test_means_that_their_reducer_did_not_sign_are_void():
    async def play():
        swarm = Swarm(4)
        forger = swarm.live()[0]
        for fragment in forger.fragments:
            fragment.machine.notary = notary_of(forger.name, replace(SCOPE, run_id="another run"))
        await swarm.train(5)
        await swarm.settle()
        assert (forger.name, True) in refusals(swarm, forger)
        others = [peer for peer in swarm.live() if peer is not forger]
        for peer in others:
            for fragment in peer.fragments:
                assert fragment.machine.version >= 2
                for commit in fragment.machine.log.newest.values():
                    reducers = {commit.roster[shard.reducer].peer_id for shard in commit.shards if shard.digest}
                    assert forger.name not in reducers
        return swarm

    scenario(play)
