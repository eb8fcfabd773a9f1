"""The network side of one peer: composes membership, rounds and state transfer around a mailbox.

Everything concrete is injected (host, store, clocks, compute), so the same class runs in the network process of a
volunteer, in a seed, and in the simulator under virtual time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from averaging.catch_up import Snapshot, StateServer
from averaging.codec import Codec, make_codec
from averaging.exchange import Exchange
from averaging.exchange_reports import ExchangeReport, PeerRefused
from averaging.fragment_runtime import Compute, FragmentRuntime
from averaging.fragment_state import FragmentState
from averaging.leading import RoundTiming
from averaging.links import Doorkeeper, Links
from averaging.messages import DIGEST_BYTES, Commit, Message
from averaging.outer import OuterRule
from averaging.round import RoundMachine
from averaging.schedule import effective_sync_every
from averaging.shard_store import ShardStore
from averaging.wire import Limits
from dht.errors import Incompatible, LocalFault
from dht.host import Host, PeerId
from dht.identity import Identity
from dht.records import PeerRecord
from dht.store import RecordStore
from peer.checkpoint import CheckpointFolder, Totals
from peer.checkpoint_keeper import CheckpointKeeper
from peer.events import Event
from peer.fetching import Fetched, Fetcher
from peer.mailbox import Mailbox, MergeKind, WorkKind, WorkMessage
from peer.mailbox_slots import NUM_SLOTS
from peer.manifest import ROBUST_CLIP_RATIOS, RunManifest
from peer.membership import Membership
from peer.reporting import Reporter

POLL_SECONDS = 0.02
"""How often the outbox is looked at: far below an inner step of any model worth training over the internet."""
SETTLE_SECONDS = 5.0
"""A leaving peer waits this long at most for the round that carries its last work."""
HAND_OVER_SECONDS = 5.0
"""And then so long until some other member has what it has: a fragment of a small model over a slow line."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who this peer is and what it says about itself."""

    identity: Identity
    run_id: str
    session: int
    role: str
    device: str
    name: str
    software: str
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Everything that differs between real life and simulation."""

    host: Host
    store: RecordStore
    doorkeeper: Doorkeeper
    wall_clock: Callable[[], float]
    clock: Callable[[], float]
    compute: Compute
    emit: Callable[[Event], None]
    randomness: random.Random
    poll_seconds: float = POLL_SECONDS


def rule_of(manifest: RunManifest) -> OuterRule:
    """The outer rule that a manifest asks for."""
    section = manifest.averaging
    norm_ratio, weight_ratio = (None, None) if section.combine == "mean" else ROBUST_CLIP_RATIOS
    return OuterRule(
        mode=section.mode,
        outer_lr=section.outer_lr,
        outer_momentum=section.outer_momentum,
        overlay_gain=section.overlay_gain,
        own_weight=section.own_weight,
        staleness_power=section.staleness_power,
        staleness_limit=section.staleness_limit,
        lag_penalty=section.lag_penalty,
        residual_decay=section.error_feedback_decay,
        combine=section.combine,
        clip_norm_ratio=norm_ratio if section.clip_norm_ratio is None else section.clip_norm_ratio,
        clip_weight_ratio=weight_ratio if section.clip_weight_ratio is None else section.clip_weight_ratio,
        trim_fraction=section.trim_fraction,
        clip_radius_ratio=section.clip_radius_ratio,
    )


def codec_of(manifest: RunManifest) -> Codec:
    """The codec that a manifest asks for."""
    return make_codec(manifest.averaging.codec, manifest.averaging.block_size)


def limits_of(sizes: Sequence[int], codec: Codec) -> Limits:
    """What a remote may send: at most one whole encoded fragment behind a header."""
    return Limits(tuple(sizes), max(codec.encoded_num_bytes(size) for size in sizes))


class Node:
    """See the module docstring. `run` ends when the trainer has finished or `leave` was called.

    `checkpoints` is where the state is kept on disk; None keeps nothing (simulation).
    """

    def __init__(
        self,
        who: NodeIdentity,
        manifest: RunManifest,
        ports: NodePorts,
        mailbox: Mailbox,
        checkpoints: CheckpointFolder | None = None,
    ) -> None:
        self.who = who
        self.manifest = manifest
        self.ports = ports
        self.mailbox = mailbox
        self.started_at = ports.wall_clock()
        self.me = who.identity.peer_id
        self.codec = codec_of(manifest)
        self.rule = rule_of(manifest)
        self.limits = limits_of(mailbox.sizes, self.codec)
        self.reporter = Reporter(self.me, mailbox, ports.wall_clock, ports.clock, ports.emit)
        self._backlog: dict[int, Tensor] = {}
        self._undelivered_anchor: set[int] = set()
        self._repairs: set[asyncio.Task[None]] = set()
        self._rebasing = False
        self._serving = False
        self._leaving = asyncio.Event()
        self._leave_reason = "the trainer finished"
        self._state = "joining"
        self.exchange = self._build_exchange()
        self.links = Links(
            ports.host,
            ports.doorkeeper,
            self.limits,
            self._on_message,
            self._on_lost,
            self._on_refused,
            ports.clock,
        )
        self.exchange.links = self.links
        self.exchange.guard.speed_of = lambda peer_id: self.membership.tokens_per_second(peer_id)
        self.membership = Membership(
            who.identity,
            ports.host,
            ports.store,
            ports.doorkeeper,
            self._describe,
            announce_seconds=manifest.network.announce_seconds,
            wall_clock=ports.wall_clock,
            randomness=ports.randomness,
            on_view=self._on_view,
            on_joined=self.reporter.peer_joined,
            on_left=self.reporter.peer_left,
            on_refused=self._on_refused,
        )
        self.fetcher = Fetcher(ports.host, ports.doorkeeper, self.limits, self.membership)
        StateServer(ports.host, ports.doorkeeper, self, len(mailbox.sizes), ports.compute)
        self.keeper = None if checkpoints is None else self._build_keeper(checkpoints)
        self._restored: frozenset[int] = frozenset()

    # --------------------------------------------------------------------------------------------------- the run

    async def run(self) -> None:
        """Join, catch up, take part until the trainer has finished, leave.

        Raises:
            LocalFault: another process uses this identity, or the state cannot be had.
        """
        tasks: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        try:
            await self.ports.compute(lambda: _warm_up(self.codec))
            await self.membership.look()
            await self._start_state()
            self._state = "training" if self.who.role == "trainer" else "serving"
            self.exchange.takes_part = self.who.role == "trainer"
            await self.membership.announce()
            self._check_identity()
            self._check_welcome(await self.membership.introduce())
            self._on_view()
            self.mailbox.network.ready = 1
            self.reporter.joined(self.who.run_id, self.who.device, self.versions())
            for work in (self.membership.run(), self._follow_trainer(), self._audit()):
                tasks.append(loop.create_task(work))
            if self.keeper is not None:
                tasks.append(loop.create_task(self.keeper.run()))
            tasks.append(loop.create_task(_wait(self._leaving)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._settle()
        finally:
            tasks += self._repairs
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.exchange.close()
            await self.links.close()
        self.reporter.left(self._leave_reason)

    def leave(self, reason: str) -> None:
        """End the run in an orderly way."""
        self._leave_reason = reason
        self._leaving.set()

    def versions(self) -> tuple[int, ...]:
        """The anchor version of every fragment."""
        return tuple(fragment.machine.version for fragment in self.exchange.fragments)

    @property
    def num_undelivered(self) -> int:
        """Changes that wait here for a free slot of the trainer's inbox."""
        return len(self._backlog) + len(self._undelivered_anchor)

    async def _settle(self) -> None:
        """Let rounds that carry own work finish, tell the others, say goodbye."""
        end = self.ports.clock() + SETTLE_SECONDS
        while self.ports.clock() < end:
            await self._take_outbox()
            if not any(f.state.pending is not None or f.state.unsent_tokens for f in self.exchange.fragments):
                break
            await asyncio.sleep(POLL_SECONDS)
        await self.links.flush(2.0)
        await self._hand_over()
        self._state = "left"
        await self.membership.introduce()
        await self.membership.announce()
        if self.keeper is not None:
            await self.keeper.save()

    async def _hand_over(self) -> None:
        """Leave nobody with less than this peer has: the last trainer's commits live on in the seeds."""
        end = self.ports.clock() + HAND_OVER_SECONDS
        goals = [fragment.state.lineage_tokens for fragment in self.exchange.fragments]
        while self.ports.clock() < end:
            members = self.membership.members()
            behind = [index for index, goal in enumerate(goals) if not any(_has(r, index, goal) for r in members)]
            if not members or not behind:
                return
            for record in members:
                for index in behind:
                    self.exchange.audit(index, record.peer_id)
            await asyncio.sleep(HAND_OVER_SECONDS / 10)
            await self.membership.introduce()

    # ------------------------------------------------------------------------------------------- starting state

    async def _start_state(self) -> None:
        """Anchors for every fragment: an earlier network process's, fetched from the swarm, or the initial ones."""
        has_begun = bool(self.mailbox.network.ready)
        resumed = [self._resume(fragment) for fragment in self.exchange.fragments]
        if not all(resumed):
            missing = [index for index, ok in enumerate(resumed) if not ok]
            if has_begun:
                self._salvage(missing)
            else:
                if self.who.role == "trainer":
                    await self._take_initial(set(missing))
                await self._restore(missing)
            await self._catch_up()
        has_begun = has_begun and self.who.role == "trainer"
        for fragment in self.exchange.fragments:
            self._persist(fragment)
            if self.who.role == "trainer":
                await self._deliver_start(fragment, MergeKind.REBASE if has_begun else MergeKind.SET)
        self._rebasing = has_begun
        self._serving = True

    async def _deliver_start(self, fragment: FragmentRuntime, kind: MergeKind) -> None:
        state, inbox = fragment.state, self.mailbox.inbox
        while not inbox.try_deliver(kind, fragment.index, state.shown(), version=state.version):  # noqa: ASYNC110
            # The trainer frees slots in another process: there is no event to wait for.
            await asyncio.sleep(POLL_SECONDS)

    def _resume(self, fragment: FragmentRuntime) -> bool:
        shared = self.mailbox.states[fragment.index]
        state = fragment.state
        if shared.writing or shared.digest == bytes(32) or state.refresh_digest() != shared.digest:
            return False
        state.version, state.lineage_tokens = shared.version, shared.lineage_tokens
        state.unsent_tokens, state.unsent_steps = shared.unsent_tokens, shared.unsent_steps
        state.unsent_base_version = shared.unsent_base_version
        self._restart_machine(fragment)
        return True

    async def _take_initial(self, missing: set[int]) -> None:
        """Wait for the trainer's initial parameters; work that it hands over meanwhile stays in its slots."""
        while missing:
            for message in self.mailbox.outbox.take():
                if message.kind is not WorkKind.INITIAL:
                    continue
                fragment = self.exchange.fragments[message.fragment]
                with self._changing(fragment.index, fragment.state):
                    fragment.state.anchor.copy_(message.values)
                    fragment.state.momentum.zero_()
                    fragment.state.residual.zero_()
                    await self.ports.compute(fragment.state.refresh_digest)
                # Persisted before the slot is released: the trainer posts them only once.
                self.mailbox.outbox.release(message.slot)
                self._restart_machine(fragment)
                missing.discard(message.fragment)
            if missing:
                await asyncio.sleep(POLL_SECONDS)

    async def _restore(self, missing: list[int]) -> None:
        """Go on from the newest checkpoint; where the swarm has something heavier, `_catch_up` replaces it."""
        saved = None if self.keeper is None else await self.keeper.restore(missing)
        if saved is not None:
            self.mailbox.network.rounds_contributed = saved.rounds_contributed
            self._restored = frozenset(missing)
            for index in missing:
                self._restart_machine(self.exchange.fragments[index])

    def _salvage(self, torn: list[int]) -> None:
        """An earlier network process died while it wrote these anchors: anybody else's are better.

        A peer that is alone goes on with what is there; nobody else has another state that it could contradict.
        """
        for index in torn:
            fragment, shared = self.exchange.fragments[index], self.mailbox.states[index]
            state = fragment.state
            for tensor in (state.anchor, state.momentum, state.residual):
                torch.nan_to_num_(tensor, nan=0.0, posinf=0.0, neginf=0.0)
            state.version, state.lineage_tokens = shared.version, 0
            state.refresh_digest()
            self._restart_machine(fragment)

    async def _catch_up(self) -> None:
        """Fetch every fragment of which the swarm has something better; a seed waits until somebody has a state."""
        began = self.ports.clock()
        while True:
            await self._fetch_better()
            if self.who.role == "trainer" or all(fragment.state.digest for fragment in self.exchange.fragments):
                return
            self.reporter.waiting("no trainer has a state yet", self.ports.clock() - began)
            await asyncio.sleep(self.manifest.network.announce_seconds / 2)
            await self.membership.look()

    async def _fetch_better(self) -> None:
        began = self.ports.clock()

        async def adopt(index: int, found: Fetched) -> None:
            fragment = self.exchange.fragments[index]
            if index in self._restored:
                # The swarm went on without this peer's saved work, or with it: it must not come twice.
                fragment.state.drop_waiting()
            self._adopt_snapshot(fragment.state, found.snapshot)
            fragment.digests = {found.snapshot.version: found.snapshot.digest}
            self._restart_machine(fragment)

        states = {fragment.index: fragment.state for fragment in self.exchange.fragments}
        donors = await self.fetcher.fetch_better(states, adopt)
        if donors:
            fetched = tuple(sorted(donors))
            num_bytes = sum(8 * states[index].num_values for index in fetched)
            self.reporter.caught_up(fetched, donors[fetched[0]][0], num_bytes, self.ports.clock() - began)

    @staticmethod
    def _adopt_snapshot(state: FragmentState, snapshot: Snapshot) -> None:
        state.adopt(snapshot.anchor, snapshot.momentum, snapshot.version, snapshot.lineage_tokens, snapshot.digest)

    def _restart_machine(self, fragment: FragmentRuntime) -> None:
        state, machine = fragment.state, fragment.machine
        machine.version, machine.lineage_tokens = state.version, state.lineage_tokens
        machine.anchor_digest = state.digest[:DIGEST_BYTES]
        fragment.digests[state.version] = state.digest

    # ------------------------------------------------------------------------------------------------- the mailbox

    async def _follow_trainer(self) -> None:
        trainer = self.mailbox.trainer
        told_at = self.ports.clock()
        while not self._leaving.is_set():
            await self._take_outbox()
            self._retry_deliveries()
            self.mailbox.network.heartbeat = self.ports.clock()
            if trainer.finished or trainer.stop_requested:
                await self._take_outbox()
                self.leave("the trainer finished" if trainer.finished else "asked to stop")
            if self.ports.clock() - told_at >= self.manifest.network.announce_seconds / 2:
                told_at = self.ports.clock()
                self.reporter.progress()
                self._set_pace()
            await asyncio.sleep(self.ports.poll_seconds)

    async def _take_outbox(self) -> None:
        if self._rebasing:
            # The trainer subtracts what lies in the outbox from its new starting point: until then it must stay there.
            if self.mailbox.inbox.num_free() < NUM_SLOTS:
                return
            self._rebasing = False
        for message in self.mailbox.outbox.take():
            if message.kind is WorkKind.WORK:
                await self._absorb(message)
            self.mailbox.outbox.release(message.slot)

    async def _absorb(self, message: WorkMessage) -> None:
        shared = self.mailbox.states[message.fragment]
        if message.sequence <= shared.absorbed_sequence:
            return

        def fill(state: FragmentState) -> None:
            state.receive_work(message.values, message.num_tokens, message.num_steps, message.base_version)

        await self.exchange.work_arrived(message.fragment, fill)
        shared.absorbed_sequence = message.sequence
        self._persist(self.exchange.fragments[message.fragment])

    def _deliver(self, index: int, change: Tensor, version: int) -> None:
        """Hand a change to the trainer; while its slots are full, changes add up here."""
        if not self._serving or self.rule.mode == "streaming":
            return
        waiting = self._backlog.pop(index, None)
        total = change if waiting is None else waiting.add_(change)
        if self._rebasing or not self.mailbox.inbox.try_deliver(MergeKind.ADD, index, total, version=version):
            self._backlog[index] = total

    def _deliver_anchor(self, index: int) -> None:
        """Mode streaming: hand over the new anchor, to be blended `overlap_steps` after the send."""
        section = self.manifest.averaging
        state = self.exchange.fragments[index].state
        apply_at = self._last_send_step(index) + section.overlap_steps
        delivered = not self._rebasing and self.mailbox.inbox.try_deliver(
            MergeKind.BLEND,
            index,
            state.anchor,
            version=state.version,
            merge_alpha=section.merge_alpha,
            apply_at_inner_step=apply_at,
        )
        if delivered:
            self._undelivered_anchor.discard(index)
        else:
            self._undelivered_anchor.add(index)

    def _last_send_step(self, index: int) -> int:
        return self.reporter.last_send_step.get(index, 0)

    def _retry_deliveries(self) -> None:
        if self._rebasing:
            return
        for index in sorted(self._backlog):
            version = self.exchange.fragments[index].state.version
            if not self.mailbox.inbox.try_deliver(MergeKind.ADD, index, self._backlog[index], version=version):
                return
            del self._backlog[index]
        for index in sorted(self._undelivered_anchor):
            self._deliver_anchor(index)

    def _set_pace(self) -> None:
        """Slow peers send after fewer inner steps, so that everybody is ready at about the same time."""
        speeds = [record.tokens_per_second for record in self.membership.members() if record.state == "training"]
        own = self.mailbox.trainer.tokens_per_second
        sync_every = self.manifest.averaging.sync_every
        self.mailbox.network.sync_every = effective_sync_every(sync_every, own, max([*speeds, own]))
        self.mailbox.network.num_peers = len(speeds)

    # ---------------------------------------------------------------------------------------- callbacks of the parts

    def _on_message(self, sender: PeerId, message: Message, payload: memoryview, frame_bytes: int) -> None:
        self.membership.heard_from(sender)
        if not self._serving:
            # Still catching up: whatever is missed now is asked for as soon as rounds begin.
            return
        self.exchange.on_message(sender, message, payload, frame_bytes)

    def _on_lost(self, peer_id: PeerId, reason: str) -> None:
        self.membership.suspect(peer_id, reason)
        self.exchange.peer_lost(peer_id, reason)

    def _on_refused(self, peer_id: PeerId, reason: str) -> None:
        self.exchange.guard.blame(peer_id, "malformed", reason)

    def _on_view(self) -> None:
        trainers = self.membership.trainers()
        followers = [record.peer_id for record in self.membership.members() if record.peer_id not in trainers]
        own = [self.me] if self._state == "training" else []
        self.exchange.set_view([*trainers, *own], followers)

    def _on_report(self, report: ExchangeReport) -> None:
        if isinstance(report, PeerRefused):
            self.reporter.refused(report.peer_id, report.reason)
            return
        self.reporter.round_report(report)
        index = report.fragment
        if self.reporter.moved(report):
            self._persist(self.exchange.fragments[index])
            if self.rule.mode == "streaming" and self._serving:
                self._deliver_anchor(index)
        repair = self.reporter.wanted_repair(report)
        if repair is not None:
            task = asyncio.get_running_loop().create_task(self._repair(index, repair.peer_id, repair.reason))
            self._repairs.add(task)
            task.add_done_callback(self._repairs.discard)

    async def _repair(self, index: int, peer_id: PeerId, reason: str) -> None:
        fragment = self.exchange.fragments[index]
        try:
            # The one that knows of a better anchor may be gone by now; whoever has committed more will do as well.
            others = [
                record.peer_id
                for record in self.membership.members()
                if len(record.lineage_tokens) > index
                and record.lineage_tokens[index] > fragment.state.lineage_tokens
                and record.peer_id != peer_id
            ]
            donors = [peer_id, *others]
            snapshot = await self.fetcher.fetch_from(index, fragment.state.num_values, donors)
            better = snapshot is not None and (snapshot.lineage_tokens, snapshot.digest) > (
                fragment.state.lineage_tokens,
                fragment.state.digest,
            )
            if snapshot is not None and better:
                found = snapshot
                await self.exchange.adopt(index, lambda state: self._adopt_snapshot(state, found), found.commits)
                self.reporter.repaired(index, found.version, reason)
        finally:
            self.exchange.repaired(index)

    def _check_welcome(self, refusal: str) -> None:
        if refusal:
            raise Incompatible(
                f"all members of {self.who.run_id} that answered refused this peer ({refusal}); expected a welcome; "
                f"this is {self.who.software}: install the version that the run uses"
            )

    def _check_identity(self) -> None:
        if self.membership.is_duplicate():
            raise LocalFault(
                f"another live process of this run uses the identity {self.me} and was there first; expected one "
                "process per identity: stop the other one, or give this one its own --identity file"
            )

    async def _audit(self) -> None:
        """Compare announced anchors with our own; whoever is behind or forked hears of it within one announcement."""
        while True:
            await asyncio.sleep(self.manifest.network.announce_seconds)
            self._check_identity()
            for fragment in self.exchange.fragments:
                for record in self.membership.members():
                    if len(record.versions) <= fragment.index or fragment.repairing:
                        continue
                    theirs = (record.lineage_tokens[fragment.index], record.digests[fragment.index])
                    state = fragment.state
                    known = fragment.digests.get(record.versions[fragment.index], b"")[: len(theirs[1])]
                    if theirs > (state.lineage_tokens, state.digest[:8]) and known != theirs[1]:
                        self.exchange.audit(fragment.index, record.peer_id)
                        break

    # ----------------------------------------------------------------------------------------- StateSource for donors

    async def snapshot(self, fragment: int) -> Snapshot | None:
        """A consistent copy of one fragment's committed state."""
        runtime = self.exchange.fragments[fragment]
        if not self._serving:
            return None
        async with runtime.busy:
            state = runtime.state
            anchor, momentum = await self.ports.compute(lambda: (state.anchor.clone(), state.momentum.clone()))
            commits = tuple(runtime.machine.history[version] for version in sorted(runtime.machine.history))
            return Snapshot(state.version, state.lineage_tokens, anchor, momentum, state.digest, commits)

    def digest_at(self, fragment: int, version: int) -> bytes:
        """The digest this peer had at a recent version; empty when unknown."""
        return self.exchange.fragments[fragment].digests.get(version, b"")

    def commits_from(self, fragment: int, version: int) -> Sequence[Commit]:
        """Recent commits that left `version` or a later one."""
        history = self.exchange.fragments[fragment].machine.history
        return [history[key] for key in sorted(history) if key >= version]

    # ----------------------------------------------------------------------------------------------------- details

    def _describe(self) -> PeerRecord:
        trainer = self.mailbox.trainer
        fragments = self.exchange.fragments
        traffic = self.links.traffic
        return PeerRecord(
            run_id=self.who.run_id,
            peer_id=self.me,
            session=self.who.session,
            sequence=0,
            expires_at=0.0,
            manifest_hash=self.manifest.hash,
            state=self._state,  # type: ignore[arg-type]
            role=self.who.role,  # type: ignore[arg-type]
            device=self.who.device,
            name=self.who.name,
            software=self.who.software,
            reachable=self.who.reachable,
            inner_steps=trainer.inner_steps,
            tokens=trainer.tokens,
            rounds_contributed=self.reporter.rounds_contributed,
            tokens_per_second=trainer.tokens_per_second,
            upload_bits_per_second=traffic.upload_bits_per_second,
            download_bits_per_second=traffic.download_bits_per_second,
            train_loss=_finite(trainer.train_loss),
            held_out_loss=_finite(trainer.held_out_loss),
            held_out_version=trainer.held_out_version,
            versions=tuple(fragment.machine.version for fragment in fragments),
            digests=tuple((fragment.state.digest or bytes(32))[:8] for fragment in fragments),
            lineage_tokens=tuple(fragment.state.lineage_tokens for fragment in fragments),
            started_at=self.started_at,
        )

    @contextmanager
    def _changing(self, index: int, state: FragmentState) -> Iterator[None]:
        """Mark the shared tensors as torn while they change, so that a restarted network process can tell."""
        shared = self.mailbox.states[index]
        with shared.changing():
            yield
            shared.version, shared.lineage_tokens, shared.digest = state.version, state.lineage_tokens, state.digest

    def _persist(self, fragment: FragmentRuntime) -> None:
        """Write what a restarted network process needs beside the shared tensors."""
        shared, state = self.mailbox.states[fragment.index], fragment.state
        shared.version, shared.lineage_tokens, shared.digest = state.version, state.lineage_tokens, state.digest
        shared.unsent_tokens, shared.unsent_steps = state.unsent_tokens, state.unsent_steps
        shared.unsent_base_version = state.unsent_base_version

    def _build_keeper(self, checkpoints: CheckpointFolder) -> CheckpointKeeper:
        trainer, ports = self.mailbox.trainer, self.ports

        def totals() -> Totals:
            rounds_contributed = self.reporter.rounds_contributed
            return Totals(inner_steps=trainer.inner_steps, tokens=trainer.tokens, rounds_contributed=rounds_contributed)

        return CheckpointKeeper(
            checkpoints, self.exchange.fragments, ports.compute, totals, ports.wall_clock, ports.emit
        )

    def _build_exchange(self) -> Exchange:
        section = self.manifest.averaging
        runtimes = []
        for index, (size, shared) in enumerate(zip(self.mailbox.sizes, self.mailbox.states, strict=True)):
            state = FragmentState(self.rule, self.codec, shared.anchor, shared.momentum, shared.residual)
            machine = RoundMachine(
                self.me,
                self.who.run_id,
                index,
                size,
                self.codec.block_size,
                RoundTiming.with_bounds(section.round_deadline_seconds),
                section.quorum_fraction,
            )
            guard = partial(self._changing, index, state)
            runtimes.append(FragmentRuntime(index, state, machine, ShardStore(self.codec, size), changing=guard))
        exchange = Exchange(
            self.me,
            self.rule,
            self.codec,
            runtimes,
            clock=self.ports.clock,
            compute=self.ports.compute,
            deliver=self._deliver,
            report=self._on_report,
            first_sequence=int(1000 * self.started_at),
        )
        exchange.takes_part = False
        return exchange


def _has(record: PeerRecord, fragment: int, lineage_tokens: int) -> bool:
    """Whether a member can give newcomers at least these committed tokens of a fragment."""
    known = record.lineage_tokens
    return record.state in ("training", "serving") and len(known) > fragment and known[fragment] >= lineage_tokens


def _warm_up(codec: Codec) -> None:
    """Load the compiled kernels: a member that stalls for seconds in its first round holds up all others."""
    values = torch.zeros(codec.block_size)
    encoded = codec.encode_with_residual(values)
    codec.decode(encoded, values)
    codec.decode_accumulate(encoded, 1.0, values)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
