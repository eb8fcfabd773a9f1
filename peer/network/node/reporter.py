"""Turns what happens on the network side into events, and counts what the peer's record says about itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from averaging.rounds import facts as reports
from averaging.wire.cell_messages import CellsCommit
from dht.host import PeerId
from dht.records.signed_records import PeerRecord
from peer.events import peer_events as events
from peer.events import round_events
from peer.events.log import Event, RunEnded
from peer.mailbox.mailbox import Mailbox
from peer.network.anchors.fetcher import FetchProgress
from peer.network.node.round_clock import RoundClock

REFUSAL_SECONDS = 10.0
"""Between two events about one remote: its owner learns of a fault, and a flood costs 20 bytes per second of disk."""
MAX_REFUSED_PEERS = 1000
PROGRESS_SECONDS = 1.0
"""Between two events about a download: as often as people look."""


class Reporter:
    """Events of one node."""

    def __init__(
        self,
        me: PeerId,
        mailbox: Mailbox,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        emit: Callable[[Event], None],
    ) -> None:
        self.last_send_step: dict[int, int] = {}
        self.round_clock = RoundClock(wall_clock())
        self._me = me
        self._mailbox = mailbox
        self._wall_clock = wall_clock
        self._clock = clock
        self._emit = emit
        self._joined_at = clock()
        self._spent_before = 0.0
        self._evaluated = 0
        self._refused_at: dict[PeerId, float] = {}
        self._said_kinds: dict[PeerId, set[str]] = {}
        self._unsaid: dict[PeerId, reports.PeerRefused] = {}
        self._fetch_began_at = self._fetch_told_at = 0.0

    @property
    def rounds_contributed(self) -> int:
        """Commits with work of this peer, earlier sessions and network processes included."""
        return self._mailbox.network.rounds_contributed

    def joined(self, run_id: str, device: str, versions: tuple[int, ...]) -> None:
        """Training begins: time is counted from here, and what the trainer waited for its first anchors is not."""
        trainer = self._mailbox.trainer
        self._joined_at = self._clock()
        self._spent_before = trainer.wait_seconds + trainer.exchange_seconds
        num_parameters = sum(self._mailbox.sizes)
        self._emit(
            events.JoinedRun(
                at=self._wall_clock(),
                peer_id=self._me,
                run_id=run_id,
                device=device,
                num_parameters=num_parameters,
                versions=versions,
            )
        )

    def waiting(self, reason: str, seconds: float) -> None:
        self._emit(events.WaitingForPeers(at=self._wall_clock(), peer_id=self._me, reason=reason, seconds=seconds))

    def peer_joined(self, record: PeerRecord) -> None:
        self._emit(events.PeerJoined(at=self._wall_clock(), peer_id=self._me, remote=record.peer_id))

    def peer_left(self, peer_id: PeerId, reason: str) -> None:
        self._emit(events.PeerLeft(at=self._wall_clock(), peer_id=self._me, remote=peer_id, reason=reason))

    def refused(self, report: reports.PeerRefused) -> None:
        """A remote was turned away; said at most once in `REFUSAL_SECONDS`, or it could fill the log.

        The last refusal is said in any case, later, so that the counts come out right. What a remote did for the first
        time, and that it is left out from now on, is rare and said at once.
        """
        now, remote = self._clock(), report.peer_id
        kinds = {kind for kind, _ in report.counts}
        is_news = report.is_left_out or not kinds <= self._said_kinds.get(remote, set())
        if not is_news and now - self._refused_at.get(remote, -math.inf) < REFUSAL_SECONDS:
            self._unsaid[remote] = report
            return
        if len(self._refused_at) >= MAX_REFUSED_PEERS:
            self._refused_at.clear()
            self._unsaid.clear()
            self._said_kinds.clear()
        self._refused_at[remote] = now
        self._said_kinds[remote] = kinds | self._said_kinds.get(remote, set())
        self._unsaid.pop(remote, None)
        self._say_refused(report)

    def _say_refused(self, report: reports.PeerRefused) -> None:
        at = self._wall_clock()
        self._emit(
            events.RefusedPeer(
                at=at,
                peer_id=self._me,
                remote=report.peer_id,
                reason=report.reason,
                kinds=tuple(kind for kind, _ in report.counts),
                num_times=tuple(count for _, count in report.counts),
                left_out_until=at + report.left_out_seconds if report.is_left_out else None,
            )
        )

    def _say_what_was_held_back(self) -> None:
        now = self._clock()
        for remote, report in list(self._unsaid.items()):
            if now - self._refused_at.get(remote, -math.inf) >= REFUSAL_SECONDS:
                self.refused(report)

    def run_ended(self, version: int) -> None:
        """The owner ended the run at this version."""
        self._emit(RunEnded(at=self._wall_clock(), peer_id=self._me, version=version))

    def catching_up(self, progress: FetchProgress) -> None:
        """Something of what is fetched has arrived; said about once a second."""
        now = self._clock()
        if progress.done_bytes == 0:
            self._fetch_began_at = self._fetch_told_at = now
        is_over = progress.done_bytes >= progress.total_bytes
        if progress.done_bytes == 0 or (now - self._fetch_told_at < PROGRESS_SECONDS and not is_over):
            return
        self._fetch_told_at = now
        rate = progress.done_bytes / max(now - self._fetch_began_at, 1e-3)
        self._emit(
            events.CatchUpProgressed(
                at=self._wall_clock(),
                peer_id=self._me,
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                bits_per_second=8 * rate,
                seconds_left=(progress.total_bytes - progress.done_bytes) / rate,
            )
        )

    def caught_up(self, donors: Mapping[int, tuple[PeerId, ...]], num_bytes: int, seconds: float) -> None:
        """All is there; `donors` of each fragment, those who sent most first."""
        places = [(place, donor) for names in donors.values() for place, donor in enumerate(names)]
        named = tuple(dict.fromkeys(donor for _, donor in sorted(places, key=lambda item: item[0])))
        self._emit(
            events.CaughtUp(
                at=self._wall_clock(),
                peer_id=self._me,
                fragments=tuple(sorted(donors)),
                donor=named[0],
                num_bytes=num_bytes,
                seconds=seconds,
                donors=named,
            )
        )

    def work_given_up(self, fragment: int, version: int, staleness: int, num_tokens: int) -> None:
        """Saved work was not taken up again: the swarm may have it."""
        self._emit(
            round_events.WorkDropped(
                at=self._wall_clock(),
                peer_id=self._me,
                fragment=fragment,
                version=version,
                staleness=staleness,
                tokens=num_tokens,
            )
        )

    def anchor_differed(self, fragment: int, version: int, num_others: int) -> None:
        """More weight stands behind another lineage of a fragment than behind ours."""
        self._emit(
            events.AnchorDiffered(
                at=self._wall_clock(), peer_id=self._me, fragment=fragment, version=version, num_others=num_others
            )
        )

    def repaired(self, fragment: int, version: int, reason: str) -> None:
        self._emit(
            events.AnchorRepaired(
                at=self._wall_clock(), peer_id=self._me, fragment=fragment, version=version, reason=reason
            )
        )

    def left(self, reason: str) -> None:
        trainer = self._mailbox.trainer
        self._emit(
            events.LeftRun(
                at=self._wall_clock(),
                peer_id=self._me,
                reason=reason,
                inner_steps=trainer.inner_steps,
                tokens=trainer.tokens,
                rounds_contributed=self.rounds_contributed,
            )
        )

    def progress(self, sent_abroad_bytes: int = 0) -> None:
        """The trainer's counters, and its held-out loss when it is new; and refusals that were held back."""
        self._say_what_was_held_back()
        trainer = self._mailbox.trainer
        elapsed = max(self._clock() - self._joined_at, 1e-9)
        spent = trainer.wait_seconds + trainer.exchange_seconds - self._spent_before
        loss = trainer.train_loss if math.isfinite(trainer.train_loss) else None
        self._emit(
            events.TrainingProgressed(
                at=self._wall_clock(),
                peer_id=self._me,
                inner_steps=trainer.inner_steps,
                tokens=trainer.tokens,
                train_loss=loss,
                tokens_per_second=trainer.tokens_per_second,
                wait_fraction=min(1.0, max(0.0, spent) / elapsed),
                sent_abroad_bytes=sent_abroad_bytes,
            )
        )
        if trainer.held_out_version > self._evaluated and math.isfinite(trainer.held_out_loss):
            self._evaluated = trainer.held_out_version
            self._emit(
                events.Evaluated(
                    at=self._wall_clock(),
                    peer_id=self._me,
                    held_out_loss=trainer.held_out_loss,
                    version_sum=self._evaluated,
                )
            )

    def round_report(self, report: reports.ExchangeReport) -> None:
        """One fact about a round."""
        now, me = self._wall_clock(), self._me
        if isinstance(report, reports.RoundBegan):
            self.round_clock.began(report, now)
            self._emit(
                round_events.RoundStarted(
                    at=now,
                    peer_id=me,
                    fragment=report.fragment,
                    version=report.version,
                    leader=report.leader,
                    num_contributors=report.num_members,
                )
            )
        elif isinstance(report, reports.ContributionSent):
            self.last_send_step[report.fragment] = self._mailbox.trainer.inner_steps
            self._emit(
                round_events.SentContribution(
                    at=now,
                    peer_id=me,
                    fragment=report.fragment,
                    version=report.version,
                    num_bytes=report.num_bytes,
                    tokens=report.tokens,
                    steps=report.steps,
                    staleness=report.staleness,
                )
            )
        elif isinstance(report, reports.RoundClosed):
            self._round_closed(report)
        elif isinstance(report, reports.CommitApplied):
            self.round_clock.applied(report, now)
        elif isinstance(report, reports.AnchorMoved):
            self._emit(
                round_events.AppliedCommit(
                    at=now, peer_id=me, fragment=report.fragment, version=report.version, digest=report.digest.hex()
                )
            )
        elif isinstance(report, reports.RoundAborted):
            self._emit(
                round_events.RoundAbandoned(
                    at=now,
                    peer_id=me,
                    fragment=report.fragment,
                    version=report.version,
                    attempt=report.attempt,
                    reason=report.reason,
                )
            )
        elif isinstance(report, reports.LeaderChanged):
            self._emit(
                round_events.LeaderReplaced(
                    at=now,
                    peer_id=me,
                    fragment=report.fragment,
                    version=report.version,
                    attempt=report.attempt,
                    old=report.old,
                    new=report.new,
                    reason=report.reason,
                )
            )
        elif isinstance(report, reports.DeadlineExpired):
            self._emit(
                round_events.DeadlineExpired(
                    at=now,
                    peer_id=me,
                    fragment=report.fragment,
                    version=report.version,
                    awaited=report.awaited,
                    waited_for=report.waited_for,
                    seconds=report.seconds,
                    num_arrivals=report.num_arrivals,
                )
            )
        elif isinstance(report, reports.QuorumMissing):
            self._emit(
                round_events.QuorumAwaited(
                    at=now,
                    peer_id=me,
                    fragment=report.fragment,
                    version=report.version,
                    num_offers=report.num_offers,
                    quorum=report.quorum,
                    missing=report.missing,
                    seconds=report.seconds,
                    num_arrivals=report.num_arrivals,
                )
            )
        elif isinstance(report, reports.WorkForgotten):
            self._emit(
                round_events.WorkLost(
                    at=now,
                    peer_id=me,
                    fragment=report.fragment,
                    version=report.version,
                    tokens=report.tokens,
                    is_doubled=report.is_doubled,
                    reason=report.reason,
                )
            )
        elif isinstance(report, reports.WorkReturned):
            self._emit(
                round_events.WorkReturned(
                    at=now,
                    peer_id=me,
                    fragment=report.fragment,
                    version=report.version,
                    reason=report.reason,
                    num_values=report.num_values,
                )
            )
        elif isinstance(report, reports.WorkExpired):
            self._emit(
                round_events.WorkDropped(
                    at=now,
                    peer_id=me,
                    fragment=report.fragment,
                    version=report.version,
                    staleness=report.staleness,
                    tokens=report.tokens,
                )
            )

    def moved(self, report: reports.ExchangeReport) -> bool:
        """Whether the report says that an anchor has a new version."""
        return isinstance(report, reports.AnchorMoved)

    def wanted_repair(self, report: reports.ExchangeReport) -> reports.RepairNeeded | None:
        """The report, when it asks for a repair."""
        return report if isinstance(report, reports.RepairNeeded) else None

    def _round_closed(self, report: reports.RoundClosed) -> None:
        commit = report.commit
        included = sorted({index for shard in commit.shards for index in shard.included})
        self._mailbox.network.rounds_contributed += report.own_included
        self._emit(
            round_events.RoundCommitted(
                at=self._wall_clock(),
                peer_id=self._me,
                fragment=commit.fragment,
                version=commit.version,
                contributors=tuple(commit.roster[index].peer_id for index in included),
                outer_lr=report.outer_lr,
                tokens=commit.tokens,
                num_void_shards=sum(not result.digest for result in commit.results),
                num_cells=len(commit.upper.cells) if isinstance(commit, CellsCommit) else 0,
                seconds=report.seconds,
                bytes_up=report.up_bytes,
                bytes_down=report.down_bytes,
                contribution_values_sent=report.up_values,
                result_values_received=report.down_values,
            )
        )
