"""`RunStanding`: where a run is and how good it is, from its members' records and the work that they signed.

A record costs nothing and may claim anything, so the members decide whose work is in signed commits, each with the
weight of that work. Before the first signed commit every member with an anchor counts alike. Each figure is a median
over them, and of two equal members the one that claims less: a lower version, fewer tokens, a higher loss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from dht.ground.host import PeerId
from dht.records.peer_record import PeerRecord
from peer.run_clock import committed_tokens

FRESH_SHARE: Final = 0.75
"""Of the version at which most have measured: an older measurement is of another model."""
SPEED_TIMES: Final = 4.0
"""A member's speed counts up to so many times what its work, or the usual speed, suggests."""
_Figure = TypeVar("_Figure", int, float)
NO_WORK: Final[Mapping[PeerId, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MeasuredLoss:
    """A validation loss and the sum of the anchor versions at which it was measured."""

    loss: float
    version: int


@dataclass(frozen=True, slots=True)
class RunStanding:
    """Where a run is.

    Attributes:
        electors: records of the members that decide; see `electors_of`.
        versions: the head of each fragment: the highest version that more than half of the signed work has reached.
        tokens: committed so far (`peer.run_clock`).
        validation: None: no member has measured any.
        tokens_per_second: of all electors that train.
    """

    electors: tuple[PeerRecord, ...]
    versions: tuple[int, ...]
    tokens: int
    validation: MeasuredLoss | None
    tokens_per_second: float

    @property
    def trainers(self) -> tuple[PeerRecord, ...]:
        """Electors that train now: a record beside signed work makes no trainer."""
        return tuple(record for record in self.electors if record.is_training)

    @property
    def num_rounds(self) -> int:
        """Rounds of the whole run: each version of each fragment is one."""
        return sum(self.versions)


NOWHERE: Final = RunStanding((), (), 0, None, 0.0)
"""Before anybody has said anything."""


def standing_of(records: Iterable[PeerRecord], work: Mapping[PeerId, int] = NO_WORK) -> RunStanding:
    """Return where the run is.

    Args:
        records: of live members.
        work: of each member what others have signed, in any unit; members without any need no entry.
    """
    electors = electors_of(records, work)
    have_work = any(work.get(record.peer_id, 0) > 0 for record in electors)
    weights = {record.peer_id: work.get(record.peer_id, 0) if have_work else 1 for record in electors}
    anchored = _with_usual_fragments(electors, weights)
    num_fragments = len(anchored[0].versions) if anchored else 0
    versions = tuple(
        _lower_median((record.versions[fragment], weights[record.peer_id]) for record in anchored)
        for fragment in range(num_fragments)
    )
    clocks = [(clock, weights[one.peer_id]) for one in electors if (clock := committed_tokens(one.lineage_tokens))]
    return RunStanding(
        electors=electors,
        versions=versions,
        tokens=_lower_median(clocks) if clocks else 0,
        validation=_validation(electors, weights, sum(versions)),
        tokens_per_second=_total_speed([one for one in electors if one.is_training], weights),
    )


def electors_of(records: Iterable[PeerRecord], work: Mapping[PeerId, int] = NO_WORK) -> tuple[PeerRecord, ...]:
    """Return the records of those who decide: with signed work and an anchor, or all while there are none."""
    members = tuple(records)
    return tuple(one for one in members if work.get(one.peer_id, 0) > 0 and one.versions) or members


def _with_usual_fragments(electors: Sequence[PeerRecord], weights: Mapping[PeerId, int]) -> list[PeerRecord]:
    """Those that cut the model as most of the weight does."""
    cuts: Counter[int] = Counter()
    for record in electors:
        if record.versions:
            cuts[len(record.versions)] += weights[record.peer_id]
    usual = max(cuts, key=lambda cut: (cuts[cut], -cut), default=0)
    return [record for record in electors if record.versions and len(record.versions) == usual]


def _validation(
    electors: Sequence[PeerRecord], weights: Mapping[PeerId, int], num_versions: int
) -> MeasuredLoss | None:
    """The median of what the electors measured lately; nothing beyond the head has been measured by anybody."""
    measured = [
        (record.validation_loss, record.validation_version, weights[record.peer_id])
        for record in electors
        if record.validation_loss is not None
        and math.isfinite(record.validation_loss)
        and record.validation_version <= num_versions
    ]
    if not measured:
        return None
    usual = -_lower_median((-version, weight) for _, version, weight in measured)
    fresh = [(loss, version, weight) for loss, version, weight in measured if version >= FRESH_SHARE * usual]
    loss = -_lower_median((-loss, weight) for loss, _, weight in fresh)
    return MeasuredLoss(loss, max(version for measured_loss, version, _ in fresh if measured_loss == loss))


def _total_speed(trainers: Sequence[PeerRecord], weights: Mapping[PeerId, int]) -> float:
    """The sum of what the trainers report, each no more than `SPEED_TIMES` what the others make likely.

    Likely is the usual speed (where most signed work comes from), or what its own work suggests, whichever is more.
    """
    if len(trainers) < 2:
        return sum(one.tokens_per_second for one in trainers)
    usual = _lower_median((one.tokens_per_second, weights[one.peer_id]) for one in trainers)
    per_weight = _lower_median((one.tokens_per_second / weights[one.peer_id], weights[one.peer_id]) for one in trainers)
    return sum(
        min(one.tokens_per_second, SPEED_TIMES * max(usual, per_weight * weights[one.peer_id])) for one in trainers
    )


def _lower_median(weighted: Iterable[tuple[_Figure, int]]) -> _Figure:
    """The lowest figure that at least half of the weight does not exceed; of two equal ones the lower one."""
    ordered = sorted(weighted)
    total, reached = sum(weight for _, weight in ordered), 0
    for figure, weight in ordered:
        reached += weight
        if 2 * reached >= total:
            return figure
    raise ValueError("no figures; expected at least one")
