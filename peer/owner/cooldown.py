"""Where on the run's clock a cool-down begins: asked of the members, so that the owner signs a number of tokens.

A version is not enough: a peer that comes later could not know how many tokens had been committed when it was reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import median_high

from dht.errors import NobodyReachable
from dht.records.signed_records import PeerRecord
from peer.owner.owned_run import OwnedRun
from peer.owner.publish import on_errand
from peer.run_clock import usual_clock


def first_token(records: Sequence[PeerRecord], at_version: int) -> int | None:
    """The clock when the lowest version of the fragments will be `at_version`, at the run's usual pace.

    Where that version is here already, the clock as it is. Both are those of the middle member: one that boasts moves
    nothing. None when nobody says.
    """
    known = [record for record in records if record.versions and record.lineage_tokens]
    if not known:
        return None
    tokens = usual_clock(record.lineage_tokens for record in known)
    version = median_high(min(record.versions) for record in known)
    return tokens if at_version <= version or not version else tokens * at_version // version


def ask_first_token(owned: OwnedRun, addresses: list[str], at_version: int, timeout_seconds: float) -> int:
    """`first_token` of the members that are online.

    Raises:
        NobodyReachable: no member answered in time, or none has an anchor.
    """

    async def ask() -> int | None:
        async with on_errand(owned, addresses, timeout_seconds) as errand:
            return first_token(await errand.records(owned.run_id), at_version)

    try:
        found = asyncio.run(ask())
    except NobodyReachable as fault:
        raise NobodyReachable(f"{fault}; or give --cooldown-from TOKENS yourself") from fault
    if found is None:
        raise NobodyReachable(
            f"no member of {owned.run_id} says how many tokens are committed; expected one that trains or serves; give "
            "--cooldown-from TOKENS, or try again"
        )
    return found
