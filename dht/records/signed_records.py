"""Signed, expiring records: what a peer says about itself, and what the run's owner says about the run. Pure.

Both envelopes are ``signature (64) | public key (32) | msgpack array``. They are positional, so that a record of a
dozen fragments stays well below its limit. They are canonical, so that one record has one form in bytes. Signatures
cover a prefix of their own (one kind of record can never pass for another) and every field.

Nothing that comes out of `decode_peer_record` or `decode_run_record` needs checking again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, Final, Literal, TypeVar

from dht.bounded_dictionary import Newest
from dht.errors import PeerFault, UsageFault
from dht.fields import (
    MAX_REAL,
    MAX_WHOLE,
    check_bytes,
    check_choice,
    check_real,
    check_text,
    check_whole,
    pack,
    refuse_constant,
    unpack,
)
from dht.host import PeerId
from dht.identity.keys import (
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    fingerprint,
    peer_id_of,
    split_run_id,
    verify_key,
)
from dht.records.data_reading import reading_of
from dht.records.key_levels import MAX_LEVEL, turn_seconds
from dht.records.lineages import MAX_LINEAGE_TOKENS, MAX_VERSION

MAX_PEER_RECORD_BYTES: Final = 1280
"""128 peers in one dictionary of the DHT stay below 256 KiB, far from the 4 MiB at which holders look dead."""
MAX_RUN_RECORD_BYTES: Final = 16 * 1024
"""The manifest and its envelope."""
MAX_PEER_RECORD_LIFE_SECONDS: Final = 300.0
"""Records live 90 to 105 s, and `longer_seconds` in a swarm of many. Three times that bounds how long a replayed or
clock-skewed record can haunt a view.
"""
MAX_FRAGMENTS: Final = 4096
"""A bound on arrays; the record's bytes bound them further."""
DIGEST_BYTES: Final = 8
"""Prefix of an anchor's digest: enough to notice a fork; the full digest is asked of the peer itself."""
MANIFEST_HASH_BYTES: Final = 32
MAX_RUN_ID_LENGTH: Final = 61
"""Characters: name, dot, fingerprint."""
MAX_LABEL_LENGTH: Final = 40
"""Characters of `device` and `name`."""
MAX_SOFTWARE_LENGTH: Final = 20
"""Characters of `software`."""

T = TypeVar("T")
PeerState = Literal["joining", "training", "serving", "leaving", "left"]
PeerRole = Literal["trainer", "seed"]
PEER_STATES: Final[tuple[PeerState, ...]] = ("joining", "training", "serving", "leaving", "left")
PEER_ROLES: Final[tuple[PeerRole, ...]] = ("trainer", "seed")

_RUN_FORMAT = 1
_PEER_FORMAT = 5
_PEER_DOMAIN = b"murmuration peer record\0"
_RUN_DOMAIN = b"murmuration run record\0"
HEAD_BYTES: Final = SIGNATURE_BYTES + PUBLIC_KEY_BYTES
"""Of an envelope, before the body."""


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """How one peer spent its newest round: the one that left `version` of `fragment`. Seconds, one after the other."""

    fragment: int
    version: int
    started_at: float
    """Unix seconds at which `compute_seconds` began."""
    compute_seconds: float
    """Since its round before this one; training goes on in the other phases too."""
    send_seconds: float
    """From the plan to the commit: this peer's part goes out and is averaged with the others'."""
    receive_seconds: float
    """From the commit until all results were here."""
    apply_seconds: float


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """What one peer says about itself until `expires_at`; signed with the key inside `peer_id`.

    `versions`, `digests` and `lineage_tokens` have one entry per fragment, or none while the peer has no anchors.
    """

    run_id: str
    peer_id: PeerId
    session: int
    """Random 63 bits, new at each process start: two of them at once mean two processes with one key file."""
    sequence: int
    """Grows with each record of a session."""
    expires_at: float
    """Unix seconds."""
    manifest_hash: bytes
    """32 bytes."""
    state: PeerState
    role: PeerRole
    device: str
    """At most 40 printable characters, as `name`; `software` at most 20."""
    name: str
    """What the volunteer wants to be called; empty unless they chose one."""
    software: str
    reachable: bool
    inner_steps: int
    tokens: int
    rounds_contributed: int
    tokens_per_second: float
    upload_bits_per_second: float
    download_bits_per_second: float
    train_loss: float | None
    held_out_loss: float | None
    held_out_version: int
    """Sum of the anchor versions at which `held_out_loss` was measured."""
    versions: tuple[int, ...]
    digests: tuple[bytes, ...]
    """First 8 bytes of each fragment's anchor digest."""
    lineage_tokens: tuple[int, ...]
    """Tokens committed into each fragment's anchor since version 0: the weight of this line of history."""
    started_at: float
    """Unix seconds at which the session began."""
    newest_round: RoundTimes | None = None
    contributor_key: bytes = b""
    """Public key of the person whose machine this is (`profiles.py`), 32 bytes; empty: it stands for itself."""
    site: str = ""
    """Where the machine is, as its owner calls it; at most 40 printable characters."""
    level: int = 0
    """By how many keys the peer records should be split, as this peer sees the swarm (`key_levels.py`)."""
    longer_seconds: float = 0.0
    """How much longer it lives than one of a small swarm, where a look reads all keys."""
    reading: bytes = b""
    """Which data it reads (`data_reading.py`); empty: it reads nothing that is divided among peers."""

    @property
    def is_training(self) -> bool:
        """Whether it takes part in rounds now: role trainer, state training."""
        return self.role == "trainer" and self.state == "training"


