"""What a demo's event logs say: a pure fold of events into the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from averaging.rounds.round_facts import AppliedCommit, AttemptEnded, RoundCommitted
from dht.ground.host import PeerId
from dht.ground.quantities import loss_text
from dht.records.evaluation import Evaluation
from peer.events.log_tail import newer_events
from peer.events.peer_events import Event
from peer.events.rotating_log import earlier_log
from peer.view.own_view import OwnView, own_view_after

CLEARLY_BELOW = 0.95
"""Validation loss must fall below this share of the first one: a model that learned nothing wobbles by about 1 %."""


@dataclass
class PeerLog:
    """Folded events of one peer."""

    name: str
    peer_id: PeerId
    own: OwnView = field(default_factory=OwnView)
    digests: dict[tuple[int, int], str] = field(default_factory=dict)
    rounds: dict[tuple[int, int], RoundCommitted] = field(default_factory=dict)
    abandoned: set[tuple[int, int, int]] = field(default_factory=set)

    def take(self, event: Event) -> None:
        """Fold one event."""
        self.own = own_view_after(self.own, event)
        if isinstance(event.fact, RoundCommitted):
            self.rounds[(event.fact.fragment, event.fact.version)] = event.fact
        elif isinstance(event.fact, AppliedCommit):
            self.digests[(event.fact.fragment, event.fact.version)] = event.fact.digest
        elif isinstance(event.fact, AttemptEnded) and event.fact.new_leader is None:
            self.abandoned.add((event.fact.fragment, event.fact.version, event.fact.attempt))


@dataclass
class LogFollower:
    """Reads on in the event log of a peer that runs; a missing log or a half-written last line is no fault."""

    log: PeerLog
    path: Path
    _position: int = 0

    def read_on(self) -> PeerLog:
        """Fold what was written since the last call."""
        before = -1
        while before != self._position:  # a long log is read in parts
            before = self._position
            events, self._position = newer_events(self.path, before)
            for event in events:
                self.log.take(event)
        return self.log


def read_logs(peers: Sequence[tuple[str, PeerId, Path]]) -> tuple[PeerLog, ...]:
    """The whole event logs in the peers' folders; a missing one or a half-written last line is no fault."""
    logs = []
    for name, peer_id, folder in peers:
        log = PeerLog(name, peer_id)
        path = folder / "events.jsonl"
        for part in (earlier_log(path), path):
            LogFollower(log, part).read_on()
        logs.append(log)
    return tuple(logs)


def rounds_of(logs: Sequence[PeerLog]) -> dict[tuple[int, int], tuple[PeerId, ...]]:
    """The contributors of every round that some peer saw closed, by (fragment, version)."""
    return {key: event.contributors for log in logs for key, event in log.rounds.items()}


def num_rounds_of(logs: Sequence[PeerLog]) -> int:
    """That the model has had, counted as the page does: the newest version of each fragment, added up.

    Two lone rounds of one version are one: the lighter one is given up. One that nobody saw closed counts too.
    """
    newest: dict[int, int] = {}
    for log in logs:
        for fragment, version in (*log.digests, *((fragment, version + 1) for fragment, version in log.rounds)):
            newest[fragment] = max(version, newest.get(fragment, 0))
    return sum(newest.values())


def newest_evaluation(logs: Sequence[PeerLog]) -> Evaluation | None:
    """Return the evaluation of the newest model; None: no peer has measured one."""
    known = [log.own.evaluation for log in logs if log.own.evaluation is not None]
    return max(known, key=lambda evaluation: (evaluation.version, evaluation.loss), default=None)


@dataclass(frozen=True, slots=True)
class DemoRow:
    """One peer in a table.

    Attributes:
        doing: or at the end, what became of it.
        rounds: in which its work went into an average with that of others.
        loss: of its training, in nats per token.
    """

    name: str
    peer_id: PeerId
    doing: str
    steps: int
    tokens: int
    rounds: int
    loss: float | None


def row_of(log: PeerLog, doing: str, rounds: Mapping[tuple[int, int], Sequence[PeerId]]) -> DemoRow:
    """The row of a peer; `rounds` are those of `rounds_of`."""
    num_rounds = sum(log.peer_id in members and len(members) > 1 for members in rounds.values())
    return DemoRow(log.name, log.peer_id, doing, log.own.inner_steps, log.own.tokens, num_rounds, log.own.train_loss)


_FIGURES = (
    *("num_parameters", "rounds_committed", "rounds_failed", "mean_contributors", "loss_first", "loss_last"),
    *("bits_per_parameter_up", "bits_per_parameter_down", "trainer_wait_fraction", "anchors_equal"),
    *("versions_compared", "late_joiner_caught_up", "seconds", "start_seconds", "training_seconds", "end_seconds"),
)
"""Of a `Summary`, for --json."""


