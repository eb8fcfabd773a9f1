"""From a run id and an address to a running node: host, DHT, the run's manifest, and the loops that keep them alive.

Runs inside the network process of a volunteer (see `network_process.py`) and directly inside `peer seed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dht.access import AccessRule
from dht.errors import Incompatible, LocalFault, NobodyReachable, PeerFault, PeerUnreachable, UsageFault
from dht.hivemind_store import HivemindStore
from dht.host import PeerId, Stream
from dht.identity import Identity
from dht.multiaddr import parse_peer_multiaddr
from dht.p2pd_host import P2pdHost
from dht.pacing import RateLimits
from dht.records import MAX_RUN_ID_LENGTH, MAX_RUN_RECORD_BYTES, RunRecord, decode_run_record, encode_run_record
from peer import event_types as events
from peer.checkpoint import CheckpointFolder, CheckpointOwner
from peer.company import ALONE_SECONDS, CONNECTED_SECONDS, Company
from peer.config import CHECKPOINTS_NAME, RUN_RECORD_NAME, read_cached_peers, write_cached_peers
from peer.contributing import Contributing
from peer.doorkeeper import RunDoorkeeper
from peer.events import Event
from peer.layouts import layout_digest_of
from peer.mailbox import Mailbox
from peer.manifest import RunManifest
from peer.node import Node, NodeIdentity, NodePorts
from peer.profile_file import load_contributor
from peer.version import SOFTWARE

T = TypeVar("T")

RUN_PROTOCOL = "/murmuration/run/1"
ASK_SECONDS = 10.0
"""For one member to answer with the run's record: a relayed dial and two small frames."""
LAST_LOOK_SECONDS = 2.0
"""On leaving, to remember who is there for the next time; a daemon that is just being started is not waited for."""
NUM_SILENT_ANNOUNCEMENTS = 3
SILENT_SECONDS = 8.0
"""Three announcements and the time to look them up: a member that was not heard of for so long is not there."""
REPUBLISH_SECONDS = 600.0
RUN_RECORD_LIFE_SECONDS = 7 * 86400.0 - 3600.0
"""Just under the longest life that holders accept."""
CACHED_ONLY_SECONDS = 6.0
"""How long addresses of earlier sessions are tried before a peer that has the run record goes on alone."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """What the network side needs to know; plain values, so that it can be sent to another process."""

    run_id: str
    role: str
    peers: tuple[str, ...]
    data_dir: str
    identity: str
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    join_timeout_seconds: float
    name: str
    checkpoint_minutes: float
    checkpoints_kept: int
    upload_limit_mbit: float | None
    download_limit_mbit: float | None
    contributor_key: str = ""
    """Path of the contributor's key file; empty: the machine stands for itself."""

    @property
    def limits(self) -> RateLimits:
        """What the volunteer lets the line carry."""
        limits = self.upload_limit_mbit, self.download_limit_mbit
        return RateLimits(*(None if limit is None else 1e6 * limit for limit in limits))


