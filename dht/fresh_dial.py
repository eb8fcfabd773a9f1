"""Dials a peer as somebody would who has never met it: from a daemon and a key of its own, made for this one time.

Whoever is connected to a peer already reaches it through that connection, whatever stands between them. Only a daemon
without any connection finds out whether others can dial it (docs/home-networks.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dht.errors import PeerUnreachable
from dht.identity import Identity
from dht.multiaddr import parse_multiaddr
from dht.p2pd_daemon import DaemonOptions
from dht.p2pd_host import P2pdHost

DIAL_BACK_SECONDS: Final = 5.0
"""For one address: a handshake takes four round trips, and a firewall that drops answers nothing at all."""


async def dial_freshly(addresses: Sequence[str], seconds: float = DIAL_BACK_SECONDS) -> dict[str, str]:
    """Dial each address with a PeerId, one after the other; returns address -> why it failed, empty: it answered.

    Raises:
        LocalFault: no second daemon can run here.
        UsageFault: an address is none.
    """
    outcomes: dict[str, str] = {}
    async with P2pdHost(Identity.generate(), [], options=DaemonOptions(relays_for_others=False)) as host:
        for address in addresses:
            peer_id = parse_multiaddr(address).peer_id
            try:
                await host.connect(address, seconds)
                outcomes[address] = ""
            except PeerUnreachable as fault:
                outcomes[address] = fault.what
            if peer_id is not None:
                await host.disconnect(peer_id)
    return outcomes
