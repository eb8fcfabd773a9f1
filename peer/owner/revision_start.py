"""When a revision may begin: where the run is now, version and clock.

A cool-down begins at a number of tokens. A peer that comes later could not know how many were committed at a version.
"""

from __future__ import annotations

import contextlib

from dht.ground.errors import NobodyReachable
from peer.owner.owned_run import OwnedRun
from peer.owner.owner_connection import live_view
from peer.view.run_view import RunView


def version_of(view: RunView) -> int | None:
    """The lowest version of the fragments; None when nobody says."""
    return min(view.versions, default=None)


def first_token(view: RunView, at_version: int) -> int | None:
    """The clock when the lowest version of the fragments will be `at_version`, at the run's usual pace.

    Where that version is here already, the clock as it is. None when nobody says.
    """
    version = version_of(view)
    if version is None:
        return None
    return (
        view.committed_tokens if not version or at_version <= version else view.committed_tokens * at_version // version
    )


def ask_first_token(owned: OwnedRun, addresses: list[str], at_version: int, timeout_seconds: float) -> int:
    """`first_token` of the members that are online.

    Raises:
        NobodyReachable: no member answered in time, or none has an anchor.
    """
    try:
        found = first_token(live_view(owned, addresses, timeout_seconds), at_version)
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
            now = version_of(live_view(owned, addresses, timeout_seconds))
    if now is None:
        return f"at version {at_version}; if the run is past that, it ends as soon as this is published"
    if at_version <= now:
        return f"as soon as this is published: version {at_version} is past, the run is at {now}"
    return f"at version {at_version}; the run is at {now} now"
