"""A short connection of the owner to the members, and the records that they announce."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator

from dht.admission.admission import Admission
from dht.admission.dated_proofs import NONCE_BYTES
from dht.admission.tickets import ERRAND_SECONDS, SERIAL_BYTES, Pass, encode_pass, issue_ticket
from dht.ground.errors import NobodyReachable
from dht.ground.host import Host
from dht.identity.keys import Identity
from dht.kademlia.census import members_here
from dht.observer.network import ObserverEntry, observer_network
from dht.records.peer_record import PeerRecord
from dht.records.signed_manifest import RunRecord, decode_run_record
from peer.console.progress import tell_progress
from peer.network.membership.address_check import look_first, nobody_answered
from peer.network.membership.manifest_revisions import WHEN_JOINING, member_rules
from peer.network.membership.run_protocol import ask_for_run
from peer.observe.observer import RunObserver, observer_of
from peer.owner.owned_run import OwnedRun
from peer.view.run_view import RunView

LOOK_SECONDS = 1.0


def look_for_members(owned: OwnedRun, addresses: list[str], timeout_seconds: float) -> None:
    """Wait until a member answers. Blocks before there is an event loop, so that Ctrl+C ends it at once.

    Raises:
        NobodyReachable: no address is known, or no member answered in time.
    """
    if not addresses:
        raise NobodyReachable(
            f"no address of a member of {owned.run_id} is known in {owned.folder}; expected --peers MULTIADDR of any "
            "online member; `peer seed` prints such an address"
        )
    tell_progress(f"asking members of {owned.run_id}, for at most {timeout_seconds:.0f} s")
    look_first(owned.run_id, addresses, timeout_seconds, asks=False)


@contextlib.asynccontextmanager
async def on_errand(
    owned: OwnedRun, addresses: list[str], timeout_seconds: float
) -> AsyncIterator[tuple[RunObserver, RunRecord | None]]:
    """Connect with a temporary key, for which the owner's key vouches for some minutes.

    Yields:
        an observer of the run, and the newest revision that members have.

    Raises:
        NobodyReachable: no member answered in time.
        Incompatible: the run's manifest does not fit this software.
    """
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
    entry = ObserverEntry(identity, admission, _knows_rules)
    async with observer_network("p2pd", addresses, entry) as (host, store):
        end = time.monotonic() + timeout_seconds
        while not await store.bootstrap(addresses):
            if time.monotonic() >= end:
                raise NobodyReachable(nobody_answered(owned.run_id, addresses, timeout_seconds, {}))
            await asyncio.sleep(LOOK_SECONDS)
        found = await store.fetch_run(owned.run_id)
        asked = None if found else await ask_for_run(host, admission, addresses)
        held = decode_run_record(found, run_id=owned.run_id) if found else asked
        yield observer_of(host, store, held or owned.record, entry), held


async def _knows_rules(host: Host, addresses: list[str]) -> None:
    """Do nothing: the owner does not need to ask for the list of members."""


def live_records(owned: OwnedRun, addresses: list[str], timeout_seconds: float) -> list[PeerRecord]:
    """Return the records that members announce now. Blocks.

    Raises:
        NobodyReachable: no member answered in time.
    """

    async def ask() -> list[PeerRecord]:
        async with on_errand(owned, addresses, timeout_seconds) as (observer, _):
            return await members_here(observer.store, owned.run_id)

    look_for_members(owned, addresses, timeout_seconds)
    return asyncio.run(ask())


def live_view(owned: OwnedRun, addresses: list[str], timeout_seconds: float) -> RunView:
    """Return the current state of the run. Blocks.

    Raises:
        NobodyReachable: no member answered in time.
    """

    async def ask() -> RunView:
        async with on_errand(owned, addresses, timeout_seconds) as (observer, _):
            return await observer.run_view(await observer.records())

    look_for_members(owned, addresses, timeout_seconds)
    return asyncio.run(ask())
