"""Every kind of hostile peer of the simulator, a few at a time beside honest ones that notice and go on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from averaging.rounds.round_facts import RoundCommitted
from dht.ground.errors import UsageFault
from peer.events.peer_events import RefusedPeer
from tests.simulator.adversaries.claims import CLAIMS
from tests.simulator.adversaries.floods import FLOODS
from tests.simulator.adversaries.liars import LIES_IN_FRAMES
from tests.simulator.peer import simulated_identity
from tests.simulator.scenarios.hostile_scenario import NUM_HONEST, scenario_of
from tests.simulator.scenarios.scenario import load_scenario
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.scenarios.spec import LieKind
from tests.simulator.simulation import simulate

TOGETHER = {
    "contributions": ("constant", "inf", "replayed", "copied"),
    "rounds": ("wrong_mean", "drops_members", "two_histories"),
    "alone": ("lone_commits", "wrong_state"),
    "burdens": ("flood_records", "flood_streams", "huge_frames", "slow_reads", "garbage"),
    "claims": ("inflates", "odd_records"),
}
"""At most a few of eight in rounds; burdens train honestly."""
SEEDS = {"rounds": 10}
"""Of swarms in which an audit falls on a wrong mean within these 90 s, which one in three has; others take 5."""


@pytest.mark.parametrize("together", TOGETHER)
def test_honest_peers_go_on_beside_every_kind(together):
    kinds, seed = TOGETHER[together], SEEDS.get(together, 5)
    left_out, rounds = set(), {}

    def note(index, event):
        if index >= NUM_HONEST:
            return
        if isinstance(event.fact, RefusedPeer) and event.fact.left_out_until is not None:
            left_out.add(event.fact.remote)
        if isinstance(event.fact, RoundCommitted):
            for peer_id in event.fact.contributors:
                rounds.setdefault(peer_id, set()).add(event.fact.version)

    result = simulate(spec_of(scenario_of(kinds), seed), note)
    ids = [simulated_identity(seed, index).peer_id for index in range(NUM_HONEST + len(kinds))]
    assert result.violations == ()
    assert not left_out & set(ids[:NUM_HONEST])
    caught = {kind for kind, peer_id in zip(kinds, ids[NUM_HONEST:], strict=True) if peer_id in left_out}
    assert caught >= {"constant", "inf", "wrong_mean", "lone_commits", "huge_frames", "garbage"} & set(kinds)
    assert result.loss_last < 0.6 * result.loss_first
    # No more is committed than was trained: forged tokens are in no commit.
    assert together != "claims" or 0.5 <= result.goodput <= 1.0
    for peer_id in ids[: NUM_HONEST - 1]:
        assert len(rounds[peer_id]) >= 5


def test_every_kind_is_done_somewhere_and_described():
    kinds = set(get_args(LieKind))
    others = {"wrong_mean", "drops_members", "lone_commits", "wrong_state", "old_work", "shirks", "free_records"}
    assert kinds == LIES_IN_FRAMES | FLOODS | CLAIMS | others
    folder = Path(__file__).parents[1] / "simulator" / "adversaries"
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    assert not [kind for kind in kinds if not re.search(rf"\b{kind}\b[a-z_, ]*: ", text)]


def test_an_unknown_kind_costs_one_sentence(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[groups.bad]\ncount = 1\nlie = "rude"\n')
    with pytest.raises(UsageFault) as caught:
        load_scenario(str(path))
    sentence = str(caught.value)
    assert "rude" in sentence
    assert "sign_flipped" in sentence
    assert re.match(r".*own\.toml: groups\.bad\.lie", sentence)
    assert "\n" not in sentence
