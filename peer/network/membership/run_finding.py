"""Finds a run's signed manifest: from members, the DHT, or this machine. Explains why a run was not found."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dht.admission.admission import Admission
from dht.ground.errors import Incompatible, LocalFault, NobodyReachable, PeerFault
from dht.ground.host import PeerId
from dht.ground.quantities import plural
from dht.ground.regular_files import read_regular, write_whole
from dht.identity.multiaddr import parse_peer_multiaddr
from dht.kademlia.dht_store import DIAL_SECONDS, MAX_BOOTSTRAP_DIALS, HivemindStore
from dht.p2pd.host import P2pdHost
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, RunRecord, decode_run_record, encode_run_record
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig
from peer.network.membership.address_check import (
    JOIN_ADVICE,
    another_peer,
    is_other_peer,
    nobody_answered,
    not_admitted,
    own_address,
    why_nobody,
)
from peer.network.membership.manifest_revisions import apply_member_rules, manifest_of
from peer.network.membership.members_here import addresses_now
from peer.network.membership.mistyped_run_id import in_other_run, other_run
from peer.network.membership.reconnect import ALONE_SECONDS, CONNECTED_SECONDS
from peer.network.membership.run_protocol import ask_for_run, reached_at

log = logging.getLogger(__name__)

CACHED_ONLY_SECONDS = 6.0
"""Time to try addresses of earlier sessions before a peer with the run record continues alone."""


@dataclass
class _Complaints:
    """Reasons why the run was not found so far, for the final sentence."""

    invalid: list[str] = field(default_factory=list)
    refusals: dict[PeerId, str] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    """Address -> error of its first dial; a second dial fails at once, because the daemon remembers the failure."""
    other_runs: list[str] = field(default_factory=list)

    def refused(self, remote: PeerId, reason: str) -> None:
        other = other_run(reason)
        if other is None:
            self.refusals[remote] = reason
        else:
            self.other_runs.append(other)

    def not_reached(self, address: str, what: str) -> None:
        if is_other_peer(what) or address not in self.unreachable:
            self.unreachable[address] = what

    @property
    def wrong_peers(self) -> list[str]:
        """Addresses at which a peer with a different key answers."""
        return [address for address, what in self.unreachable.items() if is_other_peer(what)]

    @property
    def reasons(self) -> dict[str, str]:
        """Address -> the reason why no peer was reached there, in words."""
        return {address: dial_reason(address, what) for address, what in self.unreachable.items()}

    @property
    def is_final(self) -> bool:
        """Whether a member refused this peer or trains a different run, so that waiting is useless."""
        return bool(self.refusals) or bool(self.other_runs)


async def find_run(
    config: PeerConfig,
    store: HivemindStore,
    host: P2pdHost,
    admission: Admission,
    local: RunRecord | None,
    damage: str,
    on_waiting: Callable[[str, float], None],
) -> tuple[RunRecord, RunManifest]:
    """Find the run's signed manifest: from any member, or from this machine if the run begins here.

    Members are asked directly before the DHT. Members of a private run answer in the DHT only after both sides have its
    rules, which this function sets in `admission`.

    Args:
        local: the record on this machine.
        damage: the reason why there is no local record.
        on_waiting: called with (reason, seconds) while no member has the record.

    Raises:
        LocalFault: the run was not found in time; the message gives the reason and advice.
    """
    complaints = _Complaints([damage] if damage else [])
    addresses = addresses_now(config)
    patience = config.join_timeout_seconds
    if local is not None and not config.peers:
        patience = min(patience, CACHED_ONLY_SECONDS) if addresses else 0.0
    began = time.monotonic()
    pause = ALONE_SECONDS
    while True:
        reached = await reached_at(host, addresses[:MAX_BOOTSTRAP_DIALS], DIAL_SECONDS, complaints.not_reached)
        for address in reached:
            complaints.unreachable.pop(address, None)
        record = await ask_for_run(host, admission, reached, complaints.invalid.append, complaints.refused)
        if record is not None:
            apply_member_rules(admission, record)
        num_members = await store.bootstrap(addresses) if addresses else 0
        if record is None and num_members and (found := await store.fetch_run(config.run_id)) is not None:
            record = decode_run_record(found, run_id=config.run_id)
        if record is not None:
            if local is not None and local.revision > record.revision:
                record = local
            manifest = manifest_of(record)
            if local is not None:
                refuse_two_manifests(local, record, manifest, config.run_record_path)
            apply_member_rules(admission, record)
            return record, manifest
        if num_members and local is not None:
            return local, manifest_of(local)
        waited = time.monotonic() - began
        if waited >= patience:
            if local is not None and not config.peers:
                return local, manifest_of(local)
            raise _not_found(config, host.peer_id, addresses, num_members, waited, complaints)
        is_alone = all(parse_peer_multiaddr(address)[0] == host.peer_id for address in addresses)
        if ((local is None or config.peers) and is_alone) or complaints.is_final:
            raise _not_found(config, host.peer_id, addresses, num_members, waited, complaints)
        reason = (
            f"{plural(num_members, 'member')} answered, but no member has the record of {config.run_id} yet"
            if num_members
            else why_nobody(addresses, complaints.reasons, time.time() + patience - waited)
        )
        on_waiting(reason, waited)
        addresses = await _later_addresses(config, addresses, min(pause, max(0.1, patience - waited)))
        pause = min(2 * pause, CONNECTED_SECONDS)


async def _later_addresses(config: PeerConfig, known: list[str], seconds: float) -> list[str]:
    """Return the addresses to dial after a pause, which ends early when a new address appears."""
    end = time.monotonic() + seconds
    while True:
        await asyncio.sleep(min(ALONE_SECONDS, max(0.0, end - time.monotonic())))
        found = addresses_now(config)
        if time.monotonic() >= end or not set(found) <= set(known):
            return found


def dial_reason(address: str, what: str) -> str:
    """Return the reason for a failed dial in words, from the daemon's error."""
    if address.startswith("/dns") and "no good addresses" in what:
        return "this name has no address, or it cannot be looked up now"
    known = ("connection refused", "no route to host", "network is unreachable", "this peer's own address")
    return next((reason for reason in known if reason in what), "no answer")


