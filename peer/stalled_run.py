"""When a run, or a machine in it, counts as stalled: the same for pages, panels and announced speeds. Pure."""

from __future__ import annotations

from typing import Final

STALLED_SECONDS: Final = 120.0
"""Without a commit for this long something is wrong: rounds take seconds, and a slow one a minute."""
STALLED_TIMES: Final = 5
"""Of what takes longer in this run, so many times its usual length. One that is late is usual."""


def has_stalled(silent_seconds: float, usual_seconds: float) -> bool:
    """Whether something that comes again and again has not come for too long.

    Args:
        silent_seconds: since it last came.
        usual_seconds: from one to the next; 0: not known.
    """
    return silent_seconds > max(STALLED_SECONDS, STALLED_TIMES * usual_seconds)
