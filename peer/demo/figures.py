"""The work of a demo's peers: the `OwnView` of each, computed from its event log, and checks of a working swarm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from averaging.rounds.round_facts import AppliedCommit, RoundCommitted
from dht.ground.quantities import loss_text
from dht.records.evaluation import Evaluation
from peer.events.log_tail import newer_events
from peer.events.peer_events import Event
from peer.view.own_view import OwnView, own_view_after

CLEARLY_BELOW = 0.95
"""Share of the first validation loss that the last must fall below: an untrained model varies by about 1 %."""


@dataclass
class PeerLog:
    """The events of one peer, read while its process writes them."""

    name: str
    path: Path
    own: OwnView = field(default_factory=OwnView)
    digests: dict[tuple[int, int], str] = field(default_factory=dict)
    """Digests of its anchors, by fragment and version."""
    bytes_up: int = 0
    bytes_down: int = 0
    """Bytes of sent contributions and received results; `values_*` are the numbers of parameters in them."""
    values_up: int = 0
    values_down: int = 0
    position: int = 0

    def read_on(self) -> OwnView:
        """Process events written since the last call; a missing log or an incomplete last line is not an error."""
        before = -1
        while before != self.position:  # a long log is read in parts
            before = self.position
            events, self.position = newer_events(self.path, before)
            for event in events:
                self._take(event)
        return self.own

    def _take(self, event: Event) -> None:
        self.own = own_view_after(self.own, event)
        match event.fact:
            case RoundCommitted() as fact:
                self.bytes_up += fact.bytes_up
                self.bytes_down += fact.bytes_down
                self.values_up += fact.contribution_values_sent
                self.values_down += fact.result_values_received
            case AppliedCommit() as fact:
                self.digests[fact.fragment, fact.version] = fact.digest


def num_rounds_of(views: Sequence[OwnView]) -> int:
    """Return the model's number of rounds, counted as on the page: the sum of each fragment's newest version."""
    return sum(map(max, zip(*(view.versions for view in views if view.versions), strict=True)))


def newest_evaluation(views: Sequence[OwnView]) -> Evaluation | None:
    """Return the evaluation of the newest model; None if no peer has measured one."""
    known = [view.evaluation for view in views if view.evaluation is not None]
    return max(known, key=lambda evaluation: (evaluation.version, evaluation.loss), default=None)


def first_evaluation(views: Sequence[OwnView]) -> Evaluation | None:
    """Return the evaluation of the oldest model that a peer measured."""
    known = [view.first_evaluation for view in views if view.first_evaluation is not None]
    return min(known, key=lambda evaluation: evaluation.version, default=None)


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcome of a demo; `late` is the log of the late peer, `live` are the logs of the peers that ran until the
    end.
    """

    logs: tuple[PeerLog, ...]
    live: tuple[PeerLog, ...]
    late: PeerLog

    def facts(self) -> dict[str, Any]:
        """Return the summary as plain values, for --json."""
        views = [log.own for log in self.logs]
        first, last = first_evaluation(views), newest_evaluation(views)
        return {
            "schema": 1,
            "peers": len(views),
            "inner_steps": {log.name: log.own.inner_steps for log in self.logs},
            "tokens": sum(view.tokens for view in views),
            "num_rounds": num_rounds_of(views),
            "loss_first": None if first is None else first.loss,
            "loss_last": None if last is None else last.loss,
            "bits_per_parameter_up": _bits((log.bytes_up, log.values_up) for log in self.logs),
            "bits_per_parameter_down": _bits((log.bytes_down, log.values_down) for log in self.logs),
            "trainer_wait_fraction": max(view.wait_fraction for view in views),
            "anchors_equal": self.anchors_equal,
            "late_joiner_contributed": self.late.own.confirmed_rounds > 0,
        }

    @property
    def anchors_equal(self) -> bool:
        """Whether all live peers have the same digest at each version, and share a version of each fragment."""
        digests: dict[tuple[int, int], list[str]] = {}
        for log in self.live:
            for key, digest in log.digests.items():
                digests.setdefault(key, []).append(digest)
        met = {fragment for (fragment, _), held in digests.items() if len(held) == len(self.live) > 1}
        is_one = all(len(set(held)) == 1 for held in digests.values())
        return is_one and bool(met) and met == {fragment for fragment, _ in digests}

    def problems(self) -> list[str]:
        """Return the differences from a working swarm; empty if there are none."""
        facts, problems = self.facts(), []
        first, last = facts["loss_first"], facts["loss_last"]
        if not facts["num_rounds"]:
            problems.append("no round was committed")
        if first is None or last is None or last >= CLEARLY_BELOW * first:
            problems.append(f"the validation loss went from {loss_text(first)} to {loss_text(last)}")
        if not facts["anchors_equal"]:
            problems.append("the logs do not show that all peers hold the same model")
        if not facts["late_joiner_contributed"]:
            problems.append("the late joiner contributed to no commit")
        return problems


def _bits(moved: Iterable[tuple[int, int]]) -> float:
    """Return the bits sent per parameter, from (bytes, values)."""
    num_bytes, num_values = map(sum, zip(*moved, strict=True))
    return 8 * num_bytes / max(1, num_values)
