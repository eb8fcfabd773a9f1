"""Which transport an observer uses: py-libp2p, or the daemon of hivemind.

Both reach the same peers in the same DHT. Without the daemon there is no child process and less memory. But py-libp2p
is an optional package, because its fastecdsa has to be compiled where it is installed.
"""

from __future__ import annotations

import importlib.util
from typing import Final, Literal

from dht.ground.errors import UsageFault

HostBackend = Literal["libp2p", "p2pd"]

INSTALL: Final = "`pip install '.[observer]'` in the folder of Murmuration"


def choose_backend(asked: str | None) -> HostBackend:
    """The transport of an observer.

    Args:
        asked: libp2p or p2pd; None takes libp2p where it is installed.

    Raises:
        UsageFault: another name, or libp2p is asked for and not installed.
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
