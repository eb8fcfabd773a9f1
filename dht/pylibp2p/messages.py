"""Messages of libp2p hosts about themselves and others: identify, and kad's FIND_NODE. Pure.

The message classes are py-libp2p's. All data read here comes from strangers: sizes and counts are bounded, and unusable
addresses or PeerIds are skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from google.protobuf.message import DecodeError
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.kad_dht.pb.kademlia_pb2 import Message

from dht.ground.delimited import MessageError
from dht.ground.host import PeerId
from dht.identity.keys import peer_id_bytes, peer_id_of_bytes
from dht.identity.multiaddr import Multiaddr, known_multiaddrs

IDENTIFY_PROTOCOL: Final = "/ipfs/id/1.0.0"
KAD_PROTOCOL: Final = "/ipfs/kad/1.0.0"

MAX_MESSAGE_BYTES: Final = 64 * 1024
"""Largest message; twenty peers with eight addresses each take a tenth of it."""

MAX_ADDRESSES: Final = 8
"""Addresses accepted for one peer; a machine with two interfaces and a relay announces about five."""

MAX_CLOSER_PEERS: Final = 20
"""Peers accepted in one answer."""


def decode_identify(data: bytes) -> tuple[tuple[Multiaddr, ...], frozenset[str]]:
    """Return the addresses that a peer announces, without PeerIds, and its protocols.

    Raises:
        MessageError: the bytes are not an identify message.
    """
    message = _parse(Identify, data)
    return _known_addresses(message.listen_addrs), frozenset(message.protocols)


def encode_find_node(target: PeerId) -> bytes:
    """Encode the question for the peers near `target` and their addresses."""
    return bytes(Message(type=Message.FIND_NODE, key=peer_id_bytes(target)).SerializeToString())


def decode_closer_peers(data: bytes) -> dict[PeerId, tuple[Multiaddr, ...]]:
    """Return the peers in the answer to FIND_NODE, and their addresses.

    Raises:
        MessageError: the bytes are not such an answer.
    """
    message = _parse(Message, data)
    found: dict[PeerId, tuple[Multiaddr, ...]] = {}
    for peer in message.closerPeers[:MAX_CLOSER_PEERS]:
        with contextlib.suppress(ValueError):
            found[peer_id_of_bytes(peer.id)] = _known_addresses(peer.addrs)
    return found


def _known_addresses(found: Iterable[bytes]) -> tuple[Multiaddr, ...]:
    """Return addresses of known kinds, without PeerIds; at most `MAX_ADDRESSES`."""
    known = (address.without_peer_id() for address in known_multiaddrs(found) if address.parts)
    return tuple(islice(known, MAX_ADDRESSES))


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError) as error:
        raise MessageError(f"{len(data)} bytes that are not a {kind.__name__} message") from error
