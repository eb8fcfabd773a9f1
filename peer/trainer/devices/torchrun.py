"""The environment variables that torchrun sets in each process: its number, and the address where all meet."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from dht.ground.errors import UsageFault

KNOCK_SECONDS = 10.0
"""Time limit for a connection to torchrun's meeting place, on this machine or a nearby one."""
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """A process's number among the processes of its peer, and the address where they meet."""

    rank: int
    local_rank: int
    """The number among the processes of this machine; selects the device."""
    size: int
    host: str
    port: int


def place_from(environ: Mapping[str, str]) -> Place | None:
    """Return the place that torchrun assigned to this process; None without torchrun, or if it started only one
    process.

    Raises:
        UsageFault: WORLD_SIZE is above 1, but another variable of torchrun is missing or wrong.
    """
    if environ.get("WORLD_SIZE", "1") == "1":
        return None
    missing = [name for name in _TORCHRUN if not environ.get(name)]
    if missing:
        raise UsageFault(
            f"WORLD_SIZE is {environ['WORLD_SIZE'][:20]!r}, but {' and '.join(missing)} are not set; expected all "
            "variables that torchrun sets; start with `peer join --devices N` or `torchrun --nproc-per-node N -m peer "
            "join`, or unset WORLD_SIZE"
        )
    numbers = []
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not environ[name].isdecimal():
            raise UsageFault(f"{name} is {environ[name][:20]!r}; expected a whole number, as torchrun sets it")
        numbers.append(int(environ[name]))
    rank, local_rank, size, port = numbers
    if rank >= size:
        raise UsageFault(f"RANK is {rank} and WORLD_SIZE is {size}; expected RANK below WORLD_SIZE")
    return Place(rank, local_rank, size, environ["MASTER_ADDR"], port)


def check_meeting_place(place: Place) -> None:
    """Check that torchrun listens at the meeting place; variables left behind by an earlier job point to a closed port.

    Raises:
        UsageFault: no process listens there.
    """
    try:
        socket.create_connection((place.host, place.port), KNOCK_SECONDS).close()
    except OSError as error:
        raise UsageFault(
            f"WORLD_SIZE is {place.size} and RANK {place.rank}, as with torchrun, but no process listens at "
            f"{place.host}:{place.port} ({error.strerror or error}); expected torchrun there; if an earlier "
            f"job left these variables behind, run: unset {' '.join(_TORCHRUN)}"
        ) from error
