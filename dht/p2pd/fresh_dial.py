"""Dial a peer as a stranger would: from a new daemon with a new key.

Two connected peers reach each other through their existing connection. Only a daemon without connections shows
whether others can dial it (docs/volunteer/home-network.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from dht.ground.errors import PeerUnreachable
from dht.identity.keys import Identity
from dht.p2pd.daemon import DaemonOptions
from dht.p2pd.host import P2pdHost

DIAL_BACK_SECONDS: Final = 5.0
"""Time for one address: a handshake takes four round trips, and a firewall may drop packets without an answer."""


async def dial_freshly(addresses: Sequence[str], seconds: float = DIAL_BACK_SECONDS) -> dict[str, str]:
    """Dial all addresses (with PeerIds) at once. Return address -> failure reason, empty if it answered.

    Raises:
        LocalFault: a second daemon cannot run here.
        UsageFault: an address is invalid.
    """
    outcomes = await asyncio.gather(*(_dial(address, seconds) for address in addresses))
    return dict(zip(addresses, outcomes, strict=True))


async def _dial(address: str, seconds: float) -> str:
    # One daemon for each address: a daemon that has met a peer dials all known addresses of it, not the given one.
    async with P2pdHost(Identity.generate(), [], options=DaemonOptions(relays_for_others=False)) as host:
        try:
            await host.connect(address, seconds)
        except PeerUnreachable as fault:
            return fault.what
    return ""
