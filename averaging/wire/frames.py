"""Frames of the round protocol: msgpack headers with a strict schema, followed by raw payloads. Pure; does not use
arrays.

A frame is ``version (1 byte) | header length (4 bytes, big-endian) | header | payload``. The header is a msgpack array
``[kind, field, field, ...]`` in the order of the dataclass. Only `Contribution`, `Result` and `AuditShare` carry a
payload. Sets of roster members (`included`) are bit masks: with lists, a round of 256 members would not fit its header.
All fields are checked against `Limits`, which follow from the manifest, before use. Each violation raises a `PeerFault`
with the received and the expected value.

docs/contributor/protocol.md lists all messages.
"""

from __future__ import annotations

import hashlib
import struct
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import msgpack

from averaging.wire import messages
from averaging.wire.field_checks import MAX_HEADER_BYTES, Limits, WholeCheck, checks_of, mask_of
from averaging.wire.messages import (
    DIGEST_BYTES,
    MAX_SHARDS,
    AuditRequest,
    AuditShare,
    Commit,
    Contribution,
    Message,
    Offer,
    Plan,
    Result,
    Work,
)
from averaging.wire.work_by_range import is_whole
from dht.ground.bounds import Newest
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId

WIRE_VERSION = 4
"""First byte of each round message."""
MAX_KNOWN = 4096
"""Commits whose digest or weight is cached: twice as many as a peer with 128 fragments stores."""
MAX_ENCODED = 256
"""Commits whose frame is cached: 13 MB for rounds of 256 members. A leader sends its commit to all of them."""
_PREFIX = struct.Struct(">BI")
T = TypeVar("T")


KINDS: dict[str, type[Message]] = {
    kind.KIND: kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind.KIND
}
"""All message types, by kind. Base classes have no kind."""
_WITH_PAYLOAD = (Contribution, Result, AuditShare)
_IN_FRAGMENT = (*_WITH_PAYLOAD, AuditRequest)


def _fields_of(value: Any) -> list[Any]:
    named = ((name, getattr(value, name)) for name in checks_of(value.__class__))
    return [mask_of(item) if name == "included" else item for name, item in named]


def encode(message: Message) -> bytes:
    """Return the first part of a frame: version, header length and header. The sender appends the payload."""
    return _encoded_commit(message) if isinstance(message, Commit) else _encoded(message)


def _encoded(message: Message) -> bytes:
    header: bytes = msgpack.packb([message.KIND, *_fields_of(message)], default=_fields_of, use_bin_type=True)
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"header of {len(header)} bytes; expected at most {MAX_HEADER_BYTES}")
    return _PREFIX.pack(WIRE_VERSION, len(header)) + header


def once_per_commit(work: Callable[[Commit], T], most: int = MAX_KNOWN) -> Callable[[Commit], T]:
    """Cache a function's results for the newest commits while these exist.

    Computing such a result for a commit of 256 members takes milliseconds, and other peers can request it with a
    hundred bytes.
    """
    known: Newest[int, tuple[T, weakref.ref[Commit]]] = Newest(most)

    @wraps(work)
    def known_or_work(commit: Commit) -> T:
        key = id(commit)
        found = known.get(key)
        if found is None:
            found = known[key] = work(commit), weakref.ref(commit, lambda _: known.pop(key, None))
        return found[0]

    return known_or_work


_encoded_commit = once_per_commit(_encoded, MAX_ENCODED)


@once_per_commit
def commit_digest_whole(commit: Commit) -> bytes:
    """Return the identity of a commit: SHA-256 of all its fields except the signatures, 32 bytes."""
    return hashlib.sha256(encode(commit.bare)).digest()


def commit_digest(commit: Commit) -> bytes:
    """Return the first `DIGEST_BYTES` of a commit's digest."""
    return commit_digest_whole(commit)[:DIGEST_BYTES]


def header_bytes_of(frame: bytes) -> int:
    """Return the header length that a received frame states, which determines the cost of reading the frame."""
    return int(_PREFIX.unpack_from(frame)[1]) if len(frame) >= _PREFIX.size else 0


def place_of(header: bytes | memoryview) -> tuple[str, int, int]:
    """Return (kind, fragment, version) of a message of this peer that `encode` made."""
    _, header_bytes = _PREFIX.unpack_from(header)
    kind, fragment, version = msgpack.unpackb(header[_PREFIX.size : _PREFIX.size + header_bytes], raw=False)[:3]
    return kind, fragment, version