class NetworkSide:
    """One peer's network side.

    Args:
        emit: takes every event.
        on_addresses: called with the dialable addresses once the host is up.
        make_mailbox: given the signed manifest, returns the mailbox to work on and the device's name.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        emit: Callable[[Event], None],
        on_addresses: Callable[[list[str]], None],
        make_mailbox: Callable[[RunRecord, RunManifest], Awaitable[tuple[Mailbox, str]]],
    ) -> None:
        self._spec = spec
        self._emit = emit
        self._on_addresses = on_addresses
        self._make_mailbox = make_mailbox
        self._leave_reason: str | None = None
        self._leaving = asyncio.Event()
        self._met_members = asyncio.Event()
        self._most_members = 0
        self._node: Node | None = None

    def leave(self, reason: str) -> None:
        """Leave in an orderly way; before the node runs, as soon as it would."""
        self._leave_reason = reason
        self._leaving.set()
        if self._node is not None:
            self._node.leave(reason)

    async def run(self) -> None:
        """Join, take part, leave.

        Raises:
            LocalFault: what stopped it, with what its owner can do.
        """
        spec = self._spec
        folder = Path(spec.data_dir)
        identity = Identity.load_or_create(spec.identity)
        key_path = Path(spec.contributor_key)
        contributor = load_contributor(key_path, create=True) if spec.contributor_key else None
        async with contextlib.AsyncExitStack() as stack:
            host = await stack.enter_async_context(P2pdHost(identity, spec.listen, spec.announce, limits=spec.limits))
            store = HivemindStore(host)
            await store.start()
            stack.push_async_callback(store.close)
            self._on_addresses(host.addresses())
            found = await self._find_unless_left(store, host, folder)
            if found is None:
                return
            record, manifest = found
            _keep_record(folder / RUN_RECORD_NAME, record)
            serve_run(host, record)
            mailbox, device = await self._make_mailbox(record, manifest)
            node = self._build_node(identity, contributor, host, store, manifest, mailbox, device)
            self._node = node
            # Until a round has measured the line: nobody should be given more to reduce than may be sent.
            node.links.traffic.upload_bits_per_second = spec.limits.upload_bits_per_second or 0.0
            if self._leave_reason is not None:
                node.leave(self._leave_reason)

            shown = host.addresses()

            async def tell_restart() -> None:
                nonlocal shown
                if host.addresses() != shown:
                    shown = host.addresses()
                    self._on_addresses(shown)
                seconds = host.last_downtime_seconds
                self._emit(events.DaemonRestarted(at=time.time(), peer_id=host.peer_id, seconds=seconds))

            host.add_restart_listener(tell_restart)
            background = [
                asyncio.create_task(self._build_company(store, host, folder, node).run()),
                asyncio.create_task(self._republish(store, record)),
            ]
            if contributor is not None:
                profile = Contributing(store, contributor, key_path, spec.run_id, identity.peer_id, time.time)
                background.append(asyncio.create_task(profile.run()))
            try:
                await node.run()
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                with contextlib.suppress(PeerFault, LocalFault, OSError, TimeoutError):
                    async with asyncio.timeout(LAST_LOOK_SECONDS):
                        await self._cache_peers(host, folder)

    def _build_node(
        self,
        identity: Identity,
        contributor: Identity | None,
        host: P2pdHost,
        store: HivemindStore,
        manifest: RunManifest,
        mailbox: Mailbox,
        device: str,
    ) -> Node:
        spec = self._spec
        key = contributor.public_key if contributor is not None else b""
        session = secrets.randbits(62)
        who = NodeIdentity(identity, spec.run_id, session, spec.role, device, spec.name, SOFTWARE, contributor_key=key)
        rule = AccessRule(spec.run_id, manifest.hash, SOFTWARE)
        ports = NodePorts(
            host,
            store,
            RunDoorkeeper(rule, identity.peer_id, spec.role),
            time.time,
            time.monotonic,
            _in_thread,
            self._emit,
            random.Random(secrets.randbits(64)),
        )
        owner = CheckpointOwner(
            spec.run_id, identity.peer_id, manifest.hash, layout_digest_of(manifest), tuple(mailbox.sizes)
        )
        path, every_seconds = Path(spec.data_dir) / CHECKPOINTS_NAME, 60.0 * spec.checkpoint_minutes
        folder = CheckpointFolder(path, owner, every_seconds, spec.checkpoints_kept)
        return Node(who, manifest, ports, mailbox, folder)

    # ---------------------------------------------------------------------------------------------- finding the run

    async def _find_unless_left(
        self, store: HivemindStore, host: P2pdHost, folder: Path
    ) -> tuple[RunRecord, RunManifest] | None:
        finding = asyncio.create_task(self._find_run(store, host, folder))
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait({finding, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return None if leaving.done() else finding.result()
        finally:
            for task in (finding, leaving):
                task.cancel()
            await asyncio.gather(finding, leaving, return_exceptions=True)

    async def _find_run(self, store: HivemindStore, host: P2pdHost, folder: Path) -> tuple[RunRecord, RunManifest]:
        """The run's signed manifest: from any member, or from this machine when the run begins here."""
        spec = self._spec
        local, damage = _local_record(folder / RUN_RECORD_NAME, spec.run_id)
        if local is not None:
            serve_run(host, local)
        invalid: list[str] = [damage] if damage else []
        addresses = list(dict.fromkeys([*spec.peers, *read_cached_peers(folder / "cached_peers.json")]))
        patience = spec.join_timeout_seconds
        if local is not None and not spec.peers:
            patience = min(patience, CACHED_ONLY_SECONDS) if addresses else 0.0
        began = time.monotonic()
        pause = ALONE_SECONDS
        while True:
            num_members = await store.bootstrap(addresses) if addresses else 0
            found = await ask_for_run(host, spec.run_id, addresses, invalid.append) if num_members else None
            if found is None and num_members:
                found = await store.fetch_run(spec.run_id)
            if found is not None:
                record = decode_run_record(found, run_id=spec.run_id)
                if local is not None and local.revision > record.revision:
                    record = local
                manifest = _manifest_of(record)
                if local is not None:
                    _refuse_two_manifests(local, record, manifest, folder / RUN_RECORD_NAME)
                return record, manifest
            if num_members and local is not None:
                return local, _manifest_of(local)
            waited = time.monotonic() - began
            if waited >= patience:
                if local is not None and not spec.peers:
                    return local, _manifest_of(local)
                raise _not_found(spec, host.peer_id, addresses, num_members, waited, invalid)
            if local is None and all(parse_peer_multiaddr(address)[0] == host.peer_id for address in addresses):
                raise _not_found(spec, host.peer_id, addresses, num_members, waited, invalid)
            reason = (
                f"{num_members} members answer, but none has the record of {spec.run_id} yet"
                if num_members
                else f"none of {len(addresses)} known addresses answers"
            )
            self._emit(events.WaitingForPeers(at=time.time(), peer_id=host.peer_id, reason=reason, seconds=waited))
            await asyncio.sleep(min(pause, max(0.1, patience - waited)))
            pause = min(2 * pause, CONNECTED_SECONDS)

    # ------------------------------------------------------------------------------------------------ staying there

    def _build_company(self, store: HivemindStore, host: P2pdHost, folder: Path, node: Node) -> Company:
        cache = folder / "cached_peers.json"

        async def look() -> int:
            addresses = list(dict.fromkeys([*self._spec.peers, *read_cached_peers(cache)]))
            try:
                num_members = await store.bootstrap(addresses)
                if num_members:
                    await node.membership.look()
                    await self._cache_peers(host, folder)
            except (PeerFault, LocalFault, OSError) as fault:
                log.warning("looking for members failed: %s", fault)
                return 0
            if num_members > self._most_members:
                self._most_members = num_members
                self._met_members.set()
            return num_members

        async def rejoin() -> None:
            if node.mailbox.network.ready:
                await node.membership.announce()
                await node.membership.introduce()

        return Company(
            node.me,
            look,
            lambda: {
                record.peer_id: (record.session, record.sequence)
                for record in node.membership.view.members(time.time())
                if record.peer_id != node.me
            },
            rejoin,
            self._emit,
            silent_seconds=NUM_SILENT_ANNOUNCEMENTS * node.manifest.network.announce_seconds + SILENT_SECONDS,
            wall_clock=time.time,
            randomness=random.Random(secrets.randbits(64)),
        )

    async def _cache_peers(self, host: P2pdHost, folder: Path) -> None:
        cache = folder / "cached_peers.json"
        connected = await host.connected_addresses()
        found = [address for peer_id in sorted(connected) for address in connected[peer_id]]
        if found:
            write_cached_peers(cache, [*found, *read_cached_peers(cache)])

    async def _republish(self, store: HivemindStore, record: RunRecord) -> None:
        """Any member keeps the run findable, at once when it meets others; the owner's machine may be away."""
        encoded = encode_run_record(record)
        while True:
            self._met_members.clear()
            try:
                await store.publish_run(self._spec.run_id, encoded, time.time() + RUN_RECORD_LIFE_SECONDS)
            except (PeerFault, LocalFault) as fault:
                log.warning("publishing the run record failed: %s", fault)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPUBLISH_SECONDS * random.uniform(0.5, 1.0)):
                    await self._met_members.wait()