_WIRE_FIELDS = tuple(field.name for field in fields(PeerRecord) if field.name != "peer_id")
"""Their order is the wire format: a change of the dataclass needs another `_PEER_FORMAT`."""
_WHOLES = ("session", "sequence", "inner_steps", "tokens", "rounds_contributed", "held_out_version")
_REALS = (
    *("expires_at", "started_at", "longer_seconds"),
    *("tokens_per_second", "upload_bits_per_second", "download_bits_per_second"),
)
_LOSSES = ("train_loss", "held_out_loss")
_SAID_IN_PASSING: tuple[tuple[str, Any], ...] = (("reading", b""), ("newest_round", None), ("device", ""), ("name", ""))
"""Fields that no round depends on, and what says nothing; the longest first."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The owner's signed manifest. Its DHT entry's expiry is not signed, so any member may publish it again."""

    run_id: str
    manifest: bytes
    """Canonical JSON with a whole number "revision"."""
    owner_public_key: bytes
    signature: bytes

    @property
    def revision(self) -> int:
        """Counts the owner's changes; the highest one is in force.

        Raises:
            ValueError: the manifest is not a JSON object with a whole number "revision".
        """
        return _revision_of(self.manifest)


class VerifiedRecords:
    """What was signed well: peer records and what they say, and digests of all else. The oldest is dropped first.

    A signature takes 0.3 ms to check and a view re-reads the same records every few seconds. The owner passes one
    instance to every decode. What depends on the reader or the time is checked each time.
    """

    def __init__(self, max_entries: int = 4096) -> None:
        self._digests: Newest[bytes, None] = Newest(max_entries)
        self._peers: Newest[bytes, PeerRecord] = Newest(max_entries)

    def seen(self, digest: bytes) -> bool:
        """Whether `digest` is known; marks it as freshly used."""
        if digest not in self._digests:
            return False
        self._digests.move_to_end(digest)
        return True

    def add(self, digest: bytes) -> None:
        self._digests[digest] = None

    def peer_record(self, data: bytes) -> PeerRecord | None:
        """What these bytes said before, when they were good then."""
        return self._peers.get(data)

    def add_peer_record(self, data: bytes, record: PeerRecord) -> None:
        self._peers[data] = record


def encode_peer_record(record: PeerRecord, identity: Identity) -> bytes:
    """Sign and encode; at most `MAX_PEER_RECORD_BYTES`.

    Raises:
        ValueError: a field is out of range, the identity is another peer's, or the record is too large.
    """
    if record.peer_id != identity.peer_id:
        raise ValueError(f"a record of {record.peer_id} to be signed by {identity.peer_id}; expected its own key")
    _check_peer_record(record)
    body = _pack_peer_record(record)
    data = seal(identity, _PEER_DOMAIN, body)
    if len(data) > MAX_PEER_RECORD_BYTES:
        raise ValueError(
            f"a peer record of {len(data)} bytes with {len(record.versions)} fragments; expected at most "
            f"{MAX_PEER_RECORD_BYTES}; use fewer fragments or a shorter name"
        )
    return data


