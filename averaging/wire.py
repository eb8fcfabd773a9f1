"""Frames of the round protocol: msgpack headers with a strict schema, raw payloads behind them. Pure, torch-free.

A frame is ``version (1 byte) | header length (4 bytes, big-endian) | header | payload``; the header is a msgpack
array ``[kind, field, field, ...]`` in the order of the dataclass. Only `Contribution` and `Result` carry
a payload. Sets of roster members (`included`) are bit masks: with lists, a round of 256 members would not fit
its header. Everything is checked against `Limits`, which follow from the manifest, before it is used; every
violation is a `PeerFault` that names what was got and what was expected. docs/protocol.md lists all messages.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import msgpack

from averaging.messages import (
    DIGEST_BYTES,
    MAX_NUM_ROUNDS,
    MAX_ROSTER,
    MAX_SHARDS,
    SIGNATURE_BYTES,
    Abandon,
    Commit,
    CommitRequest,
    Contribution,
    Message,
    Offer,
    Plan,
    Redirect,
    Reduced,
    Result,
    ResultRequest,
    RosterEntry,
    ShardPlan,
    ShardResult,
    VersionIs,
    Wait,
)
from dht.errors import PeerFault
from dht.host import PeerId

WIRE_VERSION = 3
MAX_HEADER_BYTES = 96_000
"""The largest commit, 256 members and 512 signed shards, takes 91 kB."""
_PREFIX = struct.Struct(">BI")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the manifest allows on the wire: sizes of the fragments (values) and the longest payload (bytes)."""

    fragment_sizes: tuple[int, ...]
    max_payload_bytes: int

    @property
    def max_frame_bytes(self) -> int:
        return _PREFIX.size + MAX_HEADER_BYTES + self.max_payload_bytes


_Check = Callable[[Any, Limits], Any]


def _fail(got: object, expected: str) -> ValueError:
    shown = repr(got)
    return ValueError(f"got {shown[:60]}{'...' if len(shown) > 60 else ''}; expected {expected}")


def _integer(low: int, high: int) -> _Check:
    def check(value: Any, _limits: Limits) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _fail(value, f"a whole number from {low} to {high}")
        return value

    return check


def _number(high: float) -> _Check:
    def check(value: Any, _limits: Limits) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= high:
            raise _fail(value, f"a finite number from 0 to {high:g}")
        return float(value)

    return check


def _boolean(value: Any, _limits: Limits) -> bool:
    if type(value) is not bool:
        raise _fail(value, "true or false")
    return value


def _text(value: Any, _limits: Limits) -> str:
    if type(value) is not str or len(value) > 200 or not value.isprintable():
        raise _fail(value, "printable text of at most 200 characters")
    return value


def _peer_id(value: Any, _limits: Limits) -> PeerId:
    if type(value) is not str or not 20 <= len(value) <= 80 or not value.isascii() or not value.isalnum():
        raise _fail(value, "a peer id")
    return PeerId(value)


def _digest(value: Any, _limits: Limits) -> bytes:
    if type(value) is not bytes or len(value) != DIGEST_BYTES:
        raise _fail(value, f"a digest of {DIGEST_BYTES} bytes")
    return value


def _digest_or_void(value: Any, limits: Limits) -> bytes:
    return b"" if value == b"" and type(value) is bytes else _digest(value, limits)


def _signature(value: Any, _limits: Limits) -> bytes:
    if type(value) is not bytes or len(value) != SIGNATURE_BYTES:
        raise _fail(value, f"a signature of {SIGNATURE_BYTES} bytes")
    return value


def _signature_or_void(value: Any, limits: Limits) -> bytes:
    return b"" if value == b"" and type(value) is bytes else _signature(value, limits)


def _fragment(value: Any, limits: Limits) -> int:
    return int(_integer(0, len(limits.fragment_sizes) - 1)(value, limits))


