"""What every command needs from its surroundings, put right before anything else is done."""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from typing import Any

EARLY_LOADING = "early-loading"
"""Name of a thread that loads what is of no use once its command has failed: nobody waits for it then."""
SPIN_COUNT = 1000
"""How often a thread of torch looks for work before it sleeps: tens of microseconds, about what sleeping costs."""
_NUM_STREAMS = 3


def put_right() -> None:
    """Streams that were closed lead nowhere; a user whom the system does not know has a name; threads wait shortly."""
    # Otherwise the next file or socket gets the number 1 or 2, and whatever is printed goes into it.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _NUM_STREAMS:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stdout = sys.stdout or _nowhere("w")
    sys.stderr = sys.stderr or _nowhere("w")
    # Otherwise pydantic reads what every installed package says of itself, in search of plugins that nobody needs here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # libgomp's threads spin for milliseconds while they wait for one that another program keeps from its core. So a
    # training process was several times slower beside a busy one (benchmarks/training/bench_busy_machine.py).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    # torch asks for it when it chooses where to keep what it compiles, and fails without an entry for the user.
    with contextlib.suppress(KeyError):
        pwd.getpwuid(os.getuid())
        return
    os.environ.setdefault("LOGNAME", f"uid{os.getuid()}")


def usable_cores() -> int:
    """Cores that this process may use: in a container perhaps fewer than the machine has."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return allowed or 1


def _nowhere(mode: str) -> Any:
    return open(os.devnull, mode, encoding="utf-8")