def decode(frame: bytes | memoryview, sender: PeerId, limits: Limits) -> tuple[Message, memoryview]:
    """Check one received frame completely and return (message, payload).

    Raises:
        PeerFault: any violation of version, length, type, range or shape. Raises no other exception.
    """
    view = memoryview(frame)
    if len(view) and view[0] != WIRE_VERSION:
        raise PeerFault(
            sender, f"speaks wire version {view[0]}; expected {WIRE_VERSION}: the older side must update its software"
        )
    if len(view) < _PREFIX.size:
        raise PeerFault(sender, f"got a frame of {len(view)} bytes; expected at least {_PREFIX.size}")
    _, header_bytes = _PREFIX.unpack_from(view)
    body = view[_PREFIX.size :]
    if header_bytes > MAX_HEADER_BYTES or header_bytes > len(body):
        raise PeerFault(
            sender, f"announced a header of {header_bytes} bytes; the frame has {len(body)}, at most {MAX_HEADER_BYTES}"
        )
    try:
        values = msgpack.unpackb(
            body[:header_bytes],
            raw=False,
            strict_map_key=True,
            max_map_len=0,
            max_ext_len=0,
            max_array_len=MAX_SHARDS,
            max_str_len=1000,
            max_bin_len=1000,
        )
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise PeerFault(sender, f"sent a header that is not msgpack ({type(error).__name__}: {error})") from error
    if type(values) is not list or not values or type(values[0]) is not str or values[0] not in KINDS:
        got = repr(values[0])[:40] if type(values) is list and values else type(values).__name__
        raise PeerFault(sender, f"sent a message of unknown kind {got}; expected one of {', '.join(KINDS)}")
    message_type = KINDS[values[0]]
    kind = str(values[0])
    checks = checks_of(message_type)
    if len(values) != len(checks) + 1:
        raise PeerFault(sender, f"sent {len(values) - 1} fields in {kind}; expected {len(checks)}")
    checked: dict[str, Any] = {}
    for (name, check), value in zip(checks.items(), values[1:], strict=True):
        try:
            checked[name] = check(value, limits)
        except ValueError as error:
            raise PeerFault(sender, f"field {name} of {kind}: {error}") from error
    message = message_type(**checked)
    payload = body[header_bytes:]
    _check_whole(message, payload, sender, limits)
    return message, payload


def _check_whole(message: Message, payload: memoryview, sender: PeerId, limits: Limits) -> None:
    if isinstance(message, _IN_FRAGMENT):
        size = limits.fragment_sizes[message.fragment]
        if not message.start < message.end <= size:
            raise PeerFault(
                sender, f"shard [{message.start}, {message.end}) does not lie in a fragment of {size} values"
            )
        if len(payload) > limits.max_payload_bytes:
            raise PeerFault(sender, f"sent {len(payload)} payload bytes; expected at most {limits.max_payload_bytes}")
    if len(payload) and not isinstance(message, _WITH_PAYLOAD):
        raise PeerFault(sender, f"sent {len(payload)} bytes after a {message.KIND}; expected none")
    if check := _ROUND_CHECKS.get(type(message)):
        check(message, sender, limits)


def _check_work(work: Work, kind: str, sender: PeerId, size: int) -> None:
    if not is_whole(work, size):
        raise PeerFault(
            sender,
            f"sent parts of work in a {kind} that do not cover the {size} values, or do not add up to its totals",
        )


def _check_offer(offer: Offer, sender: PeerId, limits: Limits) -> None:
    _check_work(offer, offer.KIND, sender, limits.fragment_sizes[offer.fragment])


def _check_round(message: Plan | Commit, sender: PeerId, limits: Limits) -> None:
    size = limits.fragment_sizes[message.fragment]
    for entry in message.roster:
        _check_work(entry, message.KIND, sender, size)
    num_members = len(message.roster)
    if not num_members:
        raise PeerFault(sender, f"sent a {message.KIND} without members; expected at least one")
    if len({entry.peer_id for entry in message.roster}) != num_members:
        raise PeerFault(sender, f"listed a member twice in a {message.KIND}; expected each once")
    if list(message.roster) != sorted(message.roster, key=lambda entry: entry.peer_id):
        raise PeerFault(sender, f"sent a {message.KIND} whose roster is not in PeerId order")
    position = 0
    for shard in message.shards:
        if shard.start != position or shard.end <= shard.start or shard.reducer >= num_members:
            raise PeerFault(
                sender,
                f"shard [{shard.start}, {shard.end}) by member {shard.reducer} in a {message.KIND}; "
                f"expected shards that follow each other from 0 and reducers below {num_members}",
            )
        position = shard.end
    if position != size:
        raise PeerFault(sender, f"shards cover {position} of {size} values of fragment {message.fragment}")


def _check_commit(commit: Commit, sender: PeerId, limits: Limits) -> None:
    _check_round(commit, sender, limits)
    num_members = len(commit.roster)
    for result in commit.shards:
        # Decoded masks are in ascending order.
        if result.included and result.included[-1] >= num_members:
            raise PeerFault(
                sender, f"listed member {result.included[-1]} in a shard; expected numbers below {num_members}"
            )
        if bool(result.digest) != bool(result.included):
            raise PeerFault(sender, "sent a shard result with members but no digest, or the reverse")
        if bool(result.digest) != bool(result.signature):
            raise PeerFault(sender, "sent a shard result without its reducer's signature, or a void one with one")


_ROUND_CHECKS: dict[type, WholeCheck] = {Offer: _check_offer, Plan: _check_round, Commit: _check_commit}
"""Checks that involve several fields of a message."""