def _rows(check_row: Callable[[list[Any], Limits], Any], most: int) -> _Check:
    def check(value: Any, limits: Limits) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            raise _fail(value, f"a list of at most {most}")
        return tuple(check_row(row, limits) for row in value)

    return check


def _roster_row(row: Any, limits: Limits) -> RosterEntry:
    if type(row) is not list or len(row) != 6:
        raise _fail(row, "[peer_id, tokens, steps, base_version, sequence, num_rounds]")
    return RosterEntry(
        _peer_id(row[0], limits),
        _TOKENS(row[1], limits),
        _STEPS(row[2], limits),
        _VERSION(row[3], limits),
        _VERSION(row[4], limits),
        _NUM_ROUNDS(row[5], limits),
    )


def _shard_plan_row(row: Any, limits: Limits) -> ShardPlan:
    if type(row) is not list or len(row) != 3:
        raise _fail(row, "[start, end, reducer]")
    return ShardPlan(_VALUE(row[0], limits), _VALUE(row[1], limits), _MEMBER(row[2], limits))


def _shard_result_row(row: Any, limits: Limits) -> ShardResult:
    if type(row) is not list or len(row) != 6:
        raise _fail(row, "[start, end, reducer, digest, included, signature]")
    return ShardResult(
        _VALUE(row[0], limits),
        _VALUE(row[1], limits),
        _MEMBER(row[2], limits),
        _digest_or_void(row[3], limits),
        _members(row[4], limits),
        _signature_or_void(row[5], limits),
    )


_VERSION = _integer(0, 2**53)
_TOKENS = _integer(1, 2**50)
_STEPS = _integer(1, 2**31)
_VALUE = _integer(0, 2**40)
_MEMBER = _integer(0, MAX_ROSTER - 1)
_ATTEMPT = _integer(0, 10_000)
_NUM_ROUNDS = _integer(0, MAX_NUM_ROUNDS)


def _members(value: Any, _limits: Limits) -> tuple[int, ...]:
    """Roster numbers from their mask: bit n of the little-endian number stands for member n."""
    if type(value) is not bytes or len(value) > MAX_ROSTER // 8 or value.endswith(b"\0"):
        raise _fail(value, f"a mask of at most {MAX_ROSTER // 8} bytes, the last one not zero")
    mask = int.from_bytes(value, "little")
    return tuple(index for index in range(mask.bit_length()) if mask >> index & 1)


def mask_of(members: tuple[int, ...]) -> bytes:
    """Roster numbers as the mask that stands for them on the wire."""
    mask = sum(1 << index for index in set(members))
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


_CHECKS: dict[str, _Check] = {
    "fragment": _fragment,
    "version": _VERSION,
    "base_version": _VERSION,
    "sequence": _VERSION,
    "attempt": _ATTEMPT,
    "num_rounds": _NUM_ROUNDS,
    "tokens": _TOKENS,
    "lineage_tokens": _integer(0, 2**60),
    "steps": _STEPS,
    "shard": _integer(0, MAX_SHARDS - 1),
    "start": _VALUE,
    "end": _VALUE,
    "num_offers": _integer(0, MAX_ROSTER),
    "quorum": _integer(0, 2**20),
    "upload_bits_per_second": _number(1e15),
    "contribution_deadline_seconds": _number(86_400),
    "commit_deadline_seconds": _number(86_400),
    "reachable": _boolean,
    "reason": _text,
    "leader": _peer_id,
    "anchor_digest": _digest,
    "digest": _digest,
    "previous": _digest_or_void,
    "signature": _signature,
    "included": _members,
    "roster": _rows(_roster_row, MAX_ROSTER),
}
_SHARD_CHECKS: dict[type, _Check] = {
    Plan: _rows(_shard_plan_row, MAX_SHARDS),
    Commit: _rows(_shard_result_row, MAX_SHARDS),
}
_KINDS: dict[str, type[Any]] = {
    kind.KIND: kind
    for kind in (
        Offer,
        Wait,
        Redirect,
        Plan,
        Reduced,
        Abandon,
        Commit,
        CommitRequest,
        VersionIs,
        ResultRequest,
        Contribution,
        Result,
    )
}
_WITH_PAYLOAD = (Contribution, Result)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return _fields_of(value)
    return value