async def ask_for_run(
    host: P2pdHost, run_id: str, addresses: list[str], on_invalid: Callable[[str], None] = lambda reason: None
) -> bytes | None:
    """The run's record from the members at `addresses`, asked directly; None when none of them has it.

    The DHT has it too, but only once its holders have met. `on_invalid` is told of records that are not the owner's.
    """
    for address in addresses:
        peer_id, _ = parse_peer_multiaddr(address)
        try:
            stream = await host.open_stream(peer_id, RUN_PROTOCOL, ASK_SECONDS)
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    await stream.send(run_id.encode())
                    found = await stream.receive(MAX_RUN_RECORD_BYTES)
                    if _is_signed(found, run_id, lambda reason: on_invalid(f"{address} gave {reason}")):  # noqa: B023
                        return found
            finally:
                await stream.close()
        except (PeerFault, TimeoutError) as fault:
            log.debug("%s did not give the run record: %s", address, fault)
    return None


def serve_run(host: P2pdHost, record: RunRecord) -> None:
    """Answer `ask_for_run` of others for this run."""
    encoded = encode_run_record(record)

    async def serve(stream: Stream) -> None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                asked = await stream.receive(MAX_RUN_ID_LENGTH)
                if asked != record.run_id.encode():
                    raise PeerFault(stream.remote, f"asked for another run than {record.run_id}")
                await stream.send(encoded)
                # libp2p has no half-close: wait until the other side has read and closed.
                with contextlib.suppress(PeerFault):
                    await stream.receive(1)
        except TimeoutError as error:
            raise PeerUnreachable(stream.remote, f"asked for no run within {ASK_SECONDS:.0f} s") from error

    host.handle(RUN_PROTOCOL, serve)


