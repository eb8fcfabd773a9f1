"""When a revision may begin: where the run is now, version and clock, and how far ahead of that a change must be.

A cool-down begins at a number of tokens. A peer that comes later could not know how many were committed at a version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import zip_longest
from statistics import median_high, median_low

from dht.errors import NobodyReachable, UsageFault
from dht.records.peer_record import PeerRecord
from dht.records.signed_manifest import RunRecord
from peer.config.manifest import RunManifest
from peer.owner.owned_run import OwnedRun
from peer.owner.owner_connection import live_records
from peer.run_clock import usual_clock

LEAST_LEAD_VERSIONS = 2
"""A change of the outer rate must reach every peer before the round that it counts from."""


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
    # The lower one of two, as of the clock: the tokens of one and the version of another are no pace.
    version = median_low(min(record.versions) for record in known)
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
    if not at_version:
        return "as soon as this is published"
    now = None
    if addresses:
        with contextlib.suppress(NobodyReachable):
            now = version_of(live_records(owned, addresses, timeout_seconds))
    if now is None:
        return f"at version {at_version}; if the run is past that, it ends as soon as this is published"
    if at_version <= now:
        return f"as soon as this is published: version {at_version} is past, the run is at {now}"
    return f"at version {at_version}; the run is at {now} now"


def check_lead(owned: OwnedRun, held: RunRecord | None, records: Sequence[PeerRecord]) -> None:
    """Refuse a new change of the outer rate that could not reach every peer before the round that it counts from.

    Args:
        held: the revision that members have.
        records: of the members that are online.

    Raises:
        UsageFault: it counts from a version that is too near.
    """
    newest_version = _furthest_version([record.versions for record in records])
    known = [] if held is None else RunManifest.from_bytes(held.manifest).model_dump(mode="json")["changes"]
    for change in owned.manifest.changes:
        is_new = change.model_dump(mode="json") not in known
        if is_new and change.outer_lr is not None and change.at_version < newest_version + LEAST_LEAD_VERSIONS:
            raise UsageFault(
                f"outer_lr {change.outer_lr:g} counts from version {change.at_version}, and the run is at version "
                f"{newest_version}; expected at least {newest_version + LEAST_LEAD_VERSIONS}, so that it reaches every "
                "peer before that round; edit with a later --at-version and sign again"
            )


def _furthest_version(versions: Sequence[tuple[int, ...]]) -> int:
    """The version that most members have reached, of the fragment that is furthest: one that boasts stops no change."""
    per_fragment = zip_longest(*(known for known in versions if known))
    return max((median_high(one for one in known if one is not None) for known in per_fragment), default=0)
