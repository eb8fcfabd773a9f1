"""Dials a peer as a stranger would: from a daemon and a key made for this one time.

A peer with a connection already reaches the other through it, whatever stands between them. Only a daemon without any
connection finds out whether others can dial it (docs/volunteer/home-network.md).
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
"""For one address: a handshake takes four round trips, and a firewall that drops answers nothing at all."""


async def dial_freshly(addresses: Sequence[str], seconds: float = DIAL_BACK_SECONDS) -> dict[str, str]:
    """Dial each address with a PeerId, all at once; returns address -> why it failed, empty: it answered.

    Raises:
        LocalFault: no second daemon can run here.
        UsageFault: an address is none.
    """
    outcomes = await asyncio.gather(*(_dial(address, seconds) for address in addresses))
    return dict(zip(addresses, outcomes, strict=True))


async def _dial(address: str, seconds: float) -> str:
    # A daemon for each address: one that has met a peer dials all the addresses it knows of it, whichever was meant.
    async with P2pdHost(Identity.generate(), [], options=DaemonOptions(relays_for_others=False)) as host:
        try:
            await host.connect(address, seconds)
        except PeerUnreachable as fault:
            return fault.what
    return ""
