"""An observer: a member of the DHT that reads a run, publishes no record, and never counts as a trainer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from averaging.signing.receipt_file import RunFrame, receipt_of
from averaging.signing.round_signatures import Checker, Scope
from averaging.transfer.client import fetch_log
from dht.admission.handshake_frames import AccessRule
from dht.ground.errors import LocalFault, NobodyReachable
from dht.ground.host import Host, PeerId
from dht.ground.quantities import plural
from dht.ground.store import RecordStore
from dht.identity.keys import verify
from dht.kademlia.census import members_here
from dht.observer.host_choice import HostBackend
from dht.observer.network import ObserverEntry, observer_network
from dht.records.peer_record import PeerRecord
from dht.records.signed_manifest import RunRecord, decode_run_record
from peer.config.averaging_rules import codec_of, codecs_of, limits_of
from peer.config.manifest import RunManifest, manifest_hash, manifest_rules
from peer.config.model_shapes import seed_sizes
from peer.files.checked_folder import files_folder
from peer.files.fetching import FileFetcher
from peer.network.anchors.fetcher import Fetched, Fetcher
from peer.network.membership.address_check import lacks_network, nobody_answered
from peer.network.membership.manifest_revisions import manifest_of
from peer.network.membership.mistyped_run_id import in_other_run
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.membership.run_protocol import run_of
from peer.observe.signed_work import signed_work
from peer.version import full_version
from peer.view.run_view import NUM_COMMITS, RunView, run_view_of

LOOK_SECONDS = 1.0
MAX_FAULTS_SHOWN = 3
_HINT = "; a private run needs --invite FILE"


@dataclass(frozen=True, slots=True)
class _Nothing:
    """The empty state of an observer."""

    num_values: int
    lineage_tokens: int = 0
    digest: bytes = b""


class _ObservedMembers:
    """The `Members` port over the records that an observer has read."""

    def __init__(self, records: list[PeerRecord]) -> None:
        self._records = records
        self.reasons: list[str] = []

    def members(self) -> list[PeerRecord]:
        """Return the members that have not failed."""
        return self._records

    def suspect(self, peer_id: PeerId, reason: str) -> None:
        """Leave the member out from now on."""
        self.reasons.append(f"{peer_id[-8:]}: {reason}")
        self._records = [record for record in self._records if record.peer_id != peer_id]


@dataclass(frozen=True, slots=True)
class RunObserver:
    """A connected observer of one run."""

    run_id: str
    manifest: RunManifest
    host: Host
    store: RecordStore
    handshake_policy: RunHandshakePolicy

    async def records(self) -> list[PeerRecord]:
        """Return valid live records of the run's peers with the manifest's number of fragments."""
        records = await members_here(self.store, self.run_id)
        return [record for record in records if self.has_shape(record, self.manifest)]

    @staticmethod
    def has_shape(record: PeerRecord, manifest: RunManifest) -> bool:
        """Return whether a record has as many fragments as the run; a peer without anchors announces none."""
        return len(record.versions) in (0, manifest.num_fragments)

    async def run_view(self, records: Sequence[PeerRecord], num_versions: int = NUM_COMMITS) -> RunView:
        """Return the run's figures: its members' claims, weighted by their work in the newest signed commits."""

        async def fetch(donor: PeerId, fragment: int, from_version: int) -> list[bytes]:
            return await fetch_log(self.host, self.handshake_policy, donor, fragment, from_version)

        run = RunFrame(self.run_id, self.manifest.hash, seed_sizes(self.manifest))
        work = await signed_work(records, fetch, run, verify, random.Random(), num_versions)
        return run_view_of(records, work, time.time())

    async def fetch_anchors(
        self,
        records: list[PeerRecord],
        on_progress: Callable[[int, int], None] = lambda done_bytes, total_bytes: None,
    ) -> list[Fetched]:
        """Fetch every fragment's state from all members that have it, confirmed by their digests.

        Raises:
            LocalFault: a fragment could not be fetched, or members contradict each other about it.
        """
        sizes, members = seed_sizes(self.manifest), _ObservedMembers(records)
        limits = limits_of(sizes, codecs_of(self.manifest, len(sizes)))
        checker = Checker(Scope(self.run_id, self.manifest.hash), verify)
        found: dict[int, Fetched] = {}

        async def adopt(index: int, fetched: Fetched) -> None:
            found[index] = fetched

        nothing = {index: _Nothing(size) for index, size in enumerate(sizes)}
        fetcher = Fetcher(self.host, self.handshake_policy, limits, members, checker)
        await fetcher.fetch_better(nothing, adopt, on_progress)
        missing = sorted(set(nothing) - set(found))
        if missing:
            raise LocalFault(
                f"fragments {missing} of {len(sizes)} could not be fetched from {plural(len(records), 'member')} "
                f"({'; '.join(members.reasons)[:300] or 'their data was refused'}); expected members that confirm "
                "each other's digests; try again while more of them are online"
            )
        return [found[index] for index in sorted(found)]

    async def fetch_files(self, data_dir: Path, patience_seconds: float) -> Path:
        """Fetch the files of the run into a data folder; return the subfolder that contains only these files.

        Raises:
            NobodyReachable: no member sent a file within this time.
            LocalFault: the folder is not writable.
        """

        async def donors() -> list[PeerId]:
            return [record.peer_id for record in await self.records()]

        fetcher = FileFetcher(
            self.host, self.handshake_policy, data_dir, self.manifest, donors, patience_seconds, asyncio.to_thread
        )
        await fetcher.run()
        return files_folder(data_dir, self.manifest)


def _handshake_policy(host: Host, record: RunRecord, entry: ObserverEntry | None) -> RunHandshakePolicy:
    rules = manifest_rules(record.manifest)
    rule = AccessRule(record.run_id, manifest_hash(record.manifest), full_version(), rules)
    return RunHandshakePolicy(rule, host.peer_id, "observer", None if entry is None else entry.admission)


def open_log(
    host: Host, record: RunRecord, entry: ObserverEntry | None = None
) -> Callable[[PeerId, int, int], Awaitable[list[bytes]]]:
    """Return a function that reads receipts from a run's members: (donor, fragment, from_version) -> one unchecked
    page.

    Args:
        entry: for a private run.

    Raises:
        Incompatible: the run's manifest does not fit this software.
    """
    run = run_frame(record)
    handshake_policy = _handshake_policy(host, record, entry)

    async def fetch(donor: PeerId, fragment: int, from_version: int) -> list[bytes]:
        frames = await fetch_log(host, handshake_policy, donor, fragment, from_version)
        return [receipt_of(run, frame) for frame in frames]

    return fetch


def run_frame(record: RunRecord) -> RunFrame:
    """Return the facts against which receipts of this run are checked.

    Raises:
        Incompatible: the run's manifest does not fit this software.
    """
    manifest = manifest_of(record)
    return RunFrame(record.run_id, manifest.hash, seed_sizes(manifest))


def codec_bytes(record: RunRecord) -> Callable[[int], int]:
    """Return a function from a number of values to their bytes in the run's codec.

    Raises:
        Incompatible: the run's manifest does not fit this software.
    """
    return codec_of(manifest_of(record)).encoded_num_bytes


@contextlib.asynccontextmanager
async def observe(
    run_id: str,
    addresses: list[str],
    timeout_seconds: float,
    backend: HostBackend = "p2pd",
    entry: ObserverEntry | None = None,
    *,
    listen: Sequence[str] = (),
    announce: Sequence[str] = (),
) -> AsyncIterator[RunObserver]:
    """Connect to a run as an observer with a temporary identity.

    Args:
        backend: the daemon by default, which fetches models faster.
        entry: for a private run, with an identity known to its members.
        listen, announce: for an observer that asks whether it can be reached there; only supported by the daemon.

    Raises:
        NobodyReachable: no member answered, or none knows the run, within the time.
        Incompatible: the run's manifest does not fit this software, or members refuse the entry.
        LocalFault: the transport cannot run on this machine.
    """
    async with observer_network(backend, addresses, entry, listen, announce) as (host, store):
        end = time.monotonic() + timeout_seconds
        while True:
            num_members = await store.bootstrap(addresses)
            found = await store.fetch_run(run_id) if num_members else None
            if found is not None:
                break
            other = await run_of(host, run_id, addresses) if entry is None and num_members else None
            if isinstance(other, str):
                raise in_other_run(run_id, other)
            if time.monotonic() >= end:
                answered = f"{plural(num_members, 'member')} answered, but none knows the run"
                what = answered if num_members else "no member answered"
                if not num_members and lacks_network(addresses):
                    raise NobodyReachable(nobody_answered(run_id, addresses, timeout_seconds, {}))
                raise NobodyReachable(
                    f"run {run_id}: {what} at {plural(len(addresses), 'address')} within {timeout_seconds:.0f} s"
                    f"{_why(store.dial_faults)}; expected one live member; check the run id and the "
                    f"address{_HINT if entry is None else ''}"
                )
            await asyncio.sleep(LOOK_SECONDS)
        record = decode_run_record(found, run_id=run_id)
        yield observer_of(host, store, record, entry)


def observer_of(host: Host, store: RecordStore, record: RunRecord, entry: ObserverEntry | None = None) -> RunObserver:
    """Return an observer of a run over an existing connection to its members.

    Args:
        entry: for a private run.

    Raises:
        Incompatible: the run's manifest does not fit this software.
    """
    return RunObserver(record.run_id, manifest_of(record), host, store, _handshake_policy(host, record, entry))


def _why(faults: dict[str, str]) -> str:
    from peer.network.membership.run_finding import dial_reason  # imported here because it loads the daemon's network

    def reason(address: str, what: str) -> str:
        return "a different peer answers there" if "mismatch" in what else dial_reason(address, what)

    shown = [f"{address}: {reason(address, what)}" for address, what in list(faults.items())[:MAX_FAULTS_SHOWN]]
    more = f" and {len(faults) - len(shown)} more" if len(faults) > len(shown) else ""
    return f" ({'; '.join(shown)}{more})" if shown else ""
