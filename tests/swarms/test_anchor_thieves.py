"""Claims of versions and tokens that nobody signed for: what honest peers and newcomers end with. Simulated swarms."""

from __future__ import annotations

import pytest

from averaging.rounds.round_facts import RoundCommitted
from peer.events.anchor_events import AnchorRepair
from peer.network.node.node import Node
from tests.kit.simulated.anchor_thieves import Outcome, Theft, swarm_with_thieves
from tests.kit.tiers import sampled
from tests.simulator.scenarios.spec import Fault


def assert_they_learned(outcome: Outcome, theft: Theft) -> None:
    """The honest are where they are by their own rounds, and the loss follows."""
    result = outcome.result
    assert result.violations == ()
    assert result.anchors_equal
    assert max(result.versions) < min(theft.version, 1000)
    assert result.loss_last < 0.5 * result.loss_first


@pytest.mark.parametrize(
    "theft",
    sampled(
        [
            Theft(),
            Theft(speaks=False),
            Theft(version=2**40, tokens=2**60 - 1),
            Theft(version=40, tokens=10**6, begins_at=25.0),
        ],
        one_in=4,
    ),
    ids=["spoken", "records alone", "near the limits", "a little ahead"],
)
def test_one_stranger_moves_nobody(monkeypatch: pytest.MonkeyPatch, theft: Theft) -> None:
    outcome = swarm_with_thieves(monkeypatch, theft, 3, 1)
    assert_they_learned(outcome, theft)
    assert not [event for _, event in outcome.of(AnchorRepair) if event.is_done and event.version >= theft.version]


def test_two_of_four_move_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    theft = Theft()
    outcome = swarm_with_thieves(monkeypatch, theft, 2, 2)
    assert_they_learned(outcome, theft)
    assert not [event for _, event in outcome.of(AnchorRepair) if event.is_done and event.version >= theft.version]


def test_a_newcomer_takes_no_claim_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """By records alone: it would announce what it took, and be the second one that does."""
    theft = Theft(speaks=False)
    late = Fault(25.0, "start", (2,))
    outcome = swarm_with_thieves(monkeypatch, theft, 3, 1, (late,))
    assert_they_learned(outcome, theft)
    assert {index for index, event in outcome.of(RoundCommitted) if event.version < 1000} == {0, 1, 2}
    assert not [event for _, event in outcome.of(AnchorRepair) if event.is_done and event.version >= theft.version]


@pytest.mark.parametrize(("num_thieves", "num_honest"), sampled([(1, 3), (2, 5)], one_in=2))
def test_a_newcomer_that_meets_only_liars_at_first_comes_back(
    monkeypatch: pytest.MonkeyPatch, num_thieves: int, num_honest: int
) -> None:
    """It knows nobody else, so it believes them; then it follows the members that most know."""
    theft, newcomer = Theft(speaks=False), num_honest - 1
    kept: list[None] = []

    async def keep(_node: Node) -> None:
        kept.append(None)

    monkeypatch.setattr(Node, "_keep_lineage", keep)
    thieves = tuple(range(num_honest, num_honest + num_thieves))
    faults = (
        Fault(20.0, "partition", (newcomer, *thieves)),
        Fault(22.0, "start", (newcomer,)),
        Fault(32.0, "heal"),
    )
    outcome = swarm_with_thieves(monkeypatch, theft, num_honest, num_thieves, faults, num_steps=140)
    assert_they_learned(outcome, theft)
    moved = [(index, event) for index, event in outcome.of(AnchorRepair) if event.is_done]
    assert newcomer in {index for index, event in moved if event.version < 1000}
    assert kept, "no commits lead from the liars' anchor: the newest checkpoint is kept"
    assert not [event for index, event in moved if event.version >= theft.version and index != newcomer]
