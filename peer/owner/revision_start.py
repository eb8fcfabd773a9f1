"""When a revision may start: the current version and clock of the run, and the lead that a change needs.

A cool-down starts at a number of tokens. A peer that joins later could not know how many were committed at a version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dht.ground.errors import NobodyReachable, UsageFault
from dht.records.signed_manifest import RunRecord
from peer.config.access_sections import ChangeSection
from peer.config.manifest import RunManifest
from peer.owner.owned_run import OwnedRun
from peer.owner.owner_connection import live_view
from peer.view.run_view import RunView

LEAST_LEAD_VERSIONS = 2
"""A change of the outer rate must reach every peer before the round from which it applies."""


def version_of(view: RunView) -> int | None:
    """Return the lowest version of the fragments, or None if no member reports one."""
    return min(view.versions, default=None)


def first_token(view: RunView, at_version: int) -> int | None:
    """Estimate the clock at which the lowest version of the fragments will be `at_version`, at the run's usual pace.

    If that version is reached already, the result is the current clock. It is None if no member reports a version.
    """
    version = version_of(view)
    if version is None:
        return None
    return (
        view.committed_tokens if not version or at_version <= version else view.committed_tokens * at_version // version
    )


def ask_first_token(owned: OwnedRun, addresses: list[str], at_version: int, timeout_seconds: float) -> int:
    """Return `first_token` as reported by the members that are online.

    Raises:
        NobodyReachable: no member answered in time, or none has an anchor.
    """
    try:
        found = first_token(live_view(owned, addresses, timeout_seconds), at_version)
    except NobodyReachable as fault:
        raise NobodyReachable(f"{fault}; or give --cooldown-from TOKENS yourself") from fault
    if found is None:
        raise NobodyReachable(
            f"no member of {owned.run_id} reports how many tokens are committed; expected a member that trains or "
            "serves; give --cooldown-from TOKENS, or try again"
        )
    return found


def end_in_words(owned: OwnedRun, at_version: int, addresses: list[str], timeout_seconds: float) -> str:
    """Describe when the run ends if its owner ends it at `at_version`; add the current version if a member answers."""
    if not at_version:
        return "as soon as this is published"
    now = None
    if addresses:
        with contextlib.suppress(NobodyReachable):
            now = version_of(live_view(owned, addresses, timeout_seconds))
    if now is None:
        return f"at version {at_version}; if the run is past that, it ends as soon as this is published"
    if at_version <= now:
        return f"as soon as this is published: version {at_version} is past, the run is at {now}"
    return f"at version {at_version}; the run is at {now} now"


def new_rates(owned: OwnedRun, held: RunRecord | None) -> list[ChangeSection]:
    """Return the changes of the outer rate that members do not have yet.

    Args:
        held: the revision that members have.
    """
    known = () if held is None else RunManifest.from_bytes(held.manifest).changes
    return [change for change in owned.manifest.changes if change.outer_lr is not None and change not in known]


def check_lead(rates: Sequence[ChangeSection], view: RunView) -> None:
    """Refuse a change of the outer rate that could not reach every peer before the round from which it applies.

    Raises:
        UsageFault: the change applies from a version that is too near.
    """
    newest_version = max(view.versions, default=0)
    for change in rates:
        if change.at_version < newest_version + LEAST_LEAD_VERSIONS:
            raise UsageFault(
                f"outer_lr {change.outer_lr:g} applies from version {change.at_version}, and the run is at version "
                f"{newest_version}; expected at least {newest_version + LEAST_LEAD_VERSIONS}, so that it reaches every "
                "peer before that round; edit with a later --at-version and sign again"
            )