def fitting_peer_record(record: PeerRecord, identity: Identity) -> tuple[PeerRecord, bytes]:
    """The record and its bytes; what it says in passing is left out where all of it is too much.

    Versions and tokens take more bytes as they grow, also such as a liar has made up. A peer must not fall silent then.

    Raises:
        ValueError: as `encode_peer_record`.
    """
    for name, nothing in _SAID_IN_PASSING:
        if HEAD_BYTES + len(_pack_peer_record(record)) <= MAX_PEER_RECORD_BYTES:
            break
        record = replace(record, **{name: nothing})
    return record, encode_peer_record(record, identity)


def decode_peer_record(data: bytes, *, run_id: str, now: float, verified: VerifiedRecords | None = None) -> PeerRecord:
    """Check everything about a peer record and return it. `now` in unix seconds.

    Raises:
        PeerFault: too large, bad signature, other run, expired, expiring too far ahead, or a field out of range.
    """
    record = None if verified is None else verified.peer_record(data)
    if record is None:
        what = (data, MAX_PEER_RECORD_BYTES, "peer record", _PEER_DOMAIN)
        record = open_sealed(*what, _unpack_peer_record, _pack_peer_record)
        if verified is not None:
            verified.add_peer_record(data, record)
    peer_id = record.peer_id
    if record.run_id != run_id:
        raise PeerFault(peer_id, f"sent a record of run {record.run_id}; expected {run_id}; it is ignored")
    check_expiry(peer_id, "record", record.expires_at, now, MAX_PEER_RECORD_LIFE_SECONDS + record.longer_seconds)
    return record


def sign_run_record(run_id: str, manifest: bytes, owner: Identity) -> RunRecord:
    """The owner's signature under a manifest.

    Raises:
        UsageFault: the key is not the one in `run_id`, or the manifest has no whole number "revision".
    """
    if split_run_id(run_id)[1] != fingerprint(owner.public_key):
        raise UsageFault(
            f"the owner key with fingerprint {fingerprint(owner.public_key)} does not own run {run_id}; expected the "
            f"key made by `peer init` for this run; give its path"
        )
    try:
        _revision_of(manifest)
    except ValueError as error:
        raise UsageFault(f"the run manifest cannot be signed: {error}") from error
    return RunRecord(run_id, manifest, owner.public_key, owner.sign(_run_message(run_id, manifest)))


def encode_run_record(record: RunRecord) -> bytes:
    """At most `MAX_RUN_RECORD_BYTES`.

    Raises:
        ValueError: the manifest is too large.
    """
    data = record.signature + record.owner_public_key + _pack_run_record(record.run_id, record.manifest)
    if len(data) > MAX_RUN_RECORD_BYTES:
        raise ValueError(
            f"a run record of {len(data)} bytes; expected at most {MAX_RUN_RECORD_BYTES}; shorten the manifest"
        )
    return data


def decode_run_record(data: bytes, *, run_id: str, verified: VerifiedRecords | None = None) -> RunRecord:
    """Check that the owner named by `run_id` signed this manifest for this run.

    Raises:
        PeerFault: too large, another owner's key, bad signature, other run, or a manifest without a revision.
        UsageFault: `run_id` itself is not a run id.
    """
    mark = split_run_id(run_id)[1]
    public_key, body = open_envelope(data, MAX_RUN_RECORD_BYTES, "run record")
    if fingerprint(public_key) != mark:
        raise PeerFault("", f"a run record of owner {fingerprint(public_key)}; expected {mark}; it is ignored")
    try:
        found_run_id, manifest = _unpack_run_record(body)
        if found_run_id != run_id:
            raise ValueError(f"run id {found_run_id[:80]!r}; expected {run_id}")
        if _pack_run_record(run_id, manifest) != body:
            raise ValueError("bytes that are not in canonical form; expected one form per record")
        _revision_of(manifest)
    except ValueError as error:
        raise PeerFault("", f"a run record with {error}; it is ignored") from error
    message = _run_message(run_id, manifest)
    # Statements of rounds may be in the same memory.
    digest = hashlib.sha256(data[:HEAD_BYTES] + message).digest()
    if verified is None or not verified.seen(digest):
        _check_signature(data, public_key, message)
        if verified is not None:
            verified.add(digest)
    return RunRecord(run_id, manifest, public_key, data[:SIGNATURE_BYTES])


