"""Members recompute what reducers signed: liars are found and left out, nobody honest is, and nobody is believed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from averaging.codec.codec import make_codec
from averaging.exchange.audit import ANSWERS_TO_ALL, INPUTS_SECONDS, KEPT_MEANS
from averaging.fragment.shard_store import payload_digest
from averaging.outer.contribution_weights import Terms
from averaging.outer.shard_mean import reduce_shard
from averaging.rounds.leader import Leading
from averaging.trust.audit_budgets import BUDGET, OWN_BUDGET
from averaging.trust.mean_checks import ComparedWork, is_wrong, suspicion, suspicious
from averaging.wire import frames
from averaging.wire.messages import (
    MAX_SHARDS,
    Accusation,
    AuditRequest,
    Commit,
    Contribution,
    RosterEntry,
    ShardResult,
)
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of
from tests.kit.rounds.audited_swarm import RULE, accused_by, refusals, swarm_of
from tests.kit.rounds.exchange_swarm import scenario
from tests.kit.tiers import sampled


def normal(seed, num_values):
    return np.random.default_rng(seed).standard_normal(num_values, dtype=np.float32)


def num_audits(swarm):
    return sum(peer.exchange.audits.num_audits for peer in swarm.live())


def lie_in_means(peer, factor):
    def wrong(contributions, rule, codec, num_values, carried):
        honest = reduce_shard(contributions, rule, codec, num_values, carried)
        if honest is None:
            return None
        values = np.empty(num_values, dtype=np.float32)
        codec.decode(honest.encoded, values)
        return replace(honest, encoded=codec.encode(factor * values))

    peer.reduce = wrong


def make_every_mean(peer):
    """Others reduce nothing: they say that nobody reaches them."""
    for other in peer.swarm.live():
        other.exchange.sending.note_reachable(other is peer)


@pytest.mark.parametrize("combine", ["mean", "centered_clip"])
def test_nobody_honest_is_accused(combine):
    async def play():
        swarm = swarm_of(5, replace(RULE, combine=combine))
        await swarm.train(8)
        await swarm.settle()
        swarm.assert_agreement(4)
        assert num_audits(swarm) >= 8
        assert refusals(swarm) == set()
        assert not any(peer.refused for peer in swarm.live())
        return swarm

    scenario(play)


@pytest.mark.parametrize("factor", sampled([-10.0, -1.0, 1000.0, 0.5, 0.0], one_in=2))
def test_whoever_signs_a_wrong_mean_is_left_out_by_everybody(factor):
    async def play():
        swarm = swarm_of(5)
        liar = swarm.live()[2]
        lie_in_means(liar, factor)
        make_every_mean(liar)
        await swarm.train(5)
        honest = {peer.name for peer in swarm.live()} - {liar.name}
        assert accused_by(swarm, "wrong_mean", liar) == {liar.name: honest}
        for peer in swarm.live():
            if peer is not liar:
                assert liar.name in peer.exchange.guard.excluded([liar.name])
        assert {remote for remote, _, _ in refusals(swarm, liar)} == {liar.name}
        return swarm

    scenario(play)


@pytest.mark.parametrize("factor", sampled([-10.0, 1000.0], one_in=2))
def test_a_gross_lie_moves_no_honest_anchor_even_where_few_rounds_are_audited(factor):
    async def play():
        swarm = swarm_of(5, replace(RULE, audit_fraction=0.001))
        liar = swarm.live()[2]
        lie_in_means(liar, factor)
        make_every_mean(liar)
        await swarm.train(6)
        honest = [peer for peer in swarm.live() if peer is not liar]
        assert accused_by(swarm, "wrong_mean", liar) == {liar.name: {peer.name for peer in honest}}
        for peer in honest:
            applied = [closed.commit for closed in peer.closed()]
            assert len(applied) >= 4
            reducers = {commit.roster[shard.reducer].peer_id for commit in applied for shard in commit.shards}
            assert liar.name not in reducers
        return swarm

    scenario(play)


@pytest.mark.parametrize("with_earlier_work", [False, True])
def test_nor_that_of_a_member_whose_work_came_too_late_for_it(with_earlier_work):
    async def play():
        swarm = swarm_of(6, replace(RULE, audit_fraction=0.001))
        liar, late = swarm.live()[2], swarm.live()[4]
        if with_earlier_work:
            await swarm.train(3)
        lie_in_means(liar, -10.0)
        for other in swarm.live():
            if other not in (liar, swarm.live()[0]):  # these two reduce: means can be compared
                other.exchange.sending.note_reachable(False)
        before = {peer.name: len(peer.closed()) for peer in swarm.live()}
        swarm.trainers = [peer for peer in swarm.live() if peer is not late]
        await swarm.train(4, first_seed=5000)
        for peer in swarm.live():
            if peer is not liar:
                applied = [closed.commit for closed in peer.closed()[before[peer.name] :]]
                assert len(applied) >= 3
                reducers = {commit.roster[shard.reducer].peer_id for commit in applied for shard in commit.shards}
                assert liar.name not in reducers
        assert late.name in accused_by(swarm, "wrong_mean", liar)[liar.name]
        return swarm

    scenario(play)


def another_share(liar, own_share):
    """Other work than it sent to the reducer, signed like that."""

    def other_share(fragment, request):
        honest = own_share(fragment, request)
        if honest is None:
            return None
        values = normal(request.version, request.end - request.start)
        payload = b"".join(bytes(part) for part in liar.codec.encode(values).pack())
        signature = notary_of(liar.name).sign_contribution(honest[0], payload_digest(payload))
        return replace(honest[0], signature=signature), payload

    return other_share


@pytest.mark.parametrize("accuses", [False, True])
@pytest.mark.parametrize("seed", sampled(range(1, 7), one_in=3))
def test_a_member_with_two_faces_cannot_frame_a_reducer(seed, accuses):
    """It shows auditors other work than it sent to the reducer, signed like that.

    With some of the seeds the reducer's defence comes before the accusation that it answers. If the liar accuses, too,
    it tells all but the reducer.
    """

    async def play():
        swarm = swarm_of(5, seed=seed)
        reducer, liar = swarm.live()[0], swarm.live()[3]
        make_every_mean(reducer)
        audits = liar.exchange.audits
        audits._own_share = another_share(liar, audits._own_share)
        if accuses:
            audits.applied = accusing(liar, [peer for peer in swarm.live() if peer not in (liar, reducer)])
        await swarm.train(6)
        assert reducer.name not in {remote for remote, _, _ in refusals(swarm, liar)}
        assert liar.name in accused_by(swarm, "two_faced", liar)
        return swarm

    scenario(play)


def test_an_auditor_to_whom_alone_a_member_lies_raises_no_false_alarm():
    """Everybody else would find the mean right, and the auditor would be left out after three of them."""

    async def play():
        swarm = swarm_of(5)
        reducer, auditor, liar = swarm.live()[0], swarm.live()[1], swarm.live()[3]
        make_every_mean(reducer)
        for peer in swarm.live():
            if peer is not auditor:
                peer.chance = lambda: 1.0
        audits, asked_by = liar.exchange.audits, []
        answer, own_share = audits._answer, audits._own_share
        other_share = another_share(liar, own_share)
        audits._answer = lambda fragment, sender, request: asked_by.append(sender) or answer(fragment, sender, request)
        audits._own_share = lambda *asked: (other_share if asked_by[-1] == auditor.name else own_share)(*asked)
        await swarm.train(8)
        assert num_audits(swarm) >= 3
        assert {remote for remote, _, _ in refusals(swarm, liar)} == {liar.name}
        assert accused_by(swarm, "two_faced", liar) == {liar.name: {auditor.name}}
        return swarm

    scenario(play)


def accusing(liar, told):
    """In place of `Audits.applied`: says to those `told` that the first mean of each commit is wrong."""
    applied = liar.exchange.audits.applied

    async def accuse(fragment, commit, payloads):
        await applied(fragment, commit, payloads)
        said = Accusation(fragment.index, commit.version, 0, frames.commit_digest(commit), bytes(64))
        said = replace(said, signature=notary_of(liar.name).sign_accusation(said))
        for peer in told:
            liar.links.post(peer.name, [frames.encode(said)])

    return accuse


def test_a_false_accuser_is_believed_by_nobody_and_left_out():
    async def play():
        swarm = swarm_of(5)
        liar = swarm.live()[4]
        make_every_mean(swarm.live()[0])
        liar.exchange.audits.applied = accusing(liar, swarm.live()[:4])
        await swarm.train(7)
        assert {remote for remote, _, _ in refusals(swarm, liar)} == {liar.name}
        assert len(accused_by(swarm, "false_alarm", liar)[liar.name]) >= 3
        assert any(peer.exchange.guard.excluded([liar.name]) for peer in swarm.live() if peer is not liar)
        return swarm

    scenario(play)


def test_an_accused_reducer_answers_each_accuser_of_a_mean_once():
    """In a swarm of many what all of them are sent is a thousand times longer than an accusation."""

    async def play():
        swarm = swarm_of(4)
        await swarm.train(3)
        accused = swarm.live()[0]
        commit = next(one.commit for one in reversed(accused.closed()) if accused.name == one.commit.holder(0))
        fragment, answered = accused.fragments[commit.fragment], []
        accused.exchange.audits._post = lambda to, message, payload=b"": answered.append(to)

        def accuse(name, digest=None):
            digest = digest or frames.commit_digest(commit)
            said = Accusation(fragment.index, commit.version, 0, digest, bytes(64))
            said = replace(said, signature=notary_of(name).sign_accusation(said))
            accused.exchange.audits.hear(fragment, name, said, memoryview(b""), 0)

        members = [peer.name for peer in swarm.live()[1:]]
        for name in [*members, *members]:
            accuse(name)
        assert sorted(answered) == sorted(3 * members)
        # By then all have heard it, or ask themselves.
        for number in range(70, 80):
            accuse(named(number))
        assert answered[9:] == [named(number) for number in range(70, 80)]
        # When the commit is gone here, any digest is that of the same mean, and keys of strangers have one budget.
        accused.exchange.audits._means.clear()
        answered.clear()
        for number in range(100, 300):
            accuse(named(number), number.to_bytes(2, "big") * 8)
        num_inputs = len(commit.shards[0].included) - 1
        assert len(answered) == ANSWERS_TO_ALL * len(members) + BUDGET * num_inputs
        return swarm

    scenario(play)


def test_a_commit_is_hashed_once_however_many_accusations_name_another_one(monkeypatch):
    """The hash of a commit of 256 members takes milliseconds, and an accusation has 130 bytes."""

    async def play():
        swarm = swarm_of(4)
        await swarm.train(3)
        accused, hashed, bare = swarm.live()[0], [], Commit.bare.fget
        monkeypatch.setattr(Commit, "bare", property(lambda commit: hashed.append(commit) or bare(commit)))
        fragment = accused.fragments[0]
        commit = replace(accused.exchange.audits._means[0, fragment.state.version - 1][0])
        accused.exchange.audits._means[0, commit.version] = (commit, {})
        said = Accusation(0, commit.version, 0, bytes(16), bytes(64))
        for _ in range(10):
            accused.exchange.audits.hear(fragment, named(70), said, memoryview(b""), 0)
        assert len(hashed) == 1
        return swarm

    scenario(play)


def test_whoever_makes_many_means_can_defend_each_of_them():
    """A large fragment has hundreds of means, and a hostile leader may cut a small one into as many for one reducer."""

    async def play():
        swarm = swarm_of(4)
        await swarm.train(3)
        accused, auditor = swarm.live()[0], swarm.live()[1]
        commit = next(one.commit for one in reversed(accused.closed()) if accused.name == one.commit.holder(0))
        fragment, audits = accused.fragments[commit.fragment], accused.exchange.audits
        other = accused.fragments[1 - commit.fragment]
        plan = SimpleNamespace(fragment=other.index, version=other.state.version, attempt=0, roster=())
        for shard in range(MAX_SHARDS):
            await audits.proven(other, plan, auditor.name, shard, ())
        answered = []
        audits._post = lambda to, message, payload=b"": answered.append(message)
        said = Accusation(fragment.index, commit.version, 0, frames.commit_digest(commit), bytes(64))
        said = replace(said, signature=notary_of(auditor.name).sign_accusation(said))
        audits.hear(fragment, auditor.name, said, memoryview(b""), 0)
        others = [member for member in commit.shards[0].included if commit.roster[member].peer_id != accused.name]
        assert [given.member for given in answered[0].inputs] == others
        await asyncio.sleep(INPUTS_SECONDS + 1)
        plan.version += KEPT_MEANS + 1
        await audits.proven(other, plan, auditor.name, 0, ())
        assert [place for place in audits._inputs if place[0] == other.index] == [(other.index, plan.version)]

        return swarm

    scenario(play)


def test_an_accuser_has_as_few_answers_as_it_may_begin_audits():
    """Each answer goes to all members; a slanderer that is left out of rounds would go on for as long as it likes."""

    async def play():
        swarm = swarm_of(4)
        await swarm.train(3)
        accused, slanderer = swarm.live()[:2]
        commit = next(one.commit for one in reversed(accused.closed()) if accused.name == one.commit.holder(0))
        fragment, answered, audits = accused.fragments[commit.fragment], [], accused.exchange.audits
        audits._post = lambda to, message, payload=b"": answered.append(to)

        def accuse(accuser, version):
            later = replace(commit, version=version)
            audits._means[fragment.index, version] = (later, {})
            said = Accusation(fragment.index, version, 0, frames.commit_digest(later), bytes(64))
            said = replace(said, signature=accuser.fragments[0].machine.notary.sign_accusation(said))
            audits.hear(fragment, accuser.name, said, memoryview(b""), 0)

        for version in range(100, 140):
            accuse(slanderer, version)
        assert len(answered) == 3 * BUDGET
        # Others have their own, and what one asks for as an auditor takes nothing of it.
        for _ in range(40):
            audits._requests.spend(swarm.live()[2].name, fragment.index, fragment.machine.version, 4, BUDGET)
        accuse(swarm.live()[2], 140)
        assert len(answered) == 3 * BUDGET + 3
        return swarm

    scenario(play)


def test_false_accusations_do_not_use_up_what_others_look_at_before_they_apply_it():
    async def play():
        swarm = swarm_of(5, replace(RULE, audit_fraction=0.001))
        slanderer, liar, *honest = swarm.live()
        applied = slanderer.exchange.audits.applied

        async def accuse(fragment, commit, payloads):
            await applied(fragment, commit, payloads)
            for shard in range(len(commit.shards)):
                said = Accusation(fragment.index, commit.version, shard, frames.commit_digest(commit), bytes(64))
                said = replace(said, signature=notary_of(slanderer.name).sign_accusation(said))
                for peer in (liar, *honest):
                    slanderer.links.post(peer.name, [frames.encode(said)])

        slanderer.exchange.audits.applied = accuse
        await swarm.train(11)
        lie_in_means(liar, -10.0)
        make_every_mean(liar)
        before = {peer.name: len(peer.closed()) for peer in honest}
        await swarm.train(2, first_seed=9000)
        for peer in honest:
            commits = [closed.commit for closed in peer.closed()[before[peer.name] :]]
            assert liar.name not in {commit.holder(shard) for commit in commits for shard in range(len(commit.shards))}
        return swarm

    scenario(play)


def test_whoever_hides_its_work_from_auditors_is_left_out_after_a_while():
    async def play():
        swarm = swarm_of(5)
        liar = swarm.live()[1]
        liar.exchange.audits._answer = lambda fragment, sender, request: None
        await swarm.train(20)
        assert {remote for remote, _, _ in refusals(swarm, liar)} == {liar.name}
        assert accused_by(swarm, "evasive", liar)
        return swarm

    scenario(play)


def test_a_member_that_a_request_did_not_reach_is_asked_once_more():
    async def play():
        swarm = swarm_of(5)
        deaf = swarm.live()[1]
        answer, heard = deaf.exchange.audits._answer, set()

        def misses_the_first(fragment, sender, request):
            if (sender, request) in heard:
                answer(fragment, sender, request)
            heard.add((sender, request))

        deaf.exchange.audits._answer = misses_the_first
        await swarm.train(12, interval_seconds=15.0)
        assert heard
        assert refusals(swarm) == set()
        return swarm

    scenario(play)


@pytest.mark.parametrize(("num_others", "num_framed", "defends"), [(4, 1, True), (4, 1, False), (3, 4, True)])
def test_a_member_that_a_liar_says_is_in_its_mean_is_not_the_one_that_evades(num_others, num_framed, defends):
    """The liar leads and reduces, so it can put into the roster whom it likes; it has no signature of theirs."""

    async def play():
        swarm = swarm_of(num_others + num_framed)
        liar, framed = swarm.live()[1], swarm.live()[-num_framed:]
        swarm.trainers = [peer for peer in swarm.live() if peer not in framed]
        make_every_mean(liar)
        sizes = {}

        class Forging(Leading):
            def _start(self, now):
                offer = next(iter(self.offers.values()))
                for peer in framed:
                    self.offers[peer.name] = replace(offer, sequence=10**6, reachable=False)
                super()._start(now)
                sizes[swarm.sizes[self.fragment]] = len(self.plan.roster)

        def reduce(contributions, rule, codec, num_values, carried):
            honest = reduce_shard(contributions, rule, codec, num_values, carried)
            return replace(honest, included=tuple(range(sizes.get(num_values, len(contributions)))))

        liar.reduce = reduce
        for fragment in liar.fragments:
            fragment.machine.leading_type = Forging
        if not defends:
            liar.exchange.audits._hear_accusation = lambda fragment, sender, said: None
        await swarm.train(25)
        assert sizes
        assert num_audits(swarm) >= 4
        assert {remote for remote, _, _ in refusals(swarm, liar)} == {liar.name}
        assert accused_by(swarm, "evasive", liar)
        return swarm

    scenario(play)


def test_work_that_is_not_signed_is_in_no_mean():
    async def play():
        swarm = swarm_of(4)
        careless = swarm.live()[1]
        careless.exchange.sending._signed = lambda header, payload: header
        await swarm.train(4)
        assert {remote for remote, _, _ in refusals(swarm, careless)} == {careless.name}
        for peer in swarm.live():
            for closed in peer.closed():
                own = [index for index, entry in enumerate(closed.commit.roster) if entry.peer_id == careless.name]
                in_it = [
                    shard
                    for shard in closed.commit.shards
                    if set(own) & set(shard.included) and closed.commit.roster[shard.reducer].peer_id != careless.name
                ]
                assert not in_it
        return swarm

    scenario(play)


def test_without_audits_nothing_is_signed_asked_or_answered():
    async def play():
        swarm = swarm_of(4, replace(RULE, audit_fraction=0.0))
        header = Contribution(0, 0, 0, swarm.live()[0].name, 0, 1, 0, 300, 1)
        assert swarm.live()[0].exchange.audits.signed(header, [b"x"]) is header
        await swarm.train(4)
        assert num_audits(swarm) == 0
        return swarm

    scenario(play)


# ------------------------------------------------------------------------------------------------------------ parts


def encoded(codec, seed, num_values=512, factor=1.0):
    return codec.encode(factor * normal(seed, num_values))


@pytest.mark.parametrize("name", ["int4", "fp32"])
@pytest.mark.parametrize("combine", ["mean", "centered_clip"])
def test_the_right_mean_is_not_wrong_and_others_are(name, combine):
    codec, rule = make_codec(name, 16), replace(RULE, combine=combine)
    contributions = [(member, Terms(100, 10, 0, 0), encoded(codec, member)) for member in range(5)]
    right = reduce_shard(contributions, rule, codec, 512, None)
    assert not is_wrong(contributions, right.encoded, rule, codec)
    values = np.empty(512, dtype=np.float32)
    codec.decode(right.encoded, values)
    for factor in (-1.0, 0.5, 3.0, 0.0):
        assert is_wrong(contributions, codec.encode(factor * values), rule, codec)
    assert is_wrong(contributions[1:], right.encoded, rule, codec)


def test_a_mean_against_the_own_work_or_far_longer_is_suspicious():
    codec = make_codec("int4", 16)
    own = encoded(codec, 1)
    assert not suspicion(own, encoded(codec, 1, factor=0.3), codec)
    assert not suspicion(own, encoded(codec, 2, factor=0.3), codec)
    assert suspicion(own, encoded(codec, 1, factor=-0.3), codec)
    assert suspicion(own, encoded(codec, 2, factor=10.0), codec)
    assert not suspicion(own, codec.encode(np.zeros(512, dtype=np.float32)), codec)


def test_whoever_has_no_work_in_a_round_looks_at_its_means_too():
    codec = make_codec("int4", 16)
    roster = tuple(RosterEntry(named(number), 100, 10, 0, 1) for number in range(3))
    shards = tuple(ShardResult(512 * index, 512 * (index + 1), index, b"x", (0, 1)) for index in range(3))
    commit = Commit(0, 0, 0, named(0), b"", roster, shards)
    work = normal(1, 1536)

    def means(factors):
        return {index: codec.encode(factor * work[512 * index :][:512]) for index, factor in enumerate(factors)}

    honest, lies = means((0.3, 0.3, 0.3)), means((0.3, -0.3, 3.0))
    own = ComparedWork(codec.encode(work), 10, None)
    assert suspicious(commit, honest, own, codec) == []
    assert suspicious(commit, lies, own, codec) == [1, 2]
    assert suspicious(commit, lies, replace(own, member=0), codec) == [1]
    assert suspicious(commit, means((0.3, -0.3, 8.0)), own, codec) == [1, 2]
    other = ComparedWork(codec.encode(normal(2, 1536)), 10, None)
    assert suspicious(commit, honest, other, codec) == []
    assert suspicious(commit, lies, other, codec) == [2]
    assert suspicious(commit, means((8.0, 0.3, 8.0)), replace(own, member=1), codec) == [0, 2]
    assert suspicious(commit, means((8.0, 0.3, 8.0)), replace(own, member=2), codec) == []
    # Half as much work is no reason to suspect the others.
    assert suspicious(commit, means((6.0, 6.0, 6.0)), replace(own, steps=5), codec) == []
    assert suspicious(commit, honest, None, codec) == []
    assert suspicious(commit, lies, None, codec) == [2]
    assert suspicious(commit, {}, None, codec) == []


def test_an_auditor_has_a_budget():
    """A few requests at once, and one more in eight versions: a hostile auditor costs its members little.

    Each answer is had twice for that, because the first may be lost.
    """

    async def play():
        swarm = swarm_of(3)
        await swarm.train(4)
        peer, asker = swarm.live()[0], named(9)
        answered = []
        fragment = peer.fragments[1]
        audits = peer.exchange.audits
        audits._post = lambda to, message, payload=b"": answered.append(to)
        made, own_share = [], audits._own_share
        audits._own_share = lambda *asked: made.append(asked) or own_share(*asked)
        version = max(fragment.store._own)
        shards = audits._means[1, version][0].shards

        def ask(auditor, start, end, of_version=version):
            audits.hear(fragment, auditor, AuditRequest(1, of_version, start, end), memoryview(b""), 0)

        for shard in (*shards, *shards):
            ask(asker, shard.start, shard.end)
        assert len(answered) == 2 * len(shards)
        for _ in range(100):
            ask(asker, shards[0].start, shards[0].end)
        assert len(answered) == 2 * BUDGET
        # Values that are no shard of that round, and a version that is gone, are nobody's business.
        ask(swarm.live()[2].name, shards[0].start, shards[0].end - 16)
        ask(swarm.live()[2].name, shards[0].start, shards[0].end, version + 9)
        # Each takes a signature, so what is not answered is not made.
        assert len(made) == len(answered) == 2 * BUDGET
        # What an honest auditor accuses takes nothing of what it may ask for: whoever refused it would look evasive.
        for _ in range(40):
            audits._budgets.spend(named(8), 1, fragment.machine.version, 3, OWN_BUDGET)
        ask(named(8), shards[0].start, shards[0].end)
        assert len(answered) == 2 * BUDGET + 1
        # Many keys of one owner get no more together than the round's members, and take nothing from these.
        for number in range(100, 400):
            ask(named(number), shards[0].start, shards[0].end)
        assert 2 * BUDGET + 1 < len(answered) <= 5 * BUDGET
        num_answered = len(answered)
        ask(swarm.live()[2].name, shards[0].start, shards[0].end)
        assert len(answered) == num_answered + 1
        return swarm

    scenario(play)
