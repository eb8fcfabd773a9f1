"""Repairs the environment that every command needs, before anything else is done."""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from typing import Any

EARLY_LOADING = "early-loading"
"""Name of a thread that loads libraries early; the process does not wait for the thread if its command fails."""
SPIN_COUNT = 1000
"""Number of checks for work before a thread of torch sleeps: tens of microseconds, about the cost of sleeping."""
_NUM_STREAMS = 3


def put_right() -> None:
    """Replace closed standard streams, set a name for a user unknown to the system, and limit spinning of threads."""
    # Otherwise the next file or socket gets the number 1 or 2, and receives all printed text.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _NUM_STREAMS:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stdout = sys.stdout or _nowhere("w")
    sys.stderr = sys.stderr or _nowhere("w")
    # Otherwise pydantic reads the metadata of every installed package in search of plugins, which are not needed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # libgomp's threads spin for milliseconds while they wait for a thread whose core another program uses. So training
    # was several times slower beside a busy process (benchmarks/training/bench_busy_machine.py).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    # torch reads the user name to choose its cache folder, and fails without an entry for the user.
    with contextlib.suppress(KeyError):
        pwd.getpwuid(os.getuid())
        return
    os.environ.setdefault("LOGNAME", f"uid{os.getuid()}")


def usable_cores() -> int:
    """Return the number of cores that this process may use; a container may have fewer than the machine."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return allowed or 1


def _nowhere(mode: str) -> Any:
    return open(os.devnull, mode, encoding="utf-8")