def claimed_level(data: bytes) -> int:
    """The level that a peer record votes for; the record was checked before."""
    level = unpack(bytes(data[HEAD_BYTES:]))[1 + _WIRE_FIELDS.index("level")]
    assert type(level) is int
    return level


def claimed_run_id(data: bytes) -> str | None:
    """The run id that a run record names, before anything is checked; None when `data` is no run record."""
    try:
        return _unpack_run_record(open_envelope(data, MAX_RUN_RECORD_BYTES, "run record")[1])[0]
    except (ValueError, PeerFault):
        return None


def run_key(run_id: str) -> str:
    """DHT key of the run record: one value."""
    return f"{run_id}/run"


def seal(identity: Identity, domain: bytes, body: bytes) -> bytes:
    """The envelope of what `identity` says, which `open_envelope` opens."""
    return identity.sign(domain + identity.public_key + body) + identity.public_key + body


def open_sealed(
    data: bytes,
    max_bytes: int,
    kind: str,
    domain: bytes,
    unpack_it: Callable[[bytes, PeerId], T],
    pack_it: Callable[[T], bytes],
) -> T:
    """What a key says in an envelope that `seal` made; `unpack_it` checks every field, and raises ValueError.

    Raises:
        PeerFault: too large, bad signature, or wrong in itself.
    """
    public_key, body = open_envelope(data, max_bytes, kind)
    peer_id = peer_id_of(public_key)
    _check_signature(data, public_key, domain + public_key + body)
    try:
        said = unpack_it(body, peer_id)
        if pack_it(said) != body:
            raise ValueError("bytes that are not in canonical form; expected one form per record")
    except ValueError as error:
        raise PeerFault(peer_id, f"sent a {kind} with {error}; it is ignored") from error
    return said


def check_expiry(peer_id: PeerId, kind: str, expires_at: float, now: float, longest: float) -> None:
    """Raise PeerFault unless something lives on, and no longer than it may."""
    if not now < expires_at <= now + longest:
        raise PeerFault(
            peer_id,
            f"sent a {kind} that expires {expires_at - now:+.0f} s from now; expected 0 to {longest:.0f} s; it is "
            "ignored (is a clock wrong?)",
        )


def open_envelope(data: bytes, max_bytes: int, kind: str) -> tuple[bytes, bytes]:
    """(public key, body) of something signed; nothing is checked but its length, for which it raises PeerFault."""
    if not HEAD_BYTES < len(data) <= max_bytes:
        raise PeerFault("", f"a {kind} of {len(data)} bytes; expected {HEAD_BYTES + 1} to {max_bytes}; it is ignored")
    return bytes(data[SIGNATURE_BYTES:HEAD_BYTES]), bytes(data[HEAD_BYTES:])


def _check_signature(data: bytes, public_key: bytes, message: bytes) -> None:
    if not verify_key(public_key, message, bytes(data[:SIGNATURE_BYTES])):
        what = "a record whose signature is wrong; expected the key's own; it is ignored"
        raise PeerFault(peer_id_of(public_key), what)


def _unpack_array(body: bytes, num_items: int, record_format: int) -> list[Any]:
    items = unpack(body)
    if type(items) is not list or not items or type(items[0]) is not int or items[0] != record_format:
        raise ValueError(f"an unknown format; expected format {record_format}; one of the two peers needs an update")
    if len(items) != num_items:
        raise ValueError(f"{len(items)} fields; expected {num_items}")
    return items


def _pack_run_record(run_id: str, manifest: bytes) -> bytes:
    return pack([_RUN_FORMAT, run_id, manifest])


def _unpack_run_record(body: bytes) -> tuple[str, bytes]:
    _, run_id, manifest = _unpack_array(body, 3, _RUN_FORMAT)
    if type(run_id) is not str or type(manifest) is not bytes:
        raise ValueError("fields of wrong types; expected run id (text) and manifest (bytes)")
    return run_id, manifest


def _run_message(run_id: str, manifest: bytes) -> bytes:
    return _RUN_DOMAIN + run_id.encode() + b"\0" + manifest


