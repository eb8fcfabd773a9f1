"""Choice of an observer's transport: py-libp2p, or hivemind's daemon.

Both reach the same peers in the same DHT. py-libp2p needs no child process and less memory, but is an optional package,
because its fastecdsa must be compiled on installation.
"""

from __future__ import annotations

import importlib.util
from typing import Final, Literal

from dht.ground.errors import UsageFault

HostBackend = Literal["libp2p", "p2pd"]

INSTALL: Final = "`pip install '.[observer]'` in the folder of Murmuration"


def choose_backend(asked: str | None) -> HostBackend:
    """Return the transport of an observer.

    Args:
        asked: libp2p or p2pd; None chooses libp2p if it is installed.

    Raises:
        UsageFault: the name is unknown, or libp2p is not installed.
    """
    if asked == "p2pd":
        return "p2pd"
    if asked not in (None, "libp2p"):
        raise UsageFault(f"--host-backend {asked!r} is not known; expected libp2p or p2pd.")
    if importlib.util.find_spec("libp2p") is not None:
        return "libp2p"
    if asked is None:
        return "p2pd"
    raise UsageFault(f"--host-backend libp2p needs py-libp2p, which is not installed; run {INSTALL}")
