"""Wall clocks that differ by a minute: records carry wall times, rounds do not, and nobody is left out."""

from __future__ import annotations

import dataclasses

import pytest

from averaging.rounds.round_facts import RoundCommitted
from peer.events.peer_events import RefusedPeer
from tests.kit.tiers import sampled
from tests.simulator.peer import simulated_identity
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate


@pytest.mark.parametrize("skew_seconds", sampled([-60.0, 60.0], one_in=2))
def test_a_peer_whose_clock_is_off_by_a_minute_takes_part(skew_seconds):
    spec = SimulationSpec(4, 120, 4, tiny_manifest(4), workload=LIGHT_WORK)
    profiles = [spec.profile(index) for index in range(4)]
    profiles[1] = dataclasses.replace(profiles[1], clock_skew_seconds=skew_seconds)
    starts = tuple(Fault(0.5 * index, "start", (index,)) for index in range(4))
    spec = dataclasses.replace(spec, profiles=tuple(profiles), faults=starts)
    commits, refused = {}, []

    def on_event(index, event):
        if isinstance(event.fact, RoundCommitted) and event.fact.version >= 2:
            commits[(event.fact.fragment, event.fact.version, index)] = event.fact.contributors
        elif isinstance(event.fact, RefusedPeer):
            refused.append(event)

    result = simulate(spec, on_event)
    assert result.violations == ()
    assert not refused
    skewed = simulated_identity(spec.seed, 1).peer_id
    shares = [skewed in contributors for contributors in commits.values()]
    assert len(shares) >= 20
    assert sum(shares) / len(shares) >= 0.7
    # Two sides that do not see each other would have rounds of one and of three; the last ones may be small anyway.
    assert sum(len(contributors) == 4 for contributors in commits.values()) / len(commits) >= 0.5