def _revision_of(manifest: bytes) -> int:
    try:
        content = json.loads(manifest.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a manifest that is no JSON ({type(error).__name__}); expected an object") from error
    revision = content.get("revision") if type(content) is dict else None
    if type(revision) is not int or not 0 <= revision <= MAX_WHOLE:
        raise ValueError('a manifest without "revision"; expected a whole number from 0')
    return revision


def _pack_peer_record(record: PeerRecord) -> bytes:
    values = {name: getattr(record, name) for name in _WIRE_FIELDS}
    for name in (*_REALS, *_LOSSES):
        values[name] = None if values[name] is None else float(values[name])
    values["digests"] = b"".join(record.digests)
    times = record.newest_round
    values["newest_round"] = times and [times.fragment, times.version, *(float(x) for x in astuple(times)[2:])]
    return pack([_PEER_FORMAT, *values.values()])


def _unpack_peer_record(body: bytes, peer_id: PeerId) -> PeerRecord:
    items = _unpack_array(body, 1 + len(_WIRE_FIELDS), _PEER_FORMAT)
    values = dict(zip(_WIRE_FIELDS, items[1:], strict=True))
    digests = values["digests"]
    if type(values["versions"]) is not list or type(digests) is not bytes or type(values["lineage_tokens"]) is not list:
        raise ValueError("versions, digests or lineage tokens of a wrong type; expected array, bytes, array")
    times = values["newest_round"]
    if times is not None and (type(times) is not list or len(times) != len(fields(RoundTimes))):
        raise ValueError(f"a newest round of a wrong form; expected nil or {len(fields(RoundTimes))} numbers")
    values["newest_round"] = None if times is None else RoundTimes(*times)
    values["versions"] = tuple(values["versions"])
    values["lineage_tokens"] = tuple(values["lineage_tokens"])
    values["digests"] = tuple(digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES))
    record = PeerRecord(peer_id=peer_id, **values)
    _check_peer_record(record)
    return record


def _check_peer_record(record: PeerRecord) -> None:
    for name in _WHOLES:
        check_whole(name, getattr(record, name))
    for name in _REALS:
        check_real(name, getattr(record, name), at_least=0.0)
    for name in _LOSSES:
        if getattr(record, name) is not None:
            check_real(name, getattr(record, name), at_least=-MAX_REAL)
    reading_of(record.reading)
    check_whole("level", record.level)
    if record.level > MAX_LEVEL or record.longer_seconds > turn_seconds(MAX_LEVEL):
        raise ValueError(
            f"level {record.level} and {record.longer_seconds:.0f} s longer; expected at most {MAX_LEVEL} and "
            f"{turn_seconds(MAX_LEVEL):.0f}"
        )
    check_text("run_id", record.run_id, MAX_RUN_ID_LENGTH)
    check_text("device", record.device, MAX_LABEL_LENGTH)
    check_text("name", record.name, MAX_LABEL_LENGTH)
    check_text("site", record.site, MAX_LABEL_LENGTH)
    check_text("software", record.software, MAX_SOFTWARE_LENGTH)
    check_choice("state", record.state, PEER_STATES)
    check_choice("role", record.role, PEER_ROLES)
    check_bytes("manifest_hash", record.manifest_hash, MANIFEST_HASH_BYTES)
    if type(record.reachable) is not bool:
        raise ValueError(f"reachable of type {type(record.reachable).__name__}; expected true or false")
    if record.contributor_key != b"":
        check_bytes("contributor_key", record.contributor_key, PUBLIC_KEY_BYTES)
    if record.newest_round is not None:
        _check_times(record.newest_round)
    num_fragments = len(record.versions)
    if not num_fragments == len(record.digests) == len(record.lineage_tokens) or num_fragments > MAX_FRAGMENTS:
        raise ValueError(
            f"{num_fragments} versions, {len(record.digests)} digests and {len(record.lineage_tokens)} lineage tokens; "
            f"expected equally many of each, at most {MAX_FRAGMENTS}"
        )
    for version, digest, lineage_tokens in zip(record.versions, record.digests, record.lineage_tokens, strict=True):
        check_whole("versions", version, MAX_VERSION)
        check_whole("lineage_tokens", lineage_tokens, MAX_LINEAGE_TOKENS)
        check_bytes("digest", digest, DIGEST_BYTES)


def _check_times(times: RoundTimes) -> None:
    for name in ("fragment", "version"):
        check_whole(f"newest_round.{name}", getattr(times, name))
    for name in ("started_at", "compute_seconds", "send_seconds", "receive_seconds", "apply_seconds"):
        check_real(f"newest_round.{name}", getattr(times, name), at_least=0.0)
