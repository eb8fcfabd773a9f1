"""Where the run is, asked of its members before the owner signs when something begins: version, and the run's clock.

A cool-down begins at a number of tokens. A peer that comes later could not know how many were committed at a version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from statistics import median_high

from dht.errors import NobodyReachable
from dht.records.signed_records import PeerRecord
from peer.owner.owned_run import OwnedRun
from peer.owner.publish import live_records
from peer.run_clock import usual_clock


def version_of(records: Sequence[PeerRecord]) -> int | None:
    """The lowest version of the fragments at the middle member; None when nobody says."""
    versions = [min(record.versions) for record in records if record.versions]
    return median_high(versions) if versions else None


def first_token(records: Sequence[PeerRecord], at_version: int) -> int | None:
    """The clock when the lowest version of the fragments will be `at_version`, at the run's usual pace.

    Where that version is here already, the clock as it is. Both are those of the middle member: one that boasts moves
    nothing. None when nobody says.
    """
    known = [record for record in records if record.versions and record.lineage_tokens]
    if not known:
        return None
    tokens = usual_clock(record.lineage_tokens for record in known)
    version = version_of(known)
    return tokens if not version or at_version <= version else tokens * at_version // version


def ask_first_token(owned: OwnedRun, addresses: list[str], at_version: int, timeout_seconds: float) -> int:
    """`first_token` of the members that are online.

    Raises:
        NobodyReachable: no member answered in time, or none has an anchor.
    """
    try:
        found = first_token(live_records(owned, addresses, timeout_seconds), at_version)
    except NobodyReachable as fault:
        raise NobodyReachable(f"{fault}; or give --cooldown-from TOKENS yourself") from fault
    if found is None:
        raise NobodyReachable(
            f"no member of {owned.run_id} says how many tokens are committed; expected one that trains or serves; give "
            "--cooldown-from TOKENS, or try again"
        )
    return found


def end_in_words(owned: OwnedRun, at_version: int, addresses: list[str], timeout_seconds: float) -> str:
    """When a run ends that its owner ends at this version, next to where its members are now, if one answers."""
    now = None
    if addresses:
        with contextlib.suppress(NobodyReachable):
            now = version_of(live_records(owned, addresses, timeout_seconds))
    if now is None:
        return f"at version {at_version}; if the run is past that, it ends as soon as this is published"
    if at_version <= now:
        return f"as soon as this is published: version {at_version} is past, the run is at {now}"
    return f"at version {at_version}; the run is at {now} now"