async def _in_thread(work: Callable[[], T], /) -> T:
    return await asyncio.to_thread(work)


def _is_signed(record: bytes, run_id: str, on_invalid: Callable[[str], None]) -> bool:
    try:
        decode_run_record(record, run_id=run_id)
    except PeerFault as fault:
        on_invalid(fault.what)
        return False
    return True


def _not_found(
    spec: NetworkSpec, me: PeerId, addresses: list[str], num_members: int, waited: float, invalid: list[str]
) -> LocalFault:
    """Why the run was not found, and what to do."""
    if invalid:
        return Incompatible(
            f"no valid record of {spec.run_id} was found: {invalid[0]}; expected one signed by the run's owner; check "
            "the run id with whoever gave it to you, and give --peers of another member"
        )
    if addresses and all(parse_peer_multiaddr(address)[0] == me for address in addresses):
        return UsageFault(
            f"{addresses[0]} is the address of this peer's own identity; expected another member's; if another process "
            "uses this key file, give this one its own --identity file"
        )
    return NobodyReachable(_nobody(spec, addresses, num_members, waited))


def _nobody(spec: NetworkSpec, addresses: list[str], num_members: int, waited: float) -> str:
    if not addresses:
        return (
            f"no address of a member of {spec.run_id} is known and its run record is not on this machine; expected "
            "--peers MULTIADDR of any member, or the data folder of the machine that made the run."
        )
    if num_members:
        return (
            f"{num_members} members answered within {waited:.0f} s, but none knows the run {spec.run_id}; "
            "check the run id with whoever gave it to you."
        )
    return (
        f"nobody answered at {len(addresses)} known addresses within {waited:.0f} s (first: {addresses[0]}); expected "
        "one live member of the run; check the address, this machine's network, or raise --join-timeout."
    )


def _local_record(path: Path, run_id: str) -> tuple[RunRecord | None, str]:
    """The run record on this machine, or why it cannot be used (empty when there is none)."""
    try:
        return decode_run_record(path.read_bytes(), run_id=run_id), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path} cannot be read ({error.strerror})"
    except PeerFault as fault:
        return None, f"{path} holds {fault.what}"


def _manifest_of(record: RunRecord) -> RunManifest:
    try:
        return RunManifest.from_bytes(record.manifest)
    except ValueError as error:
        raise Incompatible(
            f"the manifest of {record.run_id} does not fit this software ({SOFTWARE}): {error} "
            "Expected a manifest of this version; install the version that the run's owner uses."
        ) from error


def _refuse_two_manifests(local: RunRecord, found: RunRecord, manifest: RunManifest, path: Path) -> None:
    """One revision is one manifest; members of two would refuse each other's every stream."""
    if local.revision != found.revision or local.manifest == found.manifest:
        return
    try:
        different = RunManifest.from_bytes(local.manifest).differences(manifest)
    except ValueError:  # of other software, which could not run it: only the members' can be meant
        return
    raise Incompatible(
        f"the members of {found.run_id} have another manifest of revision {found.revision} than {path}: "
        f"{'; '.join(different)}. Expected one manifest per revision: move that file away to join them, or ask the "
        "run's owner for a new revision."
    )


def _keep_record(path: Path, record: RunRecord) -> None:
    """Keep the signed manifest, so that this peer can restart the run even if it finds nobody."""
    data = encode_run_record(record)
    try:
        if not path.exists() or path.read_bytes() != data:
            draft = path.with_suffix(".draft")
            draft.write_bytes(data)
            draft.replace(path)
    except OSError as error:
        log.warning("%s could not be written (%s); the run record will be fetched again next time", path, error)
