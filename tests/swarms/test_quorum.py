"""Who is cut off, or whose own line broke, does not take itself for the swarm."""

from __future__ import annotations

from averaging.rounds.round_facts import MembersAwaited, RoundCommitted
from peer.events.peer_events import MemberChanged
from tests.kit.rounds.exchange_swarm import Swarm, scenario
from tests.simulator.peer import simulated_identity
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate


def test_a_minority_says_whom_it_waits_for_before_it_goes_on():
    async def play():
        swarm = Swarm(4, sizes=(300,), partition_break_seconds=1.0)
        await swarm.train(4, 4.0)
        alone = swarm.live()[0]
        swarm.network.partition([alone.name])
        for peer in swarm.live():
            seen = [alone.name] if peer is alone else [other.name for other in swarm.live() if other is not alone]
            peer.exchange.set_view(seen, [], [other.name for other in swarm.live() if other.name not in seen])
        version = alone.fragments[0].state.version
        await swarm.train(1, 4.0, first_seed=900)
        assert alone.fragments[0].state.version == version
        assert max(peer.fragments[0].state.version for peer in swarm.live()) == version + 1
        awaited = [report for report in alone.reports if isinstance(report, MembersAwaited)]
        (told,) = [report for report in awaited if report.awaited == "quorum"]
        assert (told.num_offers, told.quorum, told.members) == (1, 2, ())
        await swarm.train(2, 4.0, first_seed=1000)
        assert alone.fragments[0].state.version > version  # at last it goes on, as one side of a split
        return swarm

    scenario(play)


def test_survivors_of_a_mass_death_go_on_within_learned_times():
    """Three of four are gone without a word; the last one says what it waits for, and commits."""
    deaths = (Fault(60.0, "crash", (1, 2, 3)),)
    spec = SimulationSpec(4, 300, 3, tiny_manifest(3, sync_every=4), deaths, workload=LIGHT_WORK)
    events = []
    result = simulate(spec, lambda index, event: events.append((index, event)))
    assert result.violations == ()
    died_at = max(event.at for _, event in events if isinstance(event.fact, MemberChanged) and event.fact.reason) - 1.0
    me = simulated_identity(3, 0).peer_id
    lone = [event for _, event in events if isinstance(event.fact, RoundCommitted) and event.fact.contributors == (me,)]
    assert lone
    assert lone[0].at - died_at < 20.0
    assert any(isinstance(event.fact, MembersAwaited) and event.fact.quorum for _, event in events)
