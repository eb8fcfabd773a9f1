"""Members recompute what reducers signed: liars are found and left out, and nobody honest is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from averaging.codec.codec import make_codec
from averaging.exchange.audit import KEPT_MEANS, _Audit
from averaging.fragment.shard_store import payload_digest
from averaging.outer.contribution_weights import Terms
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import Sent
from averaging.outer.shard_mean import reduce_shard
from averaging.rounds.leader import Leading
from averaging.rounds.round_facts import PeerRefused
from averaging.trust.audit_budgets import BUDGET
from averaging.trust.mean_checks import is_wrong, suspicious
from averaging.wire.messages import MAX_SHARDS, AuditRequest, Commit, Contribution, RosterEntry, ShardPlan, ShardResult
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of
from tests.kit.rounds.exchange_swarm import Swarm, scenario
from tests.kit.tiers import sampled

RULE = OuterRule("carry", 0.7, 0.5, overlay_gain=0.7, combine="centered_clip", clip_norm_ratio=2.0, audit_fraction=2.0)


def swarm_of(num_peers, rule=RULE, seed=1):
    """Everybody audits by a chance of its own."""
    swarm = Swarm(num_peers, rule=rule, seed=seed)
    for number, peer in enumerate(swarm.live()):
        peer.chance = np.random.default_rng(100 * seed + number).random
    return swarm


def refusals(swarm, *besides):
    """{(who was refused, by whom, kind)}."""
    return {
        (report.peer_id, peer.name, kind)
        for peer in swarm.live()
        if peer not in besides
        for report in peer.reports
        if isinstance(report, PeerRefused)
        for kind, _ in report.counts
    }


def blamed_by(swarm, kind, *besides):
    found = {}
    for remote, by, of_kind in refusals(swarm, *besides):
        if of_kind == kind:
            found.setdefault(remote, set()).add(by)
    return found


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
        other.exchange.sending.is_reachable = other is peer


@pytest.mark.parametrize("combine", ["mean", "centered_clip"])
def test_nobody_honest_is_blamed(combine):
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
def test_whoever_signs_a_wrong_mean_is_left_out_by_those_that_recompute_it(factor):
    async def play():
        swarm = swarm_of(5)
        liar = swarm.live()[2]
        lie_in_means(liar, factor)
        make_every_mean(liar)
        await swarm.train(5)
        auditors = blamed_by(swarm, "wrong_mean", liar)[liar.name]
        assert len(auditors) >= 3
        for peer in swarm.live():
            assert peer.exchange.guard.excluded([liar.name]) == ({liar.name} if peer.name in auditors else set())
        assert {remote for remote, _, _ in refusals(swarm, liar)} == {liar.name}
        return swarm

    scenario(play)


@pytest.mark.parametrize("with_earlier_work", [False, True])
def test_a_gross_lie_moves_no_honest_anchor_even_where_few_rounds_are_audited(with_earlier_work):
    """Nor does it move that of a member whose work came too late for the round."""

    async def play():
        swarm = swarm_of(6, replace(RULE, audit_fraction=0.001))
        liar, late = swarm.live()[2], swarm.live()[4]
        if with_earlier_work:
            await swarm.train(3)
        lie_in_means(liar, -10.0)
        for other in swarm.live():
            if other not in (liar, swarm.live()[0]):  # these two reduce: means can be compared
                other.exchange.sending.is_reachable = False
        before = {peer.name: len(peer.closed()) for peer in swarm.live()}
        swarm.trainers = [peer for peer in swarm.live() if peer is not late]
        await swarm.train(4, first_seed=5000)
        for peer in swarm.live():
            if peer is not liar:
                applied = [closed.commit for closed in peer.closed()[before[peer.name] :]]
                assert len(applied) >= 3
                reducers = {commit.roster[shard.reducer].peer_id for commit in applied for shard in commit.shards}
                assert liar.name not in reducers
        assert late.name in blamed_by(swarm, "wrong_mean", liar)[liar.name]
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


@pytest.mark.parametrize("seed", sampled(range(1, 7), one_in=3))
def test_a_member_with_two_faces_cannot_frame_a_reducer(seed):
    """It shows auditors other work than it sent to the reducer, signed like that."""

    async def play():
        swarm = swarm_of(5, seed=seed)
        reducer, liar = swarm.live()[0], swarm.live()[3]
        make_every_mean(reducer)
        audits = liar.exchange.audits
        audits._own_share = another_share(liar, audits._own_share)
        await swarm.train(6)
        assert reducer.name not in {remote for remote, _, _ in refusals(swarm, liar)}
        assert liar.name in blamed_by(swarm, "two_faced", liar)
        return swarm

    scenario(play)


def test_whoever_makes_many_means_can_show_the_inputs_of_each():
    """A large fragment has hundreds of means, and a hostile leader may cut a small one into as many for one reducer."""

    async def play():
        swarm = swarm_of(4)
        await swarm.train(3)
        reducer, auditor = swarm.live()[0], swarm.live()[1]
        commit = next(one.commit for one in reversed(reducer.closed()) if reducer.name == one.commit.holder(0))
        fragment, audits = reducer.fragments[commit.fragment], reducer.exchange.audits
        other = reducer.fragments[1 - commit.fragment]
        shards = [ShardPlan(shard, shard + 1, 0) for shard in range(MAX_SHARDS)]
        plan = SimpleNamespace(fragment=other.index, version=other.state.version, attempt=0, roster=(), shards=shards)
        for shard in range(MAX_SHARDS):
            await audits.proven(other, plan, auditor.name, shard, ())
        answered = []
        audits._post = lambda to, message, payload=b"": answered.append(message)
        shard = commit.shards[0]
        request = AuditRequest(fragment.index, commit.version, shard.start, shard.end)
        audits.hear(fragment, auditor.name, request, memoryview(b""), 0)
        others = [member for member in shard.included if commit.roster[member].peer_id != reducer.name]
        assert [shown.member for shown in answered[0].inputs] == others
        plan.version += KEPT_MEANS + 1
        await audits.proven(other, plan, auditor.name, 0, ())
        assert [place for place in audits._inputs if place[0] == other.index] == [(other.index, plan.version)]
        return swarm

    scenario(play)


@pytest.mark.parametrize("interval_seconds", [5.0, 60.0])
def test_whoever_hides_its_work_from_auditors_is_left_out_after_a_while(interval_seconds):
    async def play():
        swarm = swarm_of(5)
        liar = swarm.live()[1]
        liar.exchange.audits._answer = lambda fragment, sender, request: None
        await swarm.train(20, interval_seconds)
        # A leader leaves out whom it excludes, and may be blamed for that.
        assert {remote for remote, _, kind in refusals(swarm, liar) if kind != "partial"} == {liar.name}
        assert blamed_by(swarm, "evasive", liar)
        return swarm

    scenario(play)


@pytest.mark.parametrize("seed", sampled(range(1, 5), one_in=4))
def test_an_auditor_on_a_starved_machine_blames_nobody_that_no_longer_has_what_it_asks_for(seed):
    async def play():
        swarm = swarm_of(5, seed=seed)
        starved = swarm.live()[1]

        async def compute(work):
            await asyncio.sleep(4.0)
            return work()

        starved.compute = compute
        await swarm.train(20)
        assert starved.exchange.audits.num_audits >= 10
        assert blamed_by(swarm, "evasive") == {}
        return swarm

    scenario(play)


def test_one_liar_that_claims_a_later_version_makes_no_audit_late():
    roster = tuple(RosterEntry(named(number), 100, 10, 0, 1) for number in range(5))
    audit = _Audit(Commit(0, 7, 0, named(0), b"", roster, ()), 0, b"", frozenset(range(5)))
    assert not audit.is_late
    audit.shares = dict.fromkeys(range(1, 4))
    audit.versions = {named(1): 99, named(2): 8, named(3): 8, named(4): 99}
    assert not audit.is_late
    audit.versions[named(2)] = 9
    assert audit.is_late


def test_slow_answers_are_awaited_for_as_long_as_members_keep_what_they_answer_with():
    async def play():
        swarm = swarm_of(5)
        audits, loop = swarm.live()[1].exchange.audits, asyncio.get_running_loop()
        answer = audits._answer
        audits._answer = lambda *request: loop.call_later(40.0, answer, *request)
        await swarm.train(12, interval_seconds=60.0)
        assert blamed_by(swarm, "evasive") == {}
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


@pytest.mark.parametrize(("num_others", "num_framed", "shows"), [(4, 1, True), (4, 1, False), (3, 4, True)])
def test_a_member_that_a_liar_says_is_in_its_mean_is_not_the_one_that_evades(num_others, num_framed, shows):
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
        if not shows:
            liar.exchange.audits._keep_inputs = lambda fragment, version, values, inputs: None
        await swarm.train(25)
        assert sizes
        assert num_audits(swarm) >= 4
        assert {remote for remote, _, _ in refusals(swarm, liar)} == {liar.name}
        assert blamed_by(swarm, "evasive", liar)
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
    contributions = [(member, Terms(100, 10, 0), encoded(codec, member)) for member in range(5)]
    right = reduce_shard(contributions, rule, codec, 512, None)
    assert not is_wrong(contributions, right.encoded, rule, codec)
    values = np.empty(512, dtype=np.float32)
    codec.decode(right.encoded, values)
    for factor in (-1.0, 0.5, 3.0, 0.0):
        assert is_wrong(contributions, codec.encode(factor * values), rule, codec)
    assert is_wrong(contributions[1:], right.encoded, rule, codec)


def test_whoever_has_no_work_in_a_round_looks_at_its_means_too():
    codec = make_codec("int4", 16)
    roster = tuple(RosterEntry(named(number), 100, 10, 0, 1) for number in range(3))
    shards = tuple(ShardResult(512 * index, 512 * (index + 1), index, b"x", (0, 1)) for index in range(3))
    commit = Commit(0, 0, 0, named(0), b"", roster, shards)
    work = normal(1, 1536)

    def means(factors):
        return {index: codec.encode(factor * work[512 * index :][:512]) for index, factor in enumerate(factors)}

    honest, lies = means((0.3, 0.3, 0.3)), means((0.3, -0.3, 3.0))
    own = Sent(1, codec.encode(work), 100, 10, 0)
    assert suspicious(commit, honest, own, None, codec) == []
    assert suspicious(commit, lies, own, None, codec) == [1, 2]
    assert suspicious(commit, lies, own, 0, codec) == [1]
    assert suspicious(commit, means((0.3, -0.3, 8.0)), own, None, codec) == [1, 2]
    other = Sent(1, codec.encode(normal(2, 1536)), 100, 10, 0)
    assert suspicious(commit, honest, other, None, codec) == []
    assert suspicious(commit, lies, other, None, codec) == [2]
    assert suspicious(commit, means((8.0, 0.3, 8.0)), own, 1, codec) == [0, 2]
    assert suspicious(commit, means((8.0, 0.3, 8.0)), own, 2, codec) == []
    # Half as much work is no reason to suspect the others.
    assert suspicious(commit, means((6.0, 6.0, 6.0)), replace(own, steps=5), None, codec) == []
    assert suspicious(commit, honest, None, None, codec) == []
    assert suspicious(commit, lies, None, None, codec) == [2]
    assert suspicious(commit, {}, None, None, codec) == []


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
        audits._post = lambda to, message, payload=b"": payload and answered.append(to)
        made, own_share = [], audits._own_share
        audits._own_share = lambda *asked: made.append(asked) or own_share(*asked)
        version = max(fragment.store.own_work)
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
        # Many keys of one owner get no more together than the round's members, and take nothing from these.
        for number in range(100, 400):
            ask(named(number), shards[0].start, shards[0].end)
        assert 2 * BUDGET < len(answered) <= 5 * BUDGET
        num_answered = len(answered)
        ask(swarm.live()[2].name, shards[0].start, shards[0].end)
        assert len(answered) == num_answered + 1
        return swarm

    scenario(play)