def _fields_of(value: Any) -> list[Any]:
    named = ((field.name, getattr(value, field.name)) for field in fields(value))
    return [mask_of(item) if name == "included" else _plain(item) for name, item in named]


def encode(message: Message) -> bytes:
    """The frame's first part: version, header length and header. A payload is appended by the sender."""
    header: bytes = msgpack.packb([message.KIND, *_fields_of(message)], use_bin_type=True)
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"header of {len(header)} bytes; expected at most {MAX_HEADER_BYTES}")
    return _PREFIX.pack(WIRE_VERSION, len(header)) + header


def commit_digest_whole(commit: Commit) -> bytes:
    """Identity of a commit: SHA-256 of all its fields but the signatures."""
    shards = tuple(replace(shard, signature=b"") for shard in commit.shards)
    return hashlib.sha256(encode(replace(commit, shards=shards, signature=b""))).digest()


def commit_digest(commit: Commit) -> bytes:
    """Its first `DIGEST_BYTES`."""
    return commit_digest_whole(commit)[:DIGEST_BYTES]


def decode(frame: bytes | memoryview, sender: PeerId, limits: Limits) -> tuple[Message, memoryview]:
    """Check one received frame completely and return (message, payload).

    Raises:
        PeerFault: any violation of version, length, type, range or shape; nothing else can escape.
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
    if type(values) is not list or not values or type(values[0]) is not str or values[0] not in _KINDS:
        got = repr(values[0])[:40] if type(values) is list and values else type(values).__name__
        raise PeerFault(sender, f"sent a message of unknown kind {got}; expected one of {', '.join(_KINDS)}")
    message_type = _KINDS[values[0]]
    kind = str(values[0])
    names = [field.name for field in fields(message_type)]
    if len(values) != len(names) + 1:
        raise PeerFault(sender, f"sent {len(values) - 1} fields in {kind}; expected {len(names)}")
    checked: dict[str, Any] = {}
    for name, value in zip(names, values[1:], strict=True):
        try:
            checked[name] = (_SHARD_CHECKS[message_type] if name == "shards" else _CHECKS[name])(value, limits)
        except ValueError as error:
            raise PeerFault(sender, f"field {name} of {kind}: {error}") from error
    message: Message = message_type(**checked)
    payload = body[header_bytes:]
    _check_whole(message, payload, sender, limits)
    return message, payload


def _check_whole(message: Message, payload: memoryview, sender: PeerId, limits: Limits) -> None:
    if isinstance(message, _WITH_PAYLOAD):
        size = limits.fragment_sizes[message.fragment]
        if not message.start < message.end <= size:
            raise PeerFault(
                sender, f"shard [{message.start}, {message.end}) does not lie in a fragment of {size} values"
            )
        if len(payload) > limits.max_payload_bytes:
            raise PeerFault(sender, f"sent {len(payload)} payload bytes; expected at most {limits.max_payload_bytes}")
    elif len(payload):
        raise PeerFault(sender, f"sent {len(payload)} bytes behind a {message.KIND}; expected none")
    if isinstance(message, Plan | Commit):
        _check_round(message, sender, limits)


def _check_round(message: Plan | Commit, sender: PeerId, limits: Limits) -> None:
    size = limits.fragment_sizes[message.fragment]
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
    if isinstance(message, Commit):
        for result in message.shards:
            if any(index >= num_members for index in result.included):
                raise PeerFault(
                    sender, f"listed member {result.included[-1]} in a shard; expected numbers below {num_members}"
                )
            if bool(result.digest) != bool(result.included):
                raise PeerFault(sender, "sent a shard result with members but no digest, or the reverse")
            if bool(result.digest) != bool(result.signature):
                raise PeerFault(sender, "sent a shard result without its reducer's signature, or a void one with one")
