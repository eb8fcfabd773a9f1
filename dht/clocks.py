"""The clock for durations: nobody can set it, and it goes on while the machine sleeps."""

from __future__ import annotations

import sys
import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def steady_seconds() -> float:
    """Seconds since some moment.

    `time.monotonic` stands still while a laptop is suspended. On Linux CLOCK_BOOTTIME goes on, on macOS the clock that
    the system calls CLOCK_MONOTONIC (Python's is another there). Elsewhere there is none.
    """
    if _BOOTTIME is not None:
        return time.clock_gettime(_BOOTTIME)
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.monotonic()
