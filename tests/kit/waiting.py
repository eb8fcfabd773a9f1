"""Waiting for what other threads and processes do: looked at again and again, never slept for."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_SECONDS = 150.0
"""For anything that should take a second or two: several processes import torch at once on two cores."""
LOOK_SECONDS = 0.05
"""Between two looks at an event log, a process or anything else."""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Look again and again until `condition` holds; fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(LOOK_SECONDS)
