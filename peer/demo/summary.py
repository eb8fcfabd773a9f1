"""What a demo's event logs say: a pure fold of events into the summary."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from averaging.rounds.facts import AppliedCommit, RoundAbandoned, RoundCommitted
from dht.host import PeerId
from dht.quantities import count_text
from peer.events.line_log import earlier_log
from peer.events.log import read_events
from peer.events.peer_events import CaughtUp, Evaluated, Event, LeftRun, TrainingProgressed

CLEARLY_BELOW = 0.95
"""Held-out loss must fall below this share of the first one: a model that learned nothing wobbles by about 1 %."""


@dataclass
class PeerLog:
    """Folded events of one peer."""

    name: str
    peer_id: PeerId
    inner_steps: int = 0
    tokens: int = 0
    wait_fraction: float = 0.0
    held_out_loss: float | None = None
    has_caught_up: bool = False
    has_left: bool = False
    digests: dict[tuple[int, int], str] = field(default_factory=dict)
    rounds: dict[tuple[int, int], RoundCommitted] = field(default_factory=dict)
    abandoned: set[tuple[int, int, int]] = field(default_factory=set)

    def take(self, event: Event) -> None:
        """Fold one event."""
        if isinstance(event.fact, TrainingProgressed):
            self.inner_steps, self.tokens = event.fact.inner_steps, event.fact.tokens
            self.wait_fraction = event.fact.wait_fraction
        elif isinstance(event.fact, RoundCommitted):
            self.rounds[(event.fact.fragment, event.fact.version)] = event.fact
        elif isinstance(event.fact, AppliedCommit):
            self.digests[(event.fact.fragment, event.fact.version)] = event.fact.digest
        elif isinstance(event.fact, RoundAbandoned):
            self.abandoned.add((event.fact.fragment, event.fact.version, event.fact.attempt))
        elif isinstance(event.fact, Evaluated):
            self.held_out_loss = event.fact.held_out_loss
        elif isinstance(event.fact, CaughtUp):
            self.has_caught_up = True
        elif isinstance(event.fact, LeftRun):
            self.has_left = True
            self.inner_steps, self.tokens = event.fact.inner_steps, event.fact.tokens


@dataclass(frozen=True)
class PeerLogs:
    """Logs of all peers of a demo."""

    logs: tuple[PeerLog, ...]

    @classmethod
    def read(cls, peers: Sequence[tuple[str, PeerId, Path]]) -> PeerLogs:
        """Read the event logs in the peers' folders; a missing one or a half-written last line is no fault."""
        logs = []
        for name, peer_id, folder in peers:
            log = PeerLog(name, peer_id)
            path = folder / "events.jsonl"
            for part in (earlier_log(path), path):
                with contextlib.suppress(FileNotFoundError):
                    for event in read_events(part):
                        if not isinstance(event, ValueError):
                            log.take(event)
            logs.append(log)
        return cls(tuple(logs))

    def committed(self) -> set[tuple[int, int]]:
        """(fragment, version) of every commit that some peer applied."""
        return {key for log in self.logs for key in log.rounds}

    def progress_line(self) -> str:
        """One line for people while the demo runs."""
        losses = [log.held_out_loss for log in self.logs if log.held_out_loss is not None]
        loss = f"held-out loss {min(losses):.3f}" if losses else "held-out loss not measured yet"
        tokens = sum(log.tokens for log in self.logs)
        steps = " ".join(str(log.inner_steps) for log in self.logs)
        return f"steps {steps}  {count_text(tokens)} tokens  {len(self.committed())} commits  {loss}"


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One peer in the table."""

    name: str
    peer_id: PeerId
    inner_steps: int
    tokens: int
    rounds: int
    fate: str


@dataclass(frozen=True)
class Summary:
    """The outcome of a demo."""

    rows: tuple[SummaryRow, ...]
    rounds_committed: int
    rounds_failed: int
    loss_first: float
    loss_last: float | None
    bits_per_parameter_up: float
    bits_per_parameter_down: float
    trainer_wait_fraction: float
    anchors_equal: bool
    versions_compared: int
    late_joiner_caught_up: bool
    late_joiner_contributed: bool
    mean_contributors: float
    num_parameters: int
    seconds: float

    def facts(self) -> dict[str, Any]:
        """The summary as plain values, for --json."""
        return {
            "schema": 1,
            "peers": len(self.rows),
            "inner_steps": {row.name: row.inner_steps for row in self.rows},
            "tokens": sum(row.tokens for row in self.rows),
            "num_parameters": self.num_parameters,
            "rounds_committed": self.rounds_committed,
            "rounds_failed": self.rounds_failed,
            "mean_contributors": self.mean_contributors,
            "loss_first": self.loss_first,
            "loss_last": self.loss_last,
            "bits_per_parameter_up": self.bits_per_parameter_up,
            "bits_per_parameter_down": self.bits_per_parameter_down,
            "trainer_wait_fraction": self.trainer_wait_fraction,
            "anchors_equal": self.anchors_equal,
            "versions_compared": self.versions_compared,
            "late_joiner_caught_up": self.late_joiner_caught_up,
            "seconds": self.seconds,
        }

    def problems(self) -> list[str]:
        """What a working swarm would not show; empty when all is well."""
        problems = []
        if not self.rounds_committed:
            problems.append("no round was committed")
        if self.loss_last is None:
            problems.append("the anchors could not be fetched to measure the held-out loss")
        elif not self.loss_last < CLEARLY_BELOW * self.loss_first:
            problems.append(f"the held-out loss went from {self.loss_first:.3f} to {self.loss_last:.3f}")
        if not self.anchors_equal:
            problems.append("peers hold different anchors at the same version")
        if not self.late_joiner_contributed:
            problems.append("the late joiner contributed to no commit")
        return problems


def summarise(
    logs: PeerLogs,
    live: Sequence[PeerId],
    late: Sequence[PeerId],
    loss_first: float,
    loss_last: float | None,
    num_parameters: int,
    seconds: float,
) -> Summary:
    """Fold the logs of a demo. `live` and `late`: peers that run at the end, and those that came late."""
    shared = [log for log in logs.logs if log.peer_id in live]
    own_rounds = [
        (log, event)
        for log in logs.logs
        for event in log.rounds.values()
        if log.peer_id in event.contributors and event.contribution_values_sent and event.result_values_received
    ]
    contributors = {key: event.contributors for log in logs.logs for key, event in log.rounds.items()}
    caught_up = [log for log in logs.logs if log.peer_id in late and log.has_caught_up]
    equal, num_compared = _anchors_equal(shared)
    late_rounds = [key for key, members in contributors.items() if any(peer_id in members for peer_id in late)]
    return Summary(
        rows=tuple(
            SummaryRow(
                log.name,
                log.peer_id,
                log.inner_steps,
                log.tokens,
                sum(log.peer_id in members for members in contributors.values()),
                ("came late" if log.peer_id in late else "") if log.peer_id in live else "killed half-way",
            )
            for log in logs.logs
        ),
        rounds_committed=len(contributors),
        rounds_failed=len({key for log in logs.logs for key in log.abandoned}),
        loss_first=loss_first,
        loss_last=loss_last,
        bits_per_parameter_up=_mean_bits([(event.bytes_up, event.contribution_values_sent) for _, event in own_rounds]),
        bits_per_parameter_down=_mean_bits(
            [(event.bytes_down, event.result_values_received) for _, event in own_rounds]
        ),
        trainer_wait_fraction=max((log.wait_fraction for log in logs.logs), default=0.0),
        anchors_equal=equal,
        versions_compared=num_compared,
        late_joiner_caught_up=bool(late) and len(caught_up) == len(late) and bool(late_rounds),
        late_joiner_contributed=bool(late_rounds),
        mean_contributors=(
            sum(len(members) for members in contributors.values()) / len(contributors) if contributors else 0.0
        ),
        num_parameters=num_parameters,
        seconds=seconds,
    )


def _anchors_equal(logs: Sequence[PeerLog]) -> tuple[bool, int]:
    """Whether live peers announce one digest per (fragment, version), and how many of these at least two hold.

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
    equal = all(len(digests) == 1 for key, digests in held.items() if holders[key] > 1)
    return equal and bool(compared) and all_fragments and len(logs) > 1, len(compared)


def _mean_bits(transfers: Sequence[tuple[int, int]]) -> float:
    """Mean over rounds of 8 * bytes / values that crossed the wire."""
    return sum(8 * num_bytes / values for num_bytes, values in transfers) / len(transfers) if transfers else 0.0
