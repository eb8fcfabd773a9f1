"""A host with many keys that publish right records for nothing, and what it can do to the rounds of the others."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from averaging.codec.codec import make_codec
from averaging.wire.field_checks import Limits
from dht.admission.handshake_frames import AccessRule
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.chaos.checks import num_names
from tests.kit.chaos.free_records import RECORDS_OF_AN_HONEST_PEER, Keys, Signer
from tests.kit.chaos.record_pairs import small_scenario_of
from tests.kit.chaos.record_storm import Storm, play
from tests.kit.chaos.scenario import FIRST_SYBIL_SEED, Scenario, scenario_of, without_records
from tests.kit.chaos.world import run_scenario
from tests.kit.network.memory_networks import named, now
from tests.kit.notaries import notary_of
from tests.kit.records import RUN_ID, make_record
from tests.kit.tiers import some
from tests.simulator.network.host import MemoryNetwork
from tests.simulator.virtual_time import run_virtual

SEEDS = range(FIRST_SYBIL_SEED, FIRST_SYBIL_SEED + 200)
PAIRS = (1, *range(20, 40))
"""Small swarms; in the first one, those who were established first went on among themselves."""
ATTACKED = (37, 5, 1, 25, 4)
"""Seeds with faults in which rounds with a quorum of all records are less than half of the control's, or none."""
LEAST_SHARE = 0.9
"""Of the control's rounds, over several seeds together: one seed differs by more from itself in other numbers."""


def test_every_sybil_scenario_has_free_records_on_at_most_a_quarter_of_its_hosts():
    for seed in SEEDS:
        profiles = scenario_of(seed).profiles
        hostile = [profile for profile in profiles if profile.lie]
        assert hostile
        assert 4 * len(hostile) <= len(profiles)
        assert all(profile.lie == "free_records" and profile.further for profile in hostile)
        num_keys = RECORDS_OF_AN_HONEST_PEER * (len(profiles) - len(hostile)) * len(hostile)
        assert num_names(scenario_of(seed)) == len(profiles) + num_keys
    beside = {lie for seed in SEEDS for profile in scenario_of(seed).profiles for lie in profile.further}
    assert beside >= {"lone_commits", "boast", "pretend", "inflate", "odd", "sink", "extreme", "constant"}


def test_the_control_of_a_scenario_differs_in_the_records_alone():
    for seed in SEEDS:
        attacked, control = scenario_of(seed), without_records(scenario_of(seed))
        assert (control.faults, control.sizes) == (attacked.faults, attacked.sizes)
        for with_records, without in zip(attacked.profiles, control.profiles, strict=True):
            assert "free_records" not in (without.lie, *without.further)
            if with_records.lie:
                assert with_records.further == (without.lie, *without.further)
            else:
                assert with_records == without


def test_records_that_cost_nothing_stop_no_rounds_and_take_no_member_along():
    expect_as_many_rounds([small_scenario_of(seed) for seed in some(PAIRS, len(PAIRS))])


@pytest.mark.nightly
def test_records_that_cost_nothing_stop_no_rounds_among_faults():
    expect_as_many_rounds([scenario_of(FIRST_SYBIL_SEED + seed) for seed in ATTACKED])


def expect_as_many_rounds(scenarios: Sequence[Scenario]) -> None:
    """As many as without the records, all scenarios together, and no more commits of liars alone that are followed."""
    pairs = [(run_scenario(scenario), run_scenario(without_records(scenario))) for scenario in scenarios]
    for attack, control in pairs:
        assert not attack.violations, attack.describe()
        assert attack.seen["followed liars"] <= control.seen["followed liars"]
    attacked = sum(attack.rounds_per_minute for attack, _ in pairs)
    assert attacked >= LEAST_SHARE * sum(control.rounds_per_minute for _, control in pairs)


@pytest.mark.nightly
def test_whole_nodes_learn_beside_free_records_as_they_do_without():
    storm = Storm.of_seed(0)
    attack, control = play(storm, with_records=True), play(storm, with_records=False)
    assert attack.violations == ()
    assert attack.rounds_per_minute >= LEAST_SHARE * control.rounds_per_minute
    assert attack.loss <= 1.5 * control.loss


def test_storms_are_a_function_of_their_seed_and_meet_every_answer():
    storms = [Storm.of_seed(seed) for seed in range(60)]
    assert storms == [Storm.of_seed(seed) for seed in range(60)]
    assert {storm.answer for storm in storms} == {"absent", "silent", "greeting"}
    assert all(4 * len(storm.lies) <= storm.num_honest + len(storm.lies) for storm in storms)
    assert sum("lone_commits" in storm.lies for storm in storms) > 20


def test_each_record_of_a_key_is_as_right_as_its_pattern_and_newer_than_the_last():
    async def program() -> None:
        policies = [RunHandshakePolicy(AccessRule(RUN_ID, bytes(32), "test"), named(key), "trainer") for key in (1, 2)]
        signers = [Signer(policy.me, notary_of(policy.me), policy) for policy in policies]
        limits = Limits((8,), make_codec("fp32", 8).encoded_num_bytes(8))
        keys = Keys(MemoryNetwork(1), signers, limits, now, "absent", Random(1))
        pattern = make_record(named(3), run_id=RUN_ID, versions=(7,), digests=(bytes(8),), lineage_tokens=(5,))
        first, second = keys.records(pattern), keys.records(pattern)
        assert [record.peer_id for record in first] == [named(1), named(2)]
        assert all(record.is_training and record.versions == (7,) for record in (*first, *second))
        assert {record.session for record in first} == {record.session for record in second}
        assert max(record.sequence for record in first) < min(record.sequence for record in second)

    run_virtual(program())
