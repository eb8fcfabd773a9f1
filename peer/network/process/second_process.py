"""A second process with this peer's key, such as one that uses a copy of its data folder.

Other members notice two sessions of one name. Two processes that know nobody else cannot, since neither can dial the
other under a key of its own. So this one dials, under a key made for that, where its own key may answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from dht.ground.errors import LocalFault
from dht.ground.host import PeerId
from dht.identity.multiaddr import parse_peer_multiaddr
from peer.config.peer_config import ADDRESSES_NAME, PeerConfig, read_cached_peers
from peer.network.membership.address_check import answering
from peer.network.membership.members_here import addresses_now
from peer.network.membership.membership import Membership
from peer.run_folders import folders_in_use

LOOK_SECONDS = 10.0
NUM_TRIES = 3
"""Before a start gives up. What is left of a network process that died a moment ago answers once at most."""
PAUSE_SECONDS = 1.0


async def refuse_second_process(config: PeerConfig, me: PeerId) -> None:
    """Before this peer listens: see that no other process answers with its key.

    Raises:
        LocalFault: one does.
    """
    kept = read_cached_peers(config.data_dir / ADDRESSES_NAME)
    addresses = _of(me, [*kept, *addresses_now(config)])
    for place in range(NUM_TRIES):
        if not addresses or not await answering(addresses):
            return
        await asyncio.sleep(PAUSE_SECONDS if place < NUM_TRIES - 1 else 0)
    raise second_process(me)


async def watch_for_second_process(config: PeerConfig, membership: Membership) -> None:
    """While this peer runs: look into the other folders of this machine in which a peer of the run runs.

    Of two that were started at the same moment, the one that listened first stays.
    """
    me = membership.identity.peer_id
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        addresses = await asyncio.to_thread(_addresses_of_earlier, config, me)
        if addresses and await answering(addresses):
            membership.note_earlier_process()
            return


def second_process(me: PeerId) -> LocalFault:
    """What the later of two processes with one key says."""
    return LocalFault(
        f"another live process of this run uses the identity {me} and was there first; expected one process per "
        "identity: stop the other one, or give this one its own --identity file"
    )


def _addresses_of_earlier(config: PeerConfig, me: PeerId) -> list[str]:
    own = config.data_dir / ADDRESSES_NAME
    mine, found = read_cached_peers(own), list[str]()
    for folder in folders_in_use(config.run_id, config.data_dir):
        path = folder / ADDRESSES_NAME
        theirs = _of(me, read_cached_peers(path))
        if theirs and not set(theirs) & set(mine) and _written_at(path) < _written_at(own):
            found += theirs
    return found


def _written_at(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, str(path)
    except OSError:
        return 0, str(path)


def _of(me: PeerId, addresses: Iterable[str]) -> list[str]:
    return [one for one in dict.fromkeys(addresses) if parse_peer_multiaddr(one)[0] == me]