@dataclass(frozen=True)
class Summary:
    """The outcome of a demo."""

    rows: tuple[DemoRow, ...]
    rounds_committed: int
    rounds_failed: int
    loss_first: float
    loss_last: float | None
    bits_per_parameter_up: float
    bits_per_parameter_down: float
    trainer_wait_fraction: float
    anchors_equal: bool
    anchors_differ: bool
    """Neither: no version of each fragment was at all peers, so nothing was shown."""
    versions_compared: int
    late_joiner_caught_up: bool
    late_joiner_contributed: bool
    mean_contributors: float
    num_parameters: int
    start_seconds: float
    training_seconds: float
    end_seconds: float
    """To end and to measure."""

    @property
    def seconds(self) -> float:
        """Of all of it."""
        return self.start_seconds + self.training_seconds + self.end_seconds

    def facts(self) -> dict[str, Any]:
        """The summary as plain values, for --json."""
        steps = {row.name: row.steps for row in self.rows}
        head = {"schema": 1, "peers": len(self.rows), "inner_steps": steps, "tokens": sum(r.tokens for r in self.rows)}
        return head | {name: getattr(self, name) for name in _FIGURES}

    def problems(self) -> list[str]:
        """What a working swarm would not show; empty when all is well."""
        problems = []
        if not self.rounds_committed:
            problems.append("no round was committed")
        if self.loss_last is None:
            problems.append("the anchors could not be fetched to measure the validation loss")
        elif not self.loss_last < CLEARLY_BELOW * self.loss_first:
            problems.append(
                f"the validation loss went from {loss_text(self.loss_first)} to {loss_text(self.loss_last)}"
            )
        if self.anchors_differ:
            problems.append("peers hold different anchors at the same version")
        elif not self.anchors_equal:
            problems.append("no version of the whole model was at all peers, so nothing shows that theirs are equal")
        if not self.late_joiner_contributed:
            problems.append("the late joiner contributed to no commit")
        return problems


def summarise(
    logs: Sequence[PeerLog],
    live: Sequence[PeerId],
    late: Sequence[PeerId],
    loss_first: float,
    loss_last: float | None,
    num_parameters: int,
    seconds: tuple[float, float, float],
) -> Summary:
    """Fold the logs of a demo. `live` and `late`: peers that run at the end, and those that came late.

    Args:
        seconds: to start, to train, and to end and measure.
    """
    shared = [log for log in logs if log.peer_id in live]
    own_rounds = [
        event
        for log in logs
        for event in log.rounds.values()
        if log.peer_id in event.contributors and event.contribution_values_sent and event.result_values_received
    ]
    contributors = rounds_of(logs)
    caught_up = [log for log in logs if log.peer_id in late and log.own.has_caught_up]
    equal, differ, num_compared = _compared_anchors(shared)
    late_rounds = [key for key, members in contributors.items() if any(peer_id in members for peer_id in late)]
    return Summary(
        rows=tuple(
            row_of(
                log,
                ("came late" if log.peer_id in late else "") if log.peer_id in live else "killed half-way",
                contributors,
            )
            for log in logs
        ),
        rounds_committed=num_rounds_of(logs),
        rounds_failed=len({key for log in logs for key in log.abandoned}),
        loss_first=loss_first,
        loss_last=loss_last,
        bits_per_parameter_up=_mean_bits([(event.bytes_up, event.contribution_values_sent) for event in own_rounds]),
        bits_per_parameter_down=_mean_bits([(event.bytes_down, event.result_values_received) for event in own_rounds]),
        trainer_wait_fraction=max((log.own.wait_fraction for log in logs), default=0.0),
        anchors_equal=equal,
        anchors_differ=differ,
        versions_compared=num_compared,
        late_joiner_caught_up=bool(late) and len(caught_up) == len(late) and bool(late_rounds),
        late_joiner_contributed=bool(late_rounds),
        mean_contributors=(
            sum(len(members) for members in contributors.values()) / len(contributors) if contributors else 0.0
        ),
        num_parameters=num_parameters,
        start_seconds=seconds[0],
        training_seconds=seconds[1],
        end_seconds=seconds[2],
    )


def _compared_anchors(logs: Sequence[PeerLog]) -> tuple[bool, bool, int]:
    """Whether live peers announce one digest per (fragment, version), or two, and how many of these all of them hold.

    Every fragment must be among them at a recent version, else nothing was shown.
    """
    held: dict[tuple[int, int], set[str]] = {}
    holders: dict[tuple[int, int], int] = {}
    for log in logs:
        for key, digest in log.digests.items():
            held.setdefault(key, set()).add(digest)
            holders[key] = holders.get(key, 0) + 1
    compared = [key for key, count in holders.items() if count == len(logs)]
    fragments = {fragment for fragment, _ in held}
    all_fragments = {fragment for fragment, _ in compared} == fragments
    differ = any(len(digests) > 1 for digests in held.values())
    return not differ and bool(compared) and all_fragments and len(logs) > 1, differ, len(compared)


def _mean_bits(transfers: Sequence[tuple[int, int]]) -> float:
    """Mean over rounds of 8 * bytes / values that crossed the wire."""
    return sum(8 * num_bytes / values for num_bytes, values in transfers) / len(transfers) if transfers else 0.0
