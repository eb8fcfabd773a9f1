"""Builds a running node from a run id and an address: host, DHT, the run's manifest, and the loops that maintain them.

Runs inside the network process of a volunteer (see `main.py`) and directly inside `peer seed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from averaging.lanes.links import MAX_QUEUED_BYTES, ROUND_PROTOCOL
from averaging.rounds.round_facts import Fact, PeerRefused
from dht.admission.admission import Admission
from dht.admission.dated_proofs import NONCE_BYTES
from dht.admission.handshake_frames import AccessRule
from dht.ground.clocks import SwarmClock, steady_seconds
from dht.ground.errors import LocalFault, PeerFault
from dht.ground.host import PeerId
from dht.ground.tasks import end_tasks, is_done_before
from dht.identity.keys import Identity
from dht.kademlia.dht_store import HivemindStore
from dht.p2pd.daemon import DaemonOptions
from dht.p2pd.fresh_dial import dial_freshly
from dht.p2pd.host import P2pdHost
from dht.p2pd.own_relay_trial import check_relay
from dht.records.signed_manifest import RunRecord
from dht.streams.upload_and_download_limits import RateLimits
from peer.checkpoint.checkpoint import CheckpointFolder, CheckpointOwner
from peer.config.averaging_rules import codecs_of, limits_of
from peer.config.manifest import RunManifest
from peer.config.model_shapes import layout_digest_of
from peer.config.peer_config import ADDRESSES_NAME, PeerConfig, write_cached_peers
from peer.events import peer_events as events
from peer.events.peer_events import Event, RunChanged
from peer.files.serving import ServedFiles
from peer.mailbox.mailbox import Mailbox
from peer.network.membership.clock_check import ClockCheck
from peer.network.membership.invitation import load_pass
from peer.network.membership.invite_users import InviteUsers
from peer.network.membership.manifest_revisions import apply_member_rules
from peer.network.membership.members_here import addresses_now
from peer.network.membership.profile_file import load_contributor
from peer.network.membership.profile_publisher import Contributing
from peer.network.membership.reconnect import ReconnectLoop
from peer.network.membership.run_finding import find_run, keep_record, local_record
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.membership.run_protocol import serve_run
from peer.network.node.node import Node
from peer.network.node.node_inputs import NodeIdentity, NodePorts
from peer.network.process.panel_looks import PanelLooks
from peer.network.process.record_upkeep import RecordUpkeep
from peer.network.process.run_files import KeptAddresses, have_files
from peer.network.reachability.paths import Paths
from peer.network.reachability.probe_client import DialBack, probing
from peer.network.reachability.probe_server import ProbeServer
from peer.version import full_version
from peer.view.swarm_seen import SwarmSeen

T = TypeVar("T")

FRAMES_PER_REMOTE = 4
"""Number of the run's largest frames in memory for each remote: two being sent, two in buffers of its streams."""
LAST_LOOK_SECONDS = 2.0
"""Time on leaving to store members' addresses for the next start; a daemon that is just starting is not waited for."""
NUM_SILENT_ANNOUNCEMENTS = 3
SILENT_SECONDS = 8.0
"""Time to look up three announcements: a member without a new record for longer counts as absent."""
END_ANNOUNCEMENTS = 3
"""Number of announcements for which a seed stays after the run's end, so that pages and returning peers can read it."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class NetworkSide:
    """One peer's network side.

    Attributes:
        config: the volunteer's choices.
        role: "trainer" or "seed".
        on_event: receives every event.
        on_addresses: called with the dialable addresses once the host is up.
        make_mailbox: called with the signed manifest; returns the mailbox to work on and the device's name.
        on_seen: called every few seconds with this peer's view of the swarm.

    Raises:
        LocalFault: its keys, or files of earlier sessions, are unusable.
    """

    config: PeerConfig
    role: str
    on_event: Callable[[Event], None]
    on_addresses: Callable[[list[str]], None]
    make_mailbox: Callable[[RunRecord, RunManifest], Coroutine[None, None, tuple[Mailbox, str]]]
    on_seen: Callable[[SwarmSeen], object] = lambda seen: None

    def __post_init__(self) -> None:
        config = self.config
        self._clock = SwarmClock(time.time, steady_seconds)
        self._identity = Identity.load_or_create(config.identity)
        key_path = config.contributor_key
        self._contributor = None if key_path is None else load_contributor(key_path, create=False)
        self._record, self._damage = local_record(config.run_record_path, config.run_id)
        self._admission = self._make_admission()
        limits = config.upload_limit_mbit, config.download_limit_mbit
        self._limits = RateLimits(*(None if limit is None else 1e6 * limit for limit in limits))
        """The volunteer's bandwidth limits."""
        self._host = self._make_host()
        self._store = HivemindStore(self._host, admission=self._admission, now=self._clock)
        self._clock_check = ClockCheck(self._clock, self._store.member_clocks, self._report)
        self._kept_addresses = KeptAddresses(config, self._host)
        self._upkeep: RecordUpkeep | None = None
        self._leave_reason: str | None = None
        self._leaving = asyncio.Event()
        self._most_members = 0
        self._node: Node | None = None

    def leave(self, reason: str) -> None:
        """Leave in an orderly way; if the node does not run yet, leave as soon as it does."""
        self._leave_reason = reason
        self._leaving.set()
        if self._node is not None:
            self._node.leave(reason)

    def listening(self) -> list[str]:
        """Return the multiaddrs on which this machine listens, with the chosen ports."""
        return [str(address) for address in self._host.daemon.listens]

    def limit(self, limits: RateLimits) -> None:
        """Set new bandwidth limits."""
        self._limits = limits
        self._host.limit(limits)
        if self._node is not None:
            self._node.links.limit(limits.upload_bits_per_second, limits.download_bits_per_second)

    def _report(self, fact: Fact) -> None:
        self._emit(Event(time.time(), self._identity.peer_id, fact))

    def _emit(self, event: Event) -> None:
        self.on_event(event)
        if isinstance(event.fact, RunChanged) and event.fact.has_ended and self.role != "trainer":
            # A trainer's process decides by itself after its step.
            wait_seconds = END_ANNOUNCEMENTS * self._node.manifest.network.announce_seconds if self._node else 0.0
            asyncio.get_running_loop().call_later(wait_seconds, self.leave, "the run has ended")

    async def run(self) -> None:
        """Join, take part, leave.

        Raises:
            LocalFault: the fault that stopped the peer, with advice for its owner.
        """
        host, store = self._host, self._store
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(host)
            await store.start()
            stack.push_async_callback(store.close)
            self._show_addresses()
            if (kept := self._record) is not None:
                serve_run(host, self._admission, lambda: kept)
            found = await self._unless_left(
                find_run(
                    self.config,
                    store,
                    host,
                    self._admission,
                    kept,
                    self._damage,
                    on_waiting=lambda reason, seconds: self._report(
                        events.SwarmContact("waiting", seconds, reason=reason)
                    ),
                )
            )
            if found is None:
                return
            record, manifest = found
            keep_record(self.config.run_record_path, record)
            upkeep = self._upkeep = RecordUpkeep(
                self.config, record, host, store, self._admission, self._report, self._clock
            )
            serve_run(host, self._admission, lambda: upkeep.record)
            if not await self._unless_left(self._clock_check.settle(self._look_for_members)):
                return
            rule = AccessRule(self.config.run_id, manifest.hash, full_version(), manifest.rules)
            handshake_policy = RunHandshakePolicy(rule, host.peer_id, self.role, self._admission)
            files = await self._unless_left(
                have_files(self.config, manifest, host, store, handshake_policy, self._report)
            )
            if files is None:
                return
            # After its files have arrived, because the trainer that reads them starts at this point.
            made = await self._unless_left(self.make_mailbox(record, manifest))
            if made is None:
                return
            node = self._node = self._build_node(manifest, *made, handshake_policy, files, record.owner_public_key)
            # Applies until a round has measured the bandwidth: members must not give this peer more to reduce than it
            # may send.
            node.links.limit(self._limits.upload_bits_per_second, self._limits.download_bits_per_second)
            if self._leave_reason is not None:
                node.leave(self._leave_reason)
            self._watch_daemon(node)
            ProbeServer(host, handshake_policy, dial_freshly, wall_clock=self._clock, clock=time.monotonic)
            work = [
                self._build_reconnect_loop(node).run(),
                upkeep.republish(),
                upkeep.follow_revisions(node),
                self._build_paths(node).run(),
                PanelLooks(self.config, store, self._contributor, self._clock, self.on_seen).run(node),
            ]
            if self._contributor is not None and (key_path := self.config.contributor_key) is not None:
                work.append(
                    Contributing(store, self._contributor, key_path, self.config.run_id, node.me, self._clock).run()
                )
            background = [asyncio.create_task(one) for one in work]
            for task in background:
                task.add_done_callback(_log_early_end)
            try:
                await node.run()
            finally:
                await end_tasks(background)
                with contextlib.suppress(PeerFault, LocalFault, OSError, TimeoutError):
                    async with asyncio.timeout(LAST_LOOK_SECONDS):
                        await self._kept_addresses.keep()

    def _make_admission(self) -> Admission:
        """Make the admission from the local manifest, if there is one."""
        folder = self.config.data_dir
        users, ticket_pass = InviteUsers(folder), load_pass(folder)
        admission = Admission(
            self._identity,
            self.config.run_id,
            self._clock,
            lambda: secrets.token_bytes(NONCE_BYTES),
            ticket_pass=ticket_pass or b"",
            is_private=ticket_pass is not None,
            on_refused=self._report_refusal,
            on_used=users.keep,
        )
        if self._record is not None:
            apply_member_rules(admission, self._record)
        users.remind(admission, self._clock())
        return admission

    def _make_host(self) -> P2pdHost:
        config = self.config
        options = DaemonOptions(relays_for_others=self._relays_for_others, map_ports=config.map_ports)
        return P2pdHost(
            self._identity,
            config.listen_addresses,
            config.announce,
            options=options,
            limits=self._limits,
        )

    @property
    def _relays_for_others(self) -> bool:
        """Seeds relay unless their owner refuses. In a private run no peer relays, because a relay cannot recognise
        members.
        """
        asked = self.config.relay_for_others
        return (self.role == "seed" if asked is None else asked) and not self._admission.is_private

    def _build_paths(self, node: Node) -> Paths:
        host = self._host

        async def dial_back(member: PeerId, addresses: list[str]) -> DialBack:
            async with probing(host, node.ports.handshake_policy, member, time.monotonic, self._clock) as probe:
                return await probe.dial_back(addresses)

        return Paths(
            host,
            node.membership.members,
            dial_back,
            check_relay,
            node.note_paths,
            self._report,
            time.monotonic,
            randomness=random.Random(secrets.randbits(64)),
            uses_relays=self.config.relay,
            relays=self._relays_for_others,
            announce=self.config.announce,
        )

    def _build_node(
        self,
        manifest: RunManifest,
        mailbox: Mailbox,
        device: str,
        handshake_policy: RunHandshakePolicy,
        files: ServedFiles,
        owner_public_key: bytes,
    ) -> Node:
        config, identity, host = self.config, self._identity, self._host
        who = NodeIdentity(
            identity,
            config.run_id,
            secrets.randbits(62),
            self.role,
            device,
            config.name,
            full_version(),
            contributor_key=self._contributor.public_key if self._contributor is not None else b"",
            site=config.site,
        )
        limits = limits_of(mailbox.sizes, codecs_of(manifest, len(mailbox.sizes)))
        allowed = FRAMES_PER_REMOTE * limits.max_frame_bytes
        host.memory.raise_to(allowed)
        ports = NodePorts(
            host,
            self._store,
            handshake_policy,
            self._clock,
            steady_seconds,
            asyncio.to_thread,
            self._emit,
            random.Random(secrets.randbits(64)),
            owner_public_key=owner_public_key,
            serve_bits_per_second=math.inf if config.serve_limit_mbit is None else 1e6 * config.serve_limit_mbit,
            line=host.pace_of(ROUND_PROTOCOL),
            max_queued_bytes=max(allowed, MAX_QUEUED_BYTES),
            files=files,
        )
        owner = CheckpointOwner(
            config.run_id, identity.peer_id, manifest.hash, layout_digest_of(manifest), tuple(mailbox.sizes)
        )
        every_seconds = 60.0 * config.checkpoint_minutes
        folder = CheckpointFolder(config.checkpoints_path, owner, every_seconds)
        return Node(who, manifest, ports, mailbox, folder)

    def _watch_daemon(self, node: Node) -> None:
        """Report each restart of the daemon, and the new addresses."""
        host = self._host
        shown, num_restarts = host.addresses(), host.daemon.num_restarts

        async def report_restart() -> None:
            nonlocal shown, num_restarts
            if host.addresses() != shown:
                shown = host.addresses()
                self._show_addresses()
            if host.daemon.num_restarts > num_restarts:
                num_restarts, seconds = host.daemon.num_restarts, host.daemon.last_downtime_seconds
                self._report(events.PartRestarted("daemon", seconds=seconds, is_training=_is_training(node)))

        host.add_restart_listener(report_restart)

    async def _unless_left(self, waiting: Coroutine[None, None, T]) -> T | None:
        """Return the awaited result, or None if this peer was asked to leave meanwhile."""
        work = asyncio.create_task(waiting)
        return work.result() if await is_done_before(work, self._leaving) else None

    # ------------------------------------------------------------------------------------------------ staying there

    def _build_reconnect_loop(self, node: Node) -> ReconnectLoop:
        async def look() -> int:
            try:
                num_members = await self._look_for_members()
                self._clock_check.look()
                if num_members:
                    await node.membership.look()
                    await self._kept_addresses.keep()
            except (PeerFault, LocalFault, OSError) as fault:
                log.warning("looking for members failed: %s", fault)
                return 0
            if num_members > self._most_members:
                self._most_members = num_members
                if self._upkeep is not None:
                    self._upkeep.met_members.set()
            return num_members

        async def rejoin() -> None:
            if node.mailbox.network.ready:
                await node.membership.announce()
                await node.membership.introduce()

        return ReconnectLoop(
            look,
            lambda: {
                record.peer_id: (record.session, record.sequence)
                for record in node.membership.view.members(self._clock())
                if record.peer_id != node.me
            },
            rejoin,
            self._report,
            silent_seconds=NUM_SILENT_ANNOUNCEMENTS * node.manifest.network.announce_seconds + SILENT_SECONDS,
            wall_clock=self._clock,
            randomness=random.Random(secrets.randbits(64)),
            is_training=lambda: _is_training(node),
        )

    async def _look_for_members(self) -> int:
        return await self._store.bootstrap(addresses_now(self.config))

    def _show_addresses(self) -> None:
        self.on_addresses(self._host.addresses())
        with contextlib.suppress(OSError):
            # Only a convenience for this machine's owner; the disk may be full.
            write_cached_peers(self.config.data_dir / ADDRESSES_NAME, self._host.addresses())

    def _report_refusal(self, remote: PeerId, rule: str) -> None:
        if self._node is not None:
            self._node.reporter.refused(PeerRefused(remote, rule))


def _is_training(node: Node) -> bool:
    """Return whether the trainer takes inner steps; false while catching up, and for a seed."""
    return node.who.role == "trainer" and bool(node.mailbox.network.ready)


def _log_early_end(task: asyncio.Task[None]) -> None:
    """Log the fault of a background task; such a bug must be visible, although the node continues."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a part of this peer ended: %s", error, exc_info=error)
