"""Reports the network side's facts as events, and computes values for the peer's record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from averaging.rounds.round_facts import CommitTaken, Fact, PeerRefused, RoundStarted
from dht.ground.bounds import Newest
from dht.ground.host import PeerId
from dht.records.peer_record import RoundTimes
from peer.checkpoint.checkpoint_facts import Totals
from peer.events import peer_events as events
from peer.events.anchor_events import Fetched
from peer.events.peer_events import Event
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.shared_memory import TrainerCounters
from peer.view.run_clock import STALLED_SECONDS, has_stalled

REFUSAL_SECONDS = 10.0
"""Pause between two events about one remote, so that a flood takes only 20 bytes of disk per second."""
MAX_REFUSED_PEERS = 1000
PROGRESS_SECONDS = 1.0
"""Pause between two events about a download: as often as people check."""


@dataclass(eq=False)
class Reporter:
    """Events of one node."""

    me: PeerId
    mailbox: Mailbox
    wall_clock: Callable[[], float]
    clock: Callable[[], float]
    emit: Callable[[Event], None]

    def __post_init__(self) -> None:
        self.round_clock = RoundClock(self.wall_clock())
        self._joined_at = self.clock()
        self._pulse = TrainingPulse(self._joined_at)
        self._earlier_inner_steps = 0
        self._earlier_tokens = self.mailbox.trainer.tokens
        self._earlier_rounds = self.mailbox.network.rounds_contributed
        self._spent_before = 0.0
        self._evaluated = -1
        self._refused = Newest[PeerId, tuple[float, frozenset[str]]](MAX_REFUSED_PEERS)
        """The time of each remote's last report, and the kinds reported so far."""
        self.catch_up = CatchUpMeter(self.clock, self.report)

    def report(self, fact: Fact) -> None:
        """Report a fact as an event with the current time."""
        self.emit(Event(self.wall_clock(), self.me, fact))

    def joined(self, run_id: str, device: str, versions: tuple[int, ...], budget_tokens: int | None) -> None:
        """Report that training begins. Time is counted from here, without the trainer's wait for its first anchors."""
        trainer = self.mailbox.trainer
        self._joined_at = self.clock()
        self._spent_before = trainer.wait_seconds + trainer.exchange_seconds
        self.report(
            events.JoinedRun(
                run_id,
                device,
                sum(self.mailbox.sizes),
                versions,
                budget_tokens,
                self._earlier_inner_steps,
                self._earlier_tokens,
                self._earlier_rounds,
            )
        )

    def restored(self, before: Totals) -> None:
        """Set the totals of earlier sessions from this peer's checkpoint; its log may contain later work."""
        self._earlier_inner_steps = before.inner_steps
        self._earlier_tokens = max(self._earlier_tokens, before.tokens)
        self._earlier_rounds = max(self._earlier_rounds, before.rounds_contributed)
        network = self.mailbox.network
        network.rounds_contributed = max(network.rounds_contributed, before.rounds_contributed)

    def caught_up(self, donors: Mapping[int, tuple[PeerId, ...]], num_bytes: int, seconds: float) -> None:
        """Report the end of a download; `donors` of each fragment, the largest senders first."""
        places = [(place, donor) for names in donors.values() for place, donor in enumerate(names)]
        named = tuple(dict.fromkeys(donor for _, donor in sorted(places, key=lambda item: item[0])))
        self.report(Fetched(num_bytes, seconds, named, fragments=tuple(sorted(donors))))

    def refused(self, refusal: PeerRefused) -> None:
        """Report that a remote was refused, at most once in `REFUSAL_SECONDS`, because the remote could fill the log.

        A first refusal of its kind, and an exclusion, are rare and reported at once.
        """
        now, remote = self.clock(), refusal.peer_id
        kinds = tuple(kind for kind, _ in refusal.counts)
        reported_at, known = self._refused.get(remote, (-math.inf, frozenset[str]()))
        if not refusal.is_left_out and known.issuperset(kinds) and now - reported_at < REFUSAL_SECONDS:
            return
        self._refused[remote] = now, known.union(kinds)
        until = self.wall_clock() + refusal.left_out_seconds if refusal.is_left_out else None
        self.report(events.RefusedPeer(remote=remote, reason=refusal.reason, kinds=kinds, left_out_until=until))

    def tokens_per_second(self) -> float:
        """Return the announced speed of this peer; 0 if its trainer has stopped."""
        return self._pulse.tokens_per_second(self.mailbox.trainer, self.clock())

    def left(self, reason: str) -> None:
        """Report that this peer has left."""
        trainer = self.mailbox.trainer
        rounds_contributed = self.mailbox.network.rounds_contributed
        self.report(events.LeftRun(reason, trainer.inner_steps, trainer.tokens, rounds_contributed))

    def progress(self, sent_abroad_bytes: int = 0) -> None:
        """Report the trainer's counters, and its validation loss if it is new."""
        trainer = self.mailbox.trainer
        elapsed = max(self.clock() - self._joined_at, 1e-9)
        spent = trainer.wait_seconds + trainer.exchange_seconds - self._spent_before
        loss = trainer.train_loss if math.isfinite(trainer.train_loss) else None
        self.report(
            events.TrainingProgressed(
                inner_steps=trainer.inner_steps,
                tokens=trainer.tokens,
                train_loss=loss,
                tokens_per_second=self.tokens_per_second(),
                wait_fraction=min(1.0, max(0.0, spent) / elapsed),
                sent_abroad_bytes=sent_abroad_bytes,
                run_tokens=self.mailbox.network.run_tokens,
                learning_rate=trainer.learning_rate if math.isfinite(trainer.learning_rate) else None,
                data_waits=trainer.data_waits,
                data_wait_seconds=trainer.data_wait_seconds,
                data_rereads=trainer.data_rereads,
            )
        )
        evaluation = trainer.evaluation
        if evaluation is not None and evaluation.version > self._evaluated:
            self._evaluated = evaluation.version
            self.report(events.Evaluated(evaluation.loss, evaluation.version))

    def in_round(self, fact: Fact) -> None:
        """Report a fact of a round."""
        if isinstance(fact, RoundStarted):
            self.round_clock.began(fact, self.wall_clock())
        self.report(fact)

    def commit_taken(self, taken: CommitTaken) -> None:
        """Count a commit that was applied here."""
        self.round_clock.applied(taken, self.wall_clock())
        self.mailbox.network.rounds_contributed += taken.own_included


