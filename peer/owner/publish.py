"""Send a signed revision to the members, which forward it."""

from __future__ import annotations

import asyncio
import time

from dht.ground.errors import NobodyReachable, UsageFault
from dht.records.signed_manifest import encode_run_record
from peer.network.membership.run_protocol import RUN_RECORD_LIFE_SECONDS
from peer.owner.owned_run import OwnedRun
from peer.owner.owner_connection import look_for_members, on_errand
from peer.owner.revision_start import check_lead, new_rates


def publish(owned: OwnedRun, addresses: list[str], timeout_seconds: float) -> int:
    """Send the signed manifest to members, which forward it, and return how many accepted it at once.

    Raises:
        UsageFault: there are unsigned changes, the swarm has this or a later revision, or a change of the outer rate
            applies from a version that is too near.
        NobodyReachable: no member answered in time.
    """
    if owned.draft is not None:
        raise UsageFault(
            f"{owned.folder} has changes that are not signed; expected a signed manifest, because members accept no "
            "other; run `peer manifest sign` first"
        )
    look_for_members(owned, addresses, timeout_seconds)
    return asyncio.run(_publish(owned, addresses, timeout_seconds))


async def _publish(owned: OwnedRun, addresses: list[str], timeout_seconds: float) -> int:
    async with on_errand(owned, addresses, timeout_seconds) as (observer, held):
        if held is not None and held.revision > owned.record.revision:
            raise UsageFault(
                f"the swarm has revision {held.revision} of the manifest, but this folder has revision "
                f"{owned.record.revision}; expected a later revision, because an older revision never replaces a newer "
                "one; copy the newest run.record from the machine that signed it"
            )
        if held is not None and held.revision == owned.record.revision and held.manifest != owned.record.manifest:
            raise UsageFault(
                f"the swarm has a different manifest of revision {held.revision}; expected one manifest per revision; "
                "sign your change as the next revision"
            )
        if rates := new_rates(owned, held):
            check_lead(rates, await observer.run_view(await observer.records()))
        encoded, life = encode_run_record(owned.record), time.time() + RUN_RECORD_LIFE_SECONDS
        num_copies = await observer.store.publish_run(owned.run_id, encoded, life)
        if not num_copies and (held is None or held.revision < owned.record.revision):
            raise NobodyReachable(
                f"no member of {owned.run_id} accepted revision {owned.record.revision}; expected at least one; "
                "try again"
            )
        return num_copies