def _not_found(
    config: PeerConfig, me: PeerId, addresses: list[str], num_members: int, waited: float, complaints: _Complaints
) -> LocalFault:
    """Return the fault that explains why the run was not found, with advice."""
    if complaints.refusals:
        remote, reason = next(iter(complaints.refusals.items()))
        return not_admitted(config.run_id, me, remote, reason)
    if complaints.other_runs:
        return in_other_run(config.run_id, complaints.other_runs[0])
    if complaints.invalid:
        return Incompatible(
            f"no valid record of {config.run_id} was found: {complaints.invalid[0]}; expected a record signed by the "
            "run's owner; ask the person who gave you the run id, and give the address of another member with "
            "--peers"
        )
    if addresses and all(parse_peer_multiaddr(address)[0] == me for address in addresses):
        return own_address(addresses[0])
    if complaints.wrong_peers and not num_members:
        return another_peer(complaints.wrong_peers[0])
    return NobodyReachable(_nobody(config.run_id, addresses, num_members, waited, complaints.reasons))


def _nobody(run_id: str, addresses: list[str], num_members: int, waited: float, reasons: Mapping[str, str]) -> str:
    if not addresses:
        return (
            f"no address of a member of {run_id} is known and its run record is not on this machine; expected "
            "--peers MULTIADDR of any member, or the data folder of the machine that made the run."
        )
    if num_members:
        return (
            f"{plural(num_members, 'member')} answered within {waited:.0f} s, but no member knows the run {run_id}; "
            "ask the person who gave you the run id."
        )
    return nobody_answered(run_id, addresses, waited, reasons, JOIN_ADVICE)


def local_record(path: Path, run_id: str) -> tuple[RunRecord | None, str]:
    """Return the run record on this machine, or the reason why it is unusable (empty if there is none)."""
    try:
        return decode_run_record(read_regular(path, MAX_RUN_RECORD_BYTES), run_id=run_id), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path} cannot be read ({error.strerror})"
    except PeerFault as fault:
        return None, f"{path} holds {fault.what}"


def keep_record(path: Path, record: RunRecord) -> None:
    """Store the signed manifest, so that this peer can restart the run without other members.

    A later record on the disk stays: in the owner's folder a revision may have been signed while this process ran.
    """
    kept, _ = local_record(path, record.run_id)
    if kept is not None and (kept.revision > record.revision or kept == record):
        return
    try:
        write_whole(path, encode_run_record(record))
    except OSError as error:
        log.warning("%s could not be written (%s); this peer will fetch the run record again next time", path, error)


def refuse_two_manifests(local: RunRecord, found: RunRecord, manifest: RunManifest, path: Path) -> None:
    """Refuse two manifests of one revision, whose members would refuse each other's streams."""
    if local.revision != found.revision or local.manifest == found.manifest:
        return
    try:
        different = RunManifest.from_bytes(local.manifest).differences(manifest)
    except ValueError:  # a manifest of different software, which could not run it, so the members' manifest applies
        return
    raise Incompatible(
        f"the members of {found.run_id} have another manifest of revision {found.revision} than {path}: "
        f"{'; '.join(different)}. Expected one manifest per revision: move that file away to join them, or ask the "
        "run's owner for a new revision."
    )
