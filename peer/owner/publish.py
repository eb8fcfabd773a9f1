"""The owner's errands in the network: publish a revision, see which one the swarm has."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from itertools import zip_longest
from statistics import median_high

from dht.admission.admission import Admission
from dht.admission.proofs import NONCE_BYTES
from dht.admission.tickets import ERRAND_SECONDS, SERIAL_BYTES, Pass, encode_pass, issue_ticket
from dht.errors import NobodyReachable, UsageFault
from dht.host import Host
from dht.identity.keys import Identity
from dht.kademlia.census import members_here
from dht.observer.network import ObserverEntry, observer_network
from dht.records.signed_records import PeerRecord, RunRecord, decode_run_record, encode_run_record
from dht.store import RecordStore
from peer.config.manifest import RunManifest
from peer.console.progress import tell_progress
from peer.network.membership.first_look import look_first
from peer.network.membership.manifest_revisions import WHEN_JOINING, member_rules
from peer.network.membership.run_protocol import RUN_RECORD_LIFE_SECONDS, ask_for_run
from peer.owner.owned_run import OwnedRun

LOOK_SECONDS = 1.0
LEAST_LEAD_VERSIONS = 2
"""A change of the outer rate must reach every peer before the round that it counts from."""


@contextlib.asynccontextmanager
async def on_errand(
    owned: OwnedRun, addresses: list[str], timeout_seconds: float
) -> AsyncIterator[tuple[RecordStore, RunRecord | None]]:
    """Connect with a key of its own, which the owner's key vouches for during some minutes.

    Yields:
        the swarm's store, and the newest revision that members have.

    Raises:
        NobodyReachable: no member answered in time.
    """
    if not addresses:
        raise NobodyReachable(
            f"no address of a member of {owned.run_id} is known in {owned.folder}; expected --peers MULTIADDR of any "
            "live member; take one from what `peer seed` prints"
        )
    tell_progress(f"asking members of {owned.run_id}, for {timeout_seconds:.0f} s at most")
    await asyncio.to_thread(look_first, owned.run_id, addresses, timeout_seconds, asks=False)
    identity = Identity.generate()
    expires_at = int(time.time() + ERRAND_SECONDS)
    serial = secrets.token_bytes(SERIAL_BYTES)
    ticket = issue_ticket(owned.owner, owned.run_id, "errand", identity.public_key, expires_at, serial)
    admission = Admission(
        identity,
        owned.run_id,
        time.time,
        lambda: secrets.token_bytes(NONCE_BYTES),
        ticket_pass=encode_pass(Pass(ticket)),
        rules=member_rules(owned.manifest, owned.owner.public_key, WHEN_JOINING),
    )
    async with observer_network("p2pd", addresses, ObserverEntry(identity, admission, _knows_rules)) as (host, store):
        end = time.monotonic() + timeout_seconds
        while not await store.bootstrap(addresses):
            if time.monotonic() >= end:
                raise NobodyReachable(
                    f"no member of {owned.run_id} answered at {len(addresses)} addresses within "
                    f"{timeout_seconds:.0f} s (first: {addresses[0]}); expected one live member; check the address"
                )
            await asyncio.sleep(LOOK_SECONDS)
        if found := await store.fetch_run(owned.run_id):
            yield store, decode_run_record(found, run_id=owned.run_id)
        else:
            yield store, await ask_for_run(host, admission, addresses)


async def _knows_rules(host: Host, addresses: list[str]) -> None:
    """The owner need not ask who is a member."""


def live_records(owned: OwnedRun, addresses: list[str], timeout_seconds: float) -> list[PeerRecord]:
    """What members say of themselves now. Blocks.

    Raises:
        NobodyReachable: no member answered in time.
    """

    async def ask() -> list[PeerRecord]:
        async with on_errand(owned, addresses, timeout_seconds) as (store, _):
            return await members_here(store, owned.run_id)

    return asyncio.run(ask())


def publish(owned: OwnedRun, addresses: list[str], timeout_seconds: float) -> int:
    """Give the signed manifest to members, who pass it on; returns how many took it at once.

    Raises:
        UsageFault: changes are not signed, the swarm has this or a later revision, or a change of the outer rate counts
            from a version that is too near.
        NobodyReachable: no member answered in time.
    """
    if owned.draft is not None:
        raise UsageFault(
            f"{owned.folder} has changes that are not signed; expected a signed manifest, because nobody takes "
            "another; run `peer manifest sign` first"
        )
    return asyncio.run(_publish(owned, addresses, timeout_seconds))


async def _publish(owned: OwnedRun, addresses: list[str], timeout_seconds: float) -> int:
    async with on_errand(owned, addresses, timeout_seconds) as (store, held):
        if held is not None and held.revision > owned.record.revision:
            raise UsageFault(
                f"the swarm has revision {held.revision} of the manifest and this folder revision "
                f"{owned.record.revision}; expected a later one, because an older one never replaces a newer; take "
                "the newest run.record from the machine that signed it"
            )
        if held is not None and held.revision == owned.record.revision and held.manifest != owned.record.manifest:
            raise UsageFault(
                f"the swarm has another manifest of revision {held.revision}; expected one manifest per revision; sign "
                "your change as the next revision"
            )
        records = await members_here(store, owned.run_id)
        _check_lead(owned, held, _usual_version([record.versions for record in records]))
        encoded, life = encode_run_record(owned.record), time.time() + RUN_RECORD_LIFE_SECONDS
        num_copies = await store.publish_run(owned.run_id, encoded, life)
        if not num_copies and (held is None or held.revision < owned.record.revision):
            raise NobodyReachable(
                f"no member of {owned.run_id} took revision {owned.record.revision}; expected at least one; try again"
            )
        return num_copies


def _usual_version(versions: Sequence[tuple[int, ...]]) -> int:
    """The version that most members have reached, of the fragment that is furthest: one that boasts stops no change."""
    per_fragment = zip_longest(*(known for known in versions if known))
    return max((median_high(one for one in known if one is not None) for known in per_fragment), default=0)


def _check_lead(owned: OwnedRun, held: RunRecord | None, newest_version: int) -> None:
    known = [] if held is None else RunManifest.from_bytes(held.manifest).model_dump(mode="json")["changes"]
    for change in owned.manifest.changes:
        is_new = change.model_dump(mode="json") not in known
        if is_new and change.outer_lr is not None and change.at_version < newest_version + LEAST_LEAD_VERSIONS:
            raise UsageFault(
                f"outer_lr {change.outer_lr:g} counts from version {change.at_version}, and the run is at version "
                f"{newest_version}; expected at least {newest_version + LEAST_LEAD_VERSIONS}, so that it reaches every "
                "peer before that round; edit with a later --at-version and sign again"
            )
