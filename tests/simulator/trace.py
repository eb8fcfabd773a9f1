"""What happened in a simulation, folded from its events: counts, durations, and the hash of the trace. Pure.

The hash covers who did what when: every event with its virtual time, its counts and its bytes, and every fault. It
leaves out what comes from the values of tensors (losses, digests, rates that follow from weights, the wording of
refusals). For two processors may round a sum of floats differently. See docs/developer/simulation.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence

from averaging.rounds.round_facts import AppliedCommit, AttemptEnded, RoundCommitted, RoundStarted, SentContribution
from dht.ground.host import PeerId
from peer.events.peer_events import Evaluated, Event, RefusedPeer, TrainingProgressed

FROM_TENSORS = {
    AppliedCommit: ("digest",),
    Evaluated: ("validation_loss",),
    RefusedPeer: ("reason",),
    RoundCommitted: ("outer_lr",),
    TrainingProgressed: ("train_loss",),
}
"""Fields of events that the hash leaves out."""
LONGEST_REASON = 90


class Trace:
    """Fold of all events, in order.

    Args:
        group_of: name of the group of each peer, by index.
        is_training: whether a peer takes part in rounds at the moment.
    """

    def __init__(self, group_of: Sequence[str], is_training: Callable[[int], bool] = lambda index: True) -> None:
        self.kinds: Counter[str] = Counter()
        self.staleness: Counter[int] = Counter()
        self.contributors: set[PeerId] = set()
        self.refusals: Counter[str] = Counter()
        self.round_seconds: list[float] = []
        """From a plan to its commit, at each member of each round."""
        self.wait_seconds: list[float] = []
        """From an offer to the commit, at each contributor of each round."""
        self._group_of = group_of
        self._is_training = is_training
        self._index_of: dict[PeerId, int] = {}
        self._rounds: dict[tuple[int, int, int | tuple[PeerId, ...]], tuple[set[int], set[int]]] = {}
        """Of each commit the members that were seen in it, and the peers that might have been."""
        self._abandoned: set[tuple[int, int, int]] = set()
        self._started: dict[tuple[int, int], tuple[int, float]] = {}
        self._chances: Counter[str] = Counter()
        self._part: Counter[str] = Counter()
        self._digest = hashlib.sha256()

    def meet(self, index: int, peer_id: PeerId) -> None:
        """Peer `index` of the simulation has this PeerId."""
        self._index_of[peer_id] = index

    def add(self, index: int, event: Event) -> None:
        """Peer `index` reported an event."""
        kind = type(event.fact)
        self.kinds[kind.__name__] += 1
        self.note(self._line(index, event))
        if isinstance(event.fact, SentContribution):
            self.staleness[event.fact.staleness] += 1
        elif isinstance(event.fact, RoundStarted):
            self._started[index, event.fact.fragment] = (event.fact.version, event.at)
        elif isinstance(event.fact, RoundCommitted):
            self._add_commit(index, event.at, event.fact)
        elif isinstance(event.fact, AttemptEnded) and event.fact.new_leader is None:
            self._abandoned.add((event.fact.fragment, event.fact.version, event.fact.attempt))
        elif isinstance(event.fact, RefusedPeer):
            self.refusals[_class_of(event.fact.reason)] += 1

    def note(self, line: str) -> None:
        """Something that is no event, e.g. a fault."""
        self._digest.update(line.encode() + b"\n")

    @property
    def hash(self) -> str:
        """SHA-256 of all lines so far, hexadecimal."""
        return self._digest.hexdigest()

    @property
    def rounds_committed(self) -> int:
        """Different commits that anybody applied."""
        return len(self._rounds)

    @property
    def rounds_abandoned(self) -> int:
        """Different attempts that anybody gave up."""
        return len(self._abandoned)

    def share_of_rounds(self, group: str) -> float:
        """Part of the committed rounds that the peers of a group were in, of those during which they trained."""
        return self._part[group] / self._chances[group] if self._chances[group] else 0.0

    def _add_commit(self, index: int, at: float, fact: RoundCommitted) -> None:
        version, began_at = self._started.get((index, fact.fragment), (-1, 0.0))
        if version == fact.version:
            self.round_seconds.append(at - began_at)
        if fact.has_own_work:
            self.wait_seconds.append(fact.seconds)
        key = (fact.fragment, fact.version, fact.contributors)
        if key not in self._rounds:
            training = {peer for peer in range(len(self._group_of)) if self._is_training(peer)}
            self._rounds[key] = set(), training
            self._chances.update(self._group_of[peer] for peer in training)
        seen, counted = self._rounds[key]
        # Further keys of a hostile host are no peers, and in no group.
        indices = {self._index_of[peer_id] for peer_id in fact.contributors if peer_id in self._index_of}
        for peer in indices - seen:
            seen.add(peer)
            self._part[self._group_of[peer]] += 1
            if peer not in counted:
                counted.add(peer)
                self._chances[self._group_of[peer]] += 1
        self.contributors.update(fact.contributors)

    def _line(self, index: int, event: Event) -> str:
        kind = type(event.fact)
        left_out = FROM_TENSORS.get(kind, ())
        names = [field.name for field in dataclasses.fields(kind) if field.name not in left_out]
        values = [getattr(event.fact, name) for name in names]
        return f"{index} {kind.__name__} {[event.at, *values]}"


def _class_of(reason: str) -> str:
    """The reason without its numbers and names, so that equal faults count together."""
    plain = re.sub(r"12D3KooW\w+", "a peer", reason)
    return re.sub(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?", "#", plain)[:LONGEST_REASON]