@dataclass
class CatchUpMeter:
    """Reports the progress of a download, about one event per second.

    Attributes:
        clock: returns seconds.
        report: receives each event.
    """

    clock: Callable[[], float]
    report: Callable[[Fact], None]
    _began_at: float = 0.0
    _reported_at: float = 0.0

    def arrived(self, done_bytes: int, total_bytes: int) -> None:
        """Report the number of received bytes; 0 starts again."""
        now = self.clock()
        if done_bytes == 0:
            self._began_at = self._reported_at = now
        is_over = done_bytes >= total_bytes
        if done_bytes == 0 or (now - self._reported_at < PROGRESS_SECONDS and not is_over):
            return
        self._reported_at = now
        self.report(Fetched(done_bytes, now - self._began_at, total_bytes=total_bytes))


class TrainingPulse:
    """Measures the trainer's speed until its steps stand still; times are of one monotonic clock.

    A trainer that froze, or whose device hangs, leaves its last speed in the mailbox.
    """

    def __init__(self, now: float) -> None:
        self._num_steps = 0
        self._moved_at = self._looked_at = now

    def tokens_per_second(self, trainer: TrainerCounters, now: float) -> float:
        """Return the speed of the typical step; 0 once no step has ended for too long."""
        speed, num_steps = trainer.tokens_per_second, trainer.inner_steps
        # A long pause between two calls means that this process slept, and the trainer with it.
        if num_steps != self._num_steps or now - self._looked_at > STALLED_SECONDS:
            self._num_steps, self._moved_at = num_steps, now
        self._looked_at = now
        usual_seconds = trainer.tokens / num_steps / speed if num_steps and speed else 0.0
        return 0.0 if has_stalled(now - self._moved_at, usual_seconds) else speed


class RoundClock:
    """Measures the phases of this peer's rounds, for its record; times are unix seconds.

    `newest` is the last round that was planned with this peer and then applied here.
    """

    def __init__(self, started_at: float) -> None:
        self.newest: RoundTimes | None = None
        self._ended_at = started_at
        self._began: dict[int, tuple[int, float]] = {}

    def began(self, fact: RoundStarted, at: float) -> None:
        """Record that a plan arrived. A later attempt at the same round belongs to the same plan."""
        if self._began.get(fact.fragment, (-1, 0.0))[0] != fact.version:
            self._began[fact.fragment] = (fact.version, at)

    def applied(self, taken: CommitTaken, at: float) -> None:
        """Record that a commit was applied; ignore a round in which this peer took no part."""
        version, began_at = self._began.pop(taken.commit.fragment, (-1, 0.0))
        if version != taken.commit.version:
            return
        # A clock that was set back makes no value negative. Rounds of several fragments may overlap.
        compute_seconds = max(0.0, began_at - self._ended_at)
        self.newest = RoundTimes(
            fragment=taken.commit.fragment,
            version=version,
            started_at=max(0.0, began_at - compute_seconds),
            compute_seconds=compute_seconds,
            send_seconds=max(0.0, at - began_at - taken.receive_seconds - taken.apply_seconds),
            receive_seconds=taken.receive_seconds,
            apply_seconds=taken.apply_seconds,
        )
        self._ended_at = max(self._ended_at, at)
