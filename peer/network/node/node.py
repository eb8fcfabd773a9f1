"""The network side of one peer: composes membership, rounds and state transfer around a mailbox.

All concrete parts are injected (host, store, clocks, compute). So the same class runs in the network process of a
volunteer, in a seed, and in the simulator under virtual time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from averaging.exchange.exchange import Exchange
from averaging.exchange.exchange_ports import ExchangePorts
from averaging.lanes.links import LinkPorts, Links
from averaging.outer.change_buffers import Change
from averaging.outer.fragment_schedule import effective_sync_every, fastest_believed
from averaging.rounds.round_facts import AppliedCommit, CommitTaken, PeerRefused, RepairNeeded, Report, WorkLost
from averaging.signing.round_signatures import Notary, Scope
from averaging.transfer.server import StateServer
from averaging.transfer.snapshots import Snapshot
from averaging.trust.claim_guard import Guard, GuardPorts
from averaging.wire.messages import Message
from dht.ground.errors import Incompatible, LocalFault
from dht.ground.host import PeerId
from dht.ground.tasks import Background, end_tasks, is_done_before, set_within
from dht.identity.keys import verify
from dht.records.data_reading import reading_of
from dht.records.peer_record import PeerRecord
from dht.records.signature_cache import VerifiedRecords
from peer.checkpoint.checkpoint import CheckpointFolder
from peer.config.averaging_rules import codec_of, codecs_of, limits_of, rule_of
from peer.config.manifest import RunManifest
from peer.data_division.others_reading import view_of
from peer.events import peer_events as events
from peer.mailbox.mailbox import Mailbox
from peer.network.anchors.fetcher import Fetcher
from peer.network.membership.manifest_revisions import ManifestRevisions
from peer.network.membership.membership import Membership
from peer.network.node.anchor_repairs import AnchorRepairs
from peer.network.node.checkpoint_keeper import CheckpointKeeper
from peer.network.node.fragment_memory import build_fragments, persist
from peer.network.node.graceful_leave import GracefulLeave
from peer.network.node.node_inputs import NodeIdentity, NodePorts
from peer.network.node.reporter import Reporter
from peer.network.node.starting_state import StartingState
from peer.network.node.trainer_desk import TrainerDesk
from peer.view.run_clock import committed_tokens

FLUSH_SECONDS = 2.0
"""Time limit to send the data of the last round."""
PACE_SECONDS_PER_MEMBER = 0.005
"""Pause between two searches for the fastest member: among thousands it is slow, and the result hardly changes."""
FIRST_REPORT_SECONDS = 1.0
"""Time until the first report of the trainer's totals. Each pause is twice the last one, up to `announce_seconds` / 2:
sessions of a minute leave a curve too."""
REPLAY_SECONDS = 5.0
"""Time limit for a joiner to apply commits made during its download: small messages and result shards. A
joiner that takes longer begins with what it has, and the commits come meanwhile."""

SERVING_SHARE = 0.5
"""Share of the measured upload rate for newcomers: they have other donors, and a late round delays all members."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Node:
    """See the module docstring. `run` ends when the trainer has finished or `leave` was called.

    `checkpoints` is the folder of checkpoints; None keeps none (simulation).
    """

    who: NodeIdentity
    manifest: RunManifest
    ports: NodePorts
    mailbox: Mailbox
    checkpoints: CheckpointFolder | None = None

    def __post_init__(self) -> None:
        who, manifest, ports, mailbox = self.who, self.manifest, self.ports, self.mailbox
        checkpoints = self.checkpoints
        self._manifest_hash = manifest.hash
        self.started_at = ports.wall_clock()
        self.me = who.identity.peer_id
        self.codec = codec_of(manifest)
        self.rule = rule_of(manifest)
        self.limits = limits_of(mailbox.sizes, codecs_of(manifest, len(mailbox.sizes)))
        self.reporter = Reporter(self.me, mailbox, ports.wall_clock, ports.clock, ports.emit)
        self._background = Background()
        self._leaving = asyncio.Event()
        self._moved = asyncio.Event()
        self._leave_reason = "the trainer finished"
        self._state = "joining"
        self._rests = False
        self.is_dialable = True
        report = self.reporter.report
        self.revisions = ManifestRevisions(manifest, ports.owner_public_key, self.me, ports.handshake_policy, report)
        self.membership = self._build_membership()
        guard = self.guard = self._build_guard()
        notary = Notary(Scope(who.run_id, self._manifest_hash), who.identity.sign, verify, ports.verified)
        self.fragments = build_fragments(
            self.me,
            who.run_id,
            manifest.averaging,
            self.rule,
            self.codec,
            mailbox,
            notary,
            guard,
            site_of=self.membership.site_of,
            leading_type=ports.parts.leading_type,
            of_buffers=manifest.buffers_fragment,
        )
        self.desk = TrainerDesk(
            mailbox,
            self.fragments,
            manifest.averaging,
            lambda fragment, fill: self.exchange.sending.work_arrived(fragment, fill),
            ports.compute,
            ports.poll_seconds,
        )
        heard = LinkPorts(
            self._on_message,
            self._on_lost,
            self._on_refused,
            is_abroad=self.membership.is_abroad,
            on_met=self.membership.heard_from,
            has_worked=lambda remote: self.guard.presence.has_worked(remote),
        )
        self.links = Links(
            ports.host,
            ports.handshake_policy,
            self.limits,
            heard,
            ports.clock,
            ports.line,
            ports.max_queued_bytes,
        )
        self.exchange = self._build_exchange()
        presence, policy = self.guard.presence, ports.handshake_policy
        self.fetcher = Fetcher(
            ports.host, policy, self.limits, self.membership, notary, presence.has_worked, presence.has_been_there
        )
        self.keeper = None
        if checkpoints is not None:
            desk = self.desk if who.role == "trainer" else None
            self.keeper = CheckpointKeeper(checkpoints, self.fragments, mailbox, desk, ports.compute, report)
        self.repairs = AnchorRepairs(self.exchange, self.fetcher, self.membership, report, self._keep_lineage)
        StateServer(
            ports.host,
            ports.handshake_policy,
            self,
            len(mailbox.sizes),
            ports.compute,
            most_bits_per_second=lambda: bits_for_newcomers(ports.serve_bits_per_second, self.links),
            on_served=lambda remote, num_bytes: report(events.StateServed(remote, num_bytes)),
            files=ports.files,
        )
        self._leave = GracefulLeave(self.exchange, self.membership, self.desk, self.keeper, ports.clock)
        self._start = StartingState(
            mailbox,
            self.fragments,
            self.desk,
            self.membership,
            self.fetcher,
            self.keeper,
            self.reporter,
            trains=who.role == "trainer",
            compute=ports.compute,
            look_seconds=manifest.network.announce_seconds / 2,
        )

    def _build_membership(self) -> Membership:
        ports = self.ports
        return Membership(
            self.who.identity,
            ports.host,
            ports.store,
            ports.handshake_policy,
            self.own_record,
            self.who.run_id,
            self._manifest_hash,
            site=self.who.site,
            announce_seconds=self.manifest.network.announce_seconds,
            wall_clock=ports.wall_clock,
            randomness=ports.randomness,
            on_view=self._on_view,
            report=self.reporter.report,
            on_refused=self._on_refused,
            rules=self.manifest.rules,
            on_met=self._on_met,
            has_been_there=lambda peer_id: self.guard.presence.has_been_there(peer_id),
            counts=lambda peer_id: self.guard.presence.counts(peer_id),
            verified=VerifiedRecords() if ports.verified is None else ports.verified,
        )

    def _build_guard(self) -> Guard:
        membership = self.membership
        ports = GuardPorts(
            self.ports.clock,
            self._on_report,
            on_exclusion=lambda: self.exchange.exclude(),
            speed_of=self._speed_of,
            known_speeds=membership.speeds,
            news_seconds=membership.news_seconds,
        )
        return Guard(self.me, self.rule.staleness_limit, ports, is_strict=self.rule.is_strict)

    def _build_exchange(self) -> Exchange:
        given, membership = self.ports, self.membership
        ports = ExchangePorts(
            given.clock,
            given.compute,
            self._deliver,
            self._on_report,
            self.desk.lend,
            rule_at=self.revisions.rule_at,
            chance=given.randomness.random,
            signs_of=membership.signs_of,
            rate_of=membership.upload_bits_per_second,
            parts=given.parts,
        )
        first_sequence = int(1000 * self.started_at)
        return Exchange(self.me, self.rule, self.fragments, self.guard, self.links, ports, first_sequence)

    # --------------------------------------------------------------------------------------------------- the run

    async def run(self) -> None:
        """Join, catch up, take part until the trainer has finished, leave.

        Raises:
            LocalFault: another process uses this identity, or the state cannot be obtained.
        """
        tasks: list[asyncio.Task[Any]] = []
        loop = asyncio.get_running_loop()
        try:
            await self.membership.look()
            # The peer was asked to leave before its fragments had a starting state, so no member knows it.
            if not await is_done_before(loop.create_task(self._start.run()), self._leaving):
                self.reporter.left(self._leave_reason)
                return
            self._state = "training" if self.who.role == "trainer" else "serving"
            self.exchange.sending.take_part(self.who.role == "trainer")
            await self.membership.announce()
            self._check_identity()
            self._check_welcome(await self.membership.introduce())
            self._on_view()
            await self._replay_missed()
            await self._start.hand_over()
            self._set_clock()
            self.mailbox.network.ready = 1
            for fragment in self.fragments:
                await self.exchange.sending.offer(fragment)
            budget_tokens = self.manifest.training.schedule.tokens
            self.reporter.joined(self.who.run_id, self.who.device, self.versions(), budget_tokens)
            membership = self.membership
            of_members = (membership.run(), membership.meet_others(), membership.show_changes())
            for work in (*of_members, self._follow_trainer(), self._audit()):
                tasks.append(loop.create_task(work))
            if self.keeper is not None:
                tasks.append(loop.create_task(self.keeper.run()))
            tasks.append(loop.create_task(self._leaving.wait()))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            try:
                for task in done:
                    task.result()
            except Incompatible:
                await self._leave.keep_work_in_time()
                raise
            await self._settle()
        finally:
            await self._background.close()
            await end_tasks(tasks)
            await self.exchange.close()
            await self.links.close()
        self.reporter.progress(self.links.traffic.sent_abroad_bytes)
        self.reporter.left(self._leave_reason)

    async def _replay_missed(self) -> None:
        """Take the commits made while the anchors were fetched, so that no peer begins one version behind."""
        end = self.ports.clock() + REPLAY_SECONDS
        asked: set[tuple[int, int]] = set()
        while self.ports.clock() < end and not self._leaving.is_set():
            behind = self.repairs.behind()
            if not behind:
                return
            for index, peer_id in behind.items():
                if (index, self.fragments[index].machine.version) not in asked:
                    asked.add((index, self.fragments[index].machine.version))
                    self.exchange.applying.say_version(self.fragments[index], peer_id)
            await asyncio.sleep(REPLAY_SECONDS / 50)

    def note_paths(self, is_dialable: bool, can_reduce: bool) -> None:
        """Set whether other peers can dial this peer, and whether this peer can reduce shards."""
        self.is_dialable = is_dialable
        self.exchange.sending.is_reachable = can_reduce

    def leave(self, reason: str) -> None:
        """End the run in an orderly way."""
        self._leave_reason = reason
        self._leaving.set()

    def versions(self) -> tuple[int, ...]:
        """Return the anchor version of every fragment."""
        return tuple(fragment.machine.version for fragment in self.fragments)

    async def _settle(self) -> None:
        await self._leave.finish_rounds()
        await self.links.flush(FLUSH_SECONDS)
        self._state = "leaving"
        await self._leave.hand_over()
        self._state = "left"
        await self._leave.say_goodbye()
        await self._leave.keep_work()

    # ------------------------------------------------------------------------------------------------- the mailbox

    async def _follow_trainer(self) -> None:
        trainer, told_at = self.mailbox.trainer, self.ports.clock()
        pace_at = reported_at = told_at
        report_seconds = FIRST_REPORT_SECONDS
        while not self._leaving.is_set():
            self.guard.awake()
            await self.desk.take_work()
            self.revisions.reached(min(self.versions()))
            self._set_clock()
            await self.desk.retry()
            if bool(trainer.resting) != self._rests and self._state in ("training", "serving"):
                self._rests = not self._rests
                self._background.spawn(self._rest_or_go_on())
            if trainer.finished:
                await self.desk.take_work()
                if not self._leaving.is_set():  # the trainer may have given a reason meanwhile
                    self.leave("the trainer finished")
            if self.ports.clock() - reported_at >= report_seconds:
                reported_at = self.ports.clock()
                report_seconds = min(2 * report_seconds, self.manifest.network.announce_seconds / 2)
                self.reporter.progress(self.links.traffic.sent_abroad_bytes)
            if self.ports.clock() - told_at >= self.manifest.network.announce_seconds / 2:
                told_at = self.ports.clock()
                self._show_readings()
                if told_at >= pace_at:
                    pace_at = told_at + PACE_SECONDS_PER_MEMBER * self._set_pace()
            await self.ports.rest(self.ports.poll_seconds)

    async def _rest_or_go_on(self) -> None:
        """Serve like a seed while the owner pauses training, and announce the change to other members."""
        await self._leave.finish_rounds(lambda: self._rests)
        if self._leaving.is_set():
            return
        self._state = "serving" if self._rests else "training"
        self.exchange.sending.take_part(not self._rests)
        self._on_view()
        await self.membership.announce()

    def _show_readings(self) -> None:
        """Write the other members' reading positions to the mailbox."""
        own = self.mailbox.own_reading.read()
        others = [
            (record.peer_id, reading)
            for record in self.membership.members()
            if record.peer_id != self.me and record.is_training and (reading := reading_of(record.reading)) is not None
        ]
        if own is not None:
            self.mailbox.others_reading.write(view_of(others, own.data, own.epoch))

    def _set_clock(self) -> None:
        """Write the run's clock to the mailbox. After a repair or a fork it stands still until the committed tokens
        catch up.
        """
        network = self.mailbox.network
        committed = committed_tokens(fragment.state.lineage_tokens for fragment in self.fragments)
        network.run_tokens = max(network.run_tokens, committed)
        network.learning_rate_factor = self.revisions.rate_factor(network.run_tokens, min(self.versions()))

    def _speed_of(self, peer_id: PeerId) -> float:
        is_me = peer_id == self.me
        return self.mailbox.trainer.tokens_per_second if is_me else self.membership.tokens_per_second(peer_id)

    def _set_pace(self) -> int:
        """Make slow peers send after fewer inner steps, so that all peers are ready at about the same time.

        Returns the number of other members that train.
        """
        speeds = self.membership.speeds()
        own, sync_every = self.mailbox.trainer.tokens_per_second, self.manifest.averaging.sync_every
        fastest = fastest_believed([*speeds, own], is_strict=self.rule.is_strict)
        self.mailbox.network.sync_every = effective_sync_every(sync_every, own, fastest)
        return len(speeds)

    # ---------------------------------------------------------------------------------------- callbacks of the parts

    def _on_message(self, sender: PeerId, message: Message, payload: memoryview, frame_bytes: int) -> None:
        self.membership.heard_from(sender)
        if self._state == "joining":
            # While catching up, messages are dropped; missed ones are requested as soon as rounds begin.
            return
        self.exchange.on_message(sender, message, payload, frame_bytes)

    def _on_met(self, peer_id: PeerId, has_introduced_itself: bool) -> bool:
        presence = self.guard.presence
        return presence.take_part(peer_id) if has_introduced_itself else presence.meet(peer_id)

    def _on_lost(self, peer_id: PeerId, reason: str) -> None:
        self.membership.suspect(peer_id, reason)
        self.exchange.peer_lost(peer_id, reason)

    def _on_refused(self, peer_id: PeerId, reason: str) -> None:
        self.guard.blame(peer_id, "malformed", reason)

    def _on_view(self) -> None:
        trainers, followers = self.membership.split()
        own = [self.me] if self._state == "training" else []
        self.exchange.set_view([*trainers, *own], followers, self.membership.suspected_trainers())

    def _deliver(self, index: int, change: Change | None, version: int) -> None:
        self.desk.deliver(index, change, version)
        if self.rule.mode == "sync":
            self._background.spawn(self._hand_over(index))

    async def _hand_over(self, index: int) -> None:
        """Deliver at once in mode sync, where the trainer waits for the change and must not also wait for the next
        poll.
        """
        async with self.fragments[index].busy:
            pass
        await self.desk.retry()

    def _on_report(self, report: Report) -> None:
        if isinstance(report, PeerRefused):
            self.reporter.refused(report)
        elif isinstance(report, RepairNeeded):
            self._background.spawn(self.repairs.repair(report.fragment, report.peer_id, report.reason))
        elif isinstance(report, CommitTaken):
            self.reporter.commit_taken(report)
        else:
            self.reporter.in_round(report)
            if isinstance(report, AppliedCommit):
                persist(self.mailbox, self.fragments[report.fragment])
                self._moved.set()
                if self.rule.mode == "streaming":
                    self.desk.deliver_anchor(report.fragment)
            elif isinstance(report, WorkLost) and report.cause == "withheld":
                self.desk.put_back(report.fragment)

    def _check_welcome(self, refusal: str) -> None:
        if refusal:
            raise Incompatible(
                f"all members of {self.who.run_id} that answered refused this peer ({refusal}); expected to be "
                f"admitted; this is {self.who.software}: install the version that the run uses"
            )

    def _check_identity(self) -> None:
        if self.membership.is_duplicate():
            raise LocalFault(
                f"another running process of this run already uses the identity {self.me}; expected one process per "
                "identity; stop the other process, or give this process its own --identity file"
            )

    async def _audit(self) -> None:
        """Compare announced anchors with this peer's after every round, and when records have arrived."""
        while True:
            self._moved.clear()
            await set_within(self._moved, self.manifest.network.announce_seconds)
            self._check_identity()
            await self.repairs.audit()

    # ----------------------------------------------------------------------------------------- StateSource for donors

    async def snapshot(self, fragment: int) -> Snapshot | None:
        """Return a consistent copy of one fragment's committed state."""
        runtime = self.fragments[fragment]
        if not self.desk.is_open:
            return None
        async with runtime.busy:
            state = runtime.state
            if runtime.is_torn:
                return None
            anchor, momentum = await self.ports.compute(lambda: (state.anchor.copy(), state.momentum.copy()))
            return Snapshot(state.version, state.lineage_tokens, anchor, momentum, state.digest)

    def digest_at(self, fragment: int, version: int) -> bytes:
        """Return this peer's digest at a recent version; empty if unknown."""
        return self.fragments[fragment].log.digests.get(version, b"")

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        """Return the signed commits from `version` on, as frames."""
        return self.fragments[fragment].log.page(version)

    # ----------------------------------------------------------------------------------------------------- details

    def own_record(self) -> PeerRecord:
        """Return this peer's current record, unsigned."""
        trainer, fragments, traffic = self.mailbox.trainer, self.fragments, self.links.traffic
        reading = self.mailbox.own_reading.read()
        return PeerRecord(
            run_id=self.who.run_id,
            peer_id=self.me,
            session=self.who.session,
            sequence=0,
            expires_at=0.0,
            manifest_hash=self._manifest_hash,
            state=self._state,  # type: ignore[arg-type]
            role=self.who.role,  # type: ignore[arg-type]
            device=self.who.device,
            name=self.who.name,
            software=self.who.software,
            reachable=self.is_dialable,
            inner_steps=trainer.inner_steps,
            tokens=trainer.tokens,
            rounds_contributed=self.mailbox.network.rounds_contributed,
            tokens_per_second=self.reporter.tokens_per_second(),
            upload_bits_per_second=traffic.upload_bits_per_second,
            train_loss=_finite(trainer.train_loss),
            evaluation=trainer.evaluation,
            versions=tuple(fragment.machine.version for fragment in fragments),
            digests=tuple((fragment.state.digest or bytes(32))[:8] for fragment in fragments),
            lineage_tokens=tuple(fragment.state.lineage_tokens for fragment in fragments),
            started_at=self.started_at,
            contributor_key=self.who.contributor_key,
            site=self.who.site,
            newest_round=self.reporter.round_clock.newest,
            reading=b"" if reading is None else reading.to_bytes(),
            rules=self.manifest.rules,
        )

    async def _keep_lineage(self) -> None:
        if self.keeper is not None:
            await self.keeper.keep_lineage()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def bits_for_newcomers(most: float, links: Links) -> float:
    """Return the upload limit for newcomers in bits per second: `most`, reduced while rounds have data to send."""
    rate = links.traffic.upload_bits_per_second
    return min(most, SERVING_SHARE * rate if rate and links.has_bulk_waiting else math.inf)
