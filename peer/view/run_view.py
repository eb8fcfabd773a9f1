"""`RunView`: the figures of a run for every renderer, computed from members' records and the work that they signed.

A record costs nothing and may claim anything, so members with work in signed commits decide, each with the weight of
that work. Before the first signed commit all members with an anchor have equal weight. Each figure is a weighted
median, and in a tie the more modest claim is used: a lower version, fewer tokens, a higher loss.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Final, TypeVar

from averaging.signing.commit_credit import CreditedRound, counted, totals
from dht.ground.host import PeerId
from dht.records.evaluation import Evaluation
from dht.records.peer_record import PeerRecord
from peer.view.run_clock import committed_tokens

NUM_COMMITS: Final = 32
"""Number of a fragment's newest commits whose work counts; a contributing member is in several of them."""
FRESH_SHARE: Final = 0.75
"""Share of the version at which most members measured; an older measurement is of a different model."""
SPEED_TIMES: Final = 4.0
"""Limit on a member's speed, as a multiple of the speed suggested by its work or by the typical speed."""
_Figure = TypeVar("_Figure", int, float)
NO_WORK: Final[Mapping[PeerId, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RunView:
    """The figures of a run. They are not rounded; `dht.ground.quantities` formats them.

    Attributes:
        observed_at: time of the observation, in unix seconds.
        versions: the head of each fragment: the highest version that more than half of the signed work has reached.
        num_rounds: rounds of the whole run; each version of each fragment is one.
        committed_tokens: the run's clock (`peer.view.run_clock`).
        tokens_per_second: total speed of all electors that train.
        evaluation: the newest evaluation, even if the member that measured it has gone; None: there was none.
        evaluated_at: unix seconds at which it was first seen.
        train_loss: the median over the electors that train; None: none of them announces a loss.
        num_members: live members, seeds included.
        num_electors: members that decide these figures; see `electors_of`.
        num_training: electors that train now; a record without signed work does not count as a trainer.
        num_paused: members with a trainer that serve others and do not train.
        num_seeds: members that never train.
        has_signed_work: whether signed commits determine the electors.
        electors: the electors' records. Not in the JSON.
    """

    observed_at: float = 0.0
    versions: tuple[int, ...] = ()
    num_rounds: int = 0
    committed_tokens: int = 0
    tokens_per_second: float = 0.0
    evaluation: Evaluation | None = None
    evaluated_at: float | None = None
    train_loss: float | None = None
    num_members: int = 0
    num_electors: int = 0
    num_training: int = 0
    num_paused: int = 0
    num_seeds: int = 0
    has_signed_work: bool = False
    electors: tuple[PeerRecord, ...] = ()

    @property
    def trainers(self) -> tuple[PeerRecord, ...]:
        """Records of the electors that train now."""
        return tuple(record for record in self.electors if record.is_training)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values, under their own names."""
        return {name: plain(getattr(self, name)) for name in FIGURES}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunView:
        """Restore a view from the values of `to_json`."""
        evaluation = values["evaluation"] and Evaluation(**values["evaluation"])
        return cls(**{**values, "versions": tuple(values["versions"]), "evaluation": evaluation})


FIGURES: Final = tuple(field.name for field in fields(RunView) if field.name != "electors")
"""Names of the figures, in JSON as in code."""
MEMBER_FIGURES: Final = (
    *("peer_id", "name", "state", "role", "device", "software", "reachable", "started_at", "versions"),
    *("inner_steps", "tokens", "tokens_per_second", "rounds_contributed", "upload_bits_per_second"),
    *("train_loss", "evaluation"),
)
"""Fields of a member's record that `peer status` and the page's API show."""
NOWHERE: Final = RunView()
"""The view before any member has announced anything."""


def run_view_of(
    records: Iterable[PeerRecord],
    work: Mapping[PeerId, int] = NO_WORK,
    now: float = 0.0,
    before: RunView = NOWHERE,
) -> RunView:
    """Compute the figures of a run.

    Args:
        records: records of live members.
        work: signed work of each member, in any unit; members without work need no entry.
        now: unix seconds.
        before: the previous view. Its model figures stay while no member with newer ones is present.
    """
    members = tuple(records)
    electors = electors_of(members, work)
    # If no member that has worked has an anchor, all are electors.
    have_work = bool(electors) and all(work.get(record.peer_id, 0) > 0 for record in electors)
    weights = {record.peer_id: work.get(record.peer_id, 0) if have_work else 1 for record in electors}
    anchored = _with_usual_fragments(electors, weights)
    num_fragments = len(anchored[0].versions) if anchored else 0
    heads = tuple(
        _lower_median((record.versions[fragment], weights[record.peer_id]) for record in anchored)
        for fragment in range(num_fragments)
    )
    versions = heads or before.versions
    clocks = [
        (clock, weights[record.peer_id]) for record in electors if (clock := committed_tokens(record.lineage_tokens))
    ]
    trainers = [record for record in electors if record.is_training]
    measured = _usual_evaluation(electors, weights, sum(versions))
    evaluation, evaluated_at = _newest_evaluation(before, measured, versions, now)
    return RunView(
        observed_at=now,
        versions=versions,
        num_rounds=sum(versions),
        committed_tokens=_clock(before, clocks, is_of_work=have_work),
        tokens_per_second=_total_speed(trainers, weights),
        evaluation=evaluation,
        evaluated_at=evaluated_at,
        train_loss=_median([record.train_loss for record in trainers if record.train_loss is not None]),
        num_members=len(members),
        num_electors=len(electors),
        num_training=len(trainers),
        num_paused=sum(record.role == "trainer" and record.state == "serving" for record in members),
        num_seeds=sum(record.role != "trainer" for record in members),
        has_signed_work=have_work,
        electors=electors,
    )


def work_in(rounds: Sequence[CreditedRound]) -> dict[PeerId, int]:
    """Return each member's work in signed commits: thousandths of tokens in rounds of several members.

    Work that only the member itself signed counts up to the largest witnessed amount of any member, because a member
    that always leads and averages has no witness. If no round had several members, each member in a commit has the same
    work: 1.
    """
    shared = totals([one for one in counted(rounds) if sum(share.milli_tokens > 0 for share in one.shares) > 1])
    most = max((total.milli_witnessed for total in shared), default=0)
    work = {total.peer_id: min(total.milli_reported, most) for total in shared if total.milli_reported}
    return work if most else {total.peer_id: 1 for total in totals(rounds) if total.milli_reported}


def electors_of(records: Iterable[PeerRecord], work: Mapping[PeerId, int] = NO_WORK) -> tuple[PeerRecord, ...]:
    """Return the records of the deciding members: those with signed work and an anchor, or all if there are none."""
    members = tuple(records)
    return tuple(record for record in members if work.get(record.peer_id, 0) > 0 and record.versions) or members


def _with_usual_fragments(electors: Sequence[PeerRecord], weights: Mapping[PeerId, int]) -> list[PeerRecord]:
    """Return the electors that divide the model into the same number of fragments as most of the weight."""
    cuts: Counter[int] = Counter()
    for record in electors:
        if record.versions:
            cuts[len(record.versions)] += weights[record.peer_id]
    usual = max(cuts, key=lambda cut: (cuts[cut], -cut), default=0)
    return [record for record in electors if record.versions and len(record.versions) == usual]


def _clock(before: RunView, clocks: Sequence[tuple[int, int]], *, is_of_work: bool) -> int:
    """Return the run's clock. It never decreases, except a claim from before the first signed work that no worker
    confirms.
    """
    if not clocks:
        return before.committed_tokens
    known = before.committed_tokens
    if before.has_signed_work != is_of_work:
        known = min(known, max(clock for clock, _ in clocks))
    return max(known, _lower_median(clocks))


def _usual_evaluation(
    electors: Sequence[PeerRecord], weights: Mapping[PeerId, int], num_versions: int
) -> Evaluation | None:
    """Return the median of the electors' recent measurements. No member can measure beyond the head."""
    measured = [
        (record.evaluation, weights[record.peer_id])
        for record in electors
        if record.evaluation is not None
        and math.isfinite(record.evaluation.loss)
        and record.evaluation.version <= num_versions
    ]
    if not measured:
        return None
    usual = -_lower_median((-one.version, weight) for one, weight in measured)
    fresh = [(one, weight) for one, weight in measured if one.version >= FRESH_SHARE * usual]
    loss = -_lower_median((-one.loss, weight) for one, weight in fresh)
    return max((one for one, _ in fresh if one.loss == loss), key=lambda one: one.version)


def _newest_evaluation(
    before: RunView, measured: Evaluation | None, versions: Sequence[int], now: float
) -> tuple[Evaluation | None, float | None]:
    """Return the newer of the known and the measured evaluation, and the time at which it was first seen.

    A known evaluation is dropped if its version is now beyond the head, because no member has that model.
    """
    known = before.evaluation
    if known is not None and known.version > sum(versions) > 0:
        known = None
    if measured is None or (known is not None and (measured.version < known.version or measured == known)):
        return known, None if known is None else before.evaluated_at
    return measured, now


def _total_speed(trainers: Sequence[PeerRecord], weights: Mapping[PeerId, int]) -> float:
    """Return the sum of the trainers' speeds, each limited to `SPEED_TIMES` its likely speed.

    The likely speed is the typical speed (weighted by signed work), or the speed suggested by the trainer's own work,
    whichever is higher.
    """
    if len(trainers) < 2:
        return sum(record.tokens_per_second for record in trainers)
    usual = _lower_median((record.tokens_per_second, weights[record.peer_id]) for record in trainers)
    per_weight = _lower_median(
        (record.tokens_per_second / weights[record.peer_id], weights[record.peer_id]) for record in trainers
    )
    return sum(
        min(record.tokens_per_second, SPEED_TIMES * max(usual, per_weight * weights[record.peer_id]))
        for record in trainers
    )


def _lower_median(weighted: Iterable[tuple[_Figure, int]]) -> _Figure:
    """Return the lowest figure that at least half of the weight does not exceed."""
    ordered = sorted(weighted)
    total, reached = sum(weight for _, weight in ordered), 0
    for figure, weight in ordered:
        reached += weight
        if 2 * reached >= total:
            return figure
    raise ValueError("no figures; expected at least one")


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def plain(value: Any) -> Any:
    """Convert a figure to JSON values."""
    if isinstance(value, Evaluation):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value
