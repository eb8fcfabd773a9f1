"""Claims of versions and tokens that nobody signed for: what honest peers and newcomers end with. Simulated swarms."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from averaging.outer.outer_step import anchor_digest
from averaging.rounds.round_facts import Fact, RoundCommitted
from averaging.transfer.snapshots import Snapshot
from averaging.wire.frames import encode
from averaging.wire.messages import DIGEST_BYTES, VersionIs
from dht.records.peer_record import PeerRecord
from peer.events.anchor_events import AnchorRepair
from peer.events.peer_events import Event
from peer.network.node.node import Node
from tests.kit.tiers import sampled
from tests.simulator.network.lines import LineSettings
from tests.simulator.result import SimulationResult
from tests.simulator.scenarios.spec import LIGHT_WORK, Fault, Lie, PeerSpec, SimulationSpec, tiny_manifest
from tests.simulator.simulation import simulate

CONSTANT = 0.25


@dataclasses.dataclass(frozen=True)
class Theft:
    """What thieves say from `begins_at` on (virtual seconds); those of one swarm say the same.

    Attributes:
        speaks: whether they send `version_is` twice a second; their records say it in any case.
    """

    version: int = 1_000_000
    tokens: int = 2**50
    speaks: bool = True
    begins_at: float = 15.0


class Thief(Node):
    """Takes part like others, but for what it says about its anchors."""

    theft = Theft()

    @property
    def _is_stealing(self) -> bool:
        return self.ports.clock() >= self.theft.begins_at

    def _stolen(self, fragment: int) -> Snapshot:
        values = np.full(self.fragments[fragment].state.num_values, CONSTANT, dtype=np.float32)
        momentum = np.zeros_like(values)
        return Snapshot(self.theft.version, self.theft.tokens, values, momentum, anchor_digest(values, momentum), ())

    async def snapshot(self, fragment: int) -> Snapshot | None:
        """See `StateSource`."""
        return self._stolen(fragment) if self._is_stealing else await super().snapshot(fragment)

    def digest_at(self, fragment: int, version: int) -> bytes:
        """See `StateSource`."""
        if self._is_stealing and version == self.theft.version:
            return self._stolen(fragment).digest
        return super().digest_at(fragment, version)

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        """See `StateSource`."""
        return () if self._is_stealing else super().commit_frames(fragment, version)

    def own_record(self) -> PeerRecord:
        record = super().own_record()
        if not self._is_stealing or record.state == "joining":
            return record
        indices = range(len(self.fragments))
        return dataclasses.replace(
            record,
            versions=tuple(self.theft.version for _ in indices),
            digests=tuple(self._stolen(index).digest[:8] for index in indices),
            lineage_tokens=tuple(self.theft.tokens for _ in indices),
        )

    async def steal(self) -> None:
        """Tell everybody, for ever."""
        while True:
            await asyncio.sleep(0.5)
            if not (self._is_stealing and self.theft.speaks):
                continue
            for fragment in self.fragments:
                stolen = self._stolen(fragment.index)
                message = VersionIs(fragment.index, stolen.version, stolen.digest[:DIGEST_BYTES], stolen.lineage_tokens)
                for record in self.membership.members():
                    self.links.post(record.peer_id, [encode(message)])


@dataclasses.dataclass
class Outcome:
    """A simulation's result, and (peer, event) of the honest ones."""

    result: SimulationResult
    events: list[tuple[int, Event]]

    def of(self, kind: type[Fact]) -> list[tuple[int, Any]]:
        return [(index, event.fact) for index, event in self.events if isinstance(event.fact, kind)]


def swarm_with_thieves(
    monkeypatch: pytest.MonkeyPatch,
    theft: Theft,
    num_honest: int,
    num_thieves: int,
    faults: Sequence[Fault] = (),
    seed: int = 3,
    num_steps: int = 110,
    **averaging: object,
) -> Outcome:
    """Thieves come last; they are killed right before training ends, as nobody else would make rounds then."""
    kind = type("ThisThief", (Thief,), {"theft": theft})
    monkeypatch.setattr("tests.simulator.peer.node_type_of", lambda lie: Node if lie is None else kind)
    monkeypatch.setattr("tests.simulator.peer.turn_hostile", lambda node, *_: node.steal())
    num_peers = num_honest + num_thieves
    profiles = [
        PeerSpec(
            "honest" if index < num_honest else "thieves",
            LineSettings(2e7, 1e8, 0.03, 0.0),
            0.5,
            lie=None if index < num_honest else Lie("wrong_state"),
        )
        for index in range(num_peers)
    ]
    manifest = tiny_manifest(seed, combine="centered_clip", **averaging)
    spec = SimulationSpec(num_peers, num_steps, seed, manifest, profiles=tuple(profiles), workload=LIGHT_WORK)
    last = Fault(spec.training_seconds - 1, "crash", tuple(range(num_honest, num_peers)))
    late = {peer for fault in faults if fault.kind == "start" for peer in fault.peers}
    starts = (Fault(1.0 + 0.3 * index, "start", (index,)) for index in range(num_peers) if index not in late)
    spec = dataclasses.replace(spec, faults=(*starts, *faults, last))
    events: list[tuple[int, Event]] = []

    def note(index: int, event: Event) -> None:
        if index < num_honest:
            events.append((index, event))

    return Outcome(simulate(spec, note), events)


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
