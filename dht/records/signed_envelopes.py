"""Envelopes: signed content of a key in canonical bytes. Pure.

An envelope is ``signature (64) | public key (32) | msgpack array``. Arrays are positional, so that a record of a dozen
fragments stays well below its limit. They are canonical: each record has exactly one form in bytes. Signatures cover a
prefix for each kind of record, so that one kind can never pass for another, and all fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from dht.ground.errors import PeerFault
from dht.ground.fields import unpack
from dht.ground.host import PeerId
from dht.identity.keys import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Identity, peer_id_of, verify_key

T = TypeVar("T")

HEAD_BYTES: Final = SIGNATURE_BYTES + PUBLIC_KEY_BYTES
"""Length of an envelope before its body."""


def seal(identity: Identity, domain: bytes, body: bytes) -> bytes:
    """Return the envelope of `body`, signed by `identity`."""
    return identity.sign(domain + identity.public_key + body) + identity.public_key + body


def open_sealed(
    data: bytes,
    max_bytes: int,
    kind: str,
    domain: bytes,
    unpack_it: Callable[[bytes, PeerId], T],
    pack_it: Callable[[T], bytes],
) -> T:
    """Return the checked content of an envelope that `seal` made. `unpack_it` checks all fields and raises ValueError.

    Raises:
        PeerFault: the envelope is too large, wrongly signed, or has invalid content.
    """
    public_key, body = open_envelope(data, max_bytes, kind)
    peer_id = peer_id_of(public_key)
    check_signature(data, public_key, domain + public_key + body)
    try:
        said = unpack_it(body, peer_id)
        if pack_it(said) != body:
            raise ValueError("bytes that are not in canonical form; expected one form per record")
    except ValueError as error:
        raise PeerFault(peer_id, f"sent a {kind} with {error}; it is ignored") from error
    return said


def check_expiry(peer_id: PeerId, kind: str, expires_at: float, now: float, longest: float) -> None:
    """Raise PeerFault if a record has expired, or expires too late."""
    if not now < expires_at <= now + longest:
        raise PeerFault(
            peer_id,
            f"sent a {kind} that expires {expires_at - now:+.0f} s from now; expected 0 to {longest:.0f} s; it is "
            "ignored (is a clock wrong?)",
        )


def open_envelope(data: bytes, max_bytes: int, kind: str) -> tuple[bytes, bytes]:
    """Return (public key, body) of an envelope. Checks only its length, and raises PeerFault if it is wrong."""
    if not HEAD_BYTES < len(data) <= max_bytes:
        raise PeerFault("", f"a {kind} of {len(data)} bytes; expected {HEAD_BYTES + 1} to {max_bytes}; it is ignored")
    return bytes(data[SIGNATURE_BYTES:HEAD_BYTES]), bytes(data[HEAD_BYTES:])


def check_signature(data: bytes, public_key: bytes, message: bytes) -> None:
    """Raise PeerFault unless the envelope `data` has the signature of `public_key` for `message`."""
    if not verify_key(public_key, message, bytes(data[:SIGNATURE_BYTES])):
        what = "a record with a wrong signature; expected a signature by its key; it is ignored"
        raise PeerFault(peer_id_of(public_key), what)


def unpack_array(body: bytes, num_items: int, record_format: int) -> list[Any]:
    """Return the items of a body, its format first. Raise ValueError unless the body has this format and number of
    items.
    """
    items = unpack(body)
    if type(items) is not list or not items or type(items[0]) is not int or items[0] != record_format:
        raise ValueError(f"an unknown format; expected format {record_format}; one of the two peers needs an update")
    if len(items) != num_items:
        raise ValueError(f"{len(items)} fields; expected {num_items}")
    return items
