"""A peer's record of itself, signed and expiring. Pure.

Results of `decode_peer_record` are completely checked.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields, replace
from typing import Any, Final, Literal

from dht.ground.errors import PeerFault
from dht.ground.fields import (
    MAX_REAL,
    check_bytes,
    check_choice,
    check_real,
    check_text,
    check_whole,
    clean_text,
    pack,
    unpack,
)
from dht.ground.host import PeerId
from dht.identity.keys import PUBLIC_KEY_BYTES, Identity
from dht.records.data_reading import reading_of
from dht.records.evaluation import Evaluation
from dht.records.key_levels import MAX_LEVEL, turn_seconds
from dht.records.lineages import MAX_LINEAGE_TOKENS, MAX_VERSION
from dht.records.signature_cache import VerifiedRecords
from dht.records.signed_envelopes import HEAD_BYTES, check_expiry, open_sealed, seal, unpack_array
from dht.records.signed_manifest import MANIFEST_HASH_BYTES

MAX_PEER_RECORD_BYTES: Final = 1280
"""With this limit, 128 peers in one dictionary of the DHT stay below 256 KiB, far from the 4 MiB at which holders look
dead."""


MAX_PEER_RECORD_LIFE_SECONDS: Final = 300.0
"""Records live 90 to 105 s, and in a large swarm `longer_seconds` more. Three times that bounds how long a replayed
record, or one with a wrong clock, can stay in a view.
"""


MAX_FRAGMENTS: Final = 4096
"""Bound on arrays; the record's size bounds them further."""


DIGEST_BYTES: Final = 8
"""Prefix of an anchor's digest: enough to notice a fork; the peer itself provides the full digest."""


MAX_RUN_ID_LENGTH: Final = 61
"""Characters: name, dot, fingerprint."""


MAX_LABEL_LENGTH: Final = 40
"""Characters of `device` and `name`."""


MAX_SOFTWARE_LENGTH: Final = 20
"""Characters of `software`."""


PeerState = Literal["joining", "training", "serving", "leaving", "left"]


PeerRole = Literal["trainer", "seed"]


PEER_STATES: Final[tuple[PeerState, ...]] = ("joining", "training", "serving", "leaving", "left")


PEER_ROLES: Final[tuple[PeerRole, ...]] = ("trainer", "seed")


_PEER_FORMAT = 7


_PEER_DOMAIN = b"murmuration peer record\0"


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Durations of one peer's newest round, at `version` of `fragment`: consecutive phases, in seconds."""

    fragment: int
    version: int
    started_at: float
    """Unix seconds at which `compute_seconds` began."""
    compute_seconds: float
    """Since this peer's previous round; training continues in the other phases."""
    send_seconds: float
    """From the plan to the commit: the peer sends its contribution, and the reducers average."""
    receive_seconds: float
    """From the commit until all results arrived."""
    apply_seconds: float


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """One peer's statements about itself until `expires_at`; signed with the key inside `peer_id`.

    `versions`, `digests` and `lineage_tokens` have one entry for each fragment, or none while the peer has no anchors.
    """

    run_id: str
    peer_id: PeerId
    session: int
    """Random 63 bits, new at each process start: two sessions at once mean two processes with one key file."""
    sequence: int
    """Increases with each record of a session."""
    expires_at: float
    """Unix seconds."""
    manifest_hash: bytes
    """32 bytes."""
    state: PeerState
    role: PeerRole
    device: str
    """At most 40 printable characters, like `name`; `software` at most 20."""
    name: str
    """Name that the volunteer chose; empty: none."""
    software: str
    reachable: bool
    inner_steps: int
    tokens: int
    rounds_contributed: int
    tokens_per_second: float
    upload_bits_per_second: float
    train_loss: float | None
    evaluation: Evaluation | None
    versions: tuple[int, ...]
    digests: tuple[bytes, ...]
    """First 8 bytes of each fragment's anchor digest."""
    lineage_tokens: tuple[int, ...]
    """Tokens committed into each fragment's anchor since version 0: the weight of this lineage."""
    started_at: float
    """Unix seconds at which the session began."""
    newest_round: RoundTimes | None = None
    contributor_key: bytes = b""
    """Public key of the contributor who owns this machine (`profiles.py`), 32 bytes; empty: none."""
    site: str = ""
    """Location of the machine in its owner's words; at most 40 printable characters."""
    level: int = 0
    """This peer's vote for the level of keys (`key_levels.py`)."""
    longer_seconds: float = 0.0
    """Additional life of this record compared with a small swarm, where a lookup reads all keys."""
    reading: bytes = b""
    """Data that the peer reads (`data_reading.py`); empty: none that is divided among peers."""
    rules: int = 0
    """Number of the run's rules (`averaging/rules.py`)."""

    @property
    def is_training(self) -> bool:
        """Whether the peer takes part in rounds now: role trainer, state training."""
        return self.role == "trainer" and self.state == "training"


_WIRE_FIELDS = tuple(field.name for field in fields(PeerRecord) if field.name != "peer_id")
"""Their order is the wire format: changing the dataclass requires a new `_PEER_FORMAT`."""


_WHOLES = ("rules", "session", "sequence", "inner_steps", "tokens", "rounds_contributed")


_REALS = (
    *("expires_at", "started_at", "longer_seconds"),
    *("tokens_per_second", "upload_bits_per_second"),
)


_SAID_IN_PASSING: tuple[tuple[str, Any], ...] = (("reading", b""), ("newest_round", None), ("device", ""), ("name", ""))
"""Fields that no round needs, with their empty values; the longest first."""


def encode_peer_record(record: PeerRecord, identity: Identity) -> bytes:
    """Sign and encode a record; at most `MAX_PEER_RECORD_BYTES`.

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
    """Return the record and its bytes, without the fields that no round needs if the whole is too large.

    Versions and tokens take more bytes as they grow, including those that a liar invented. The peer must still be able
    to publish.

    Raises:
        ValueError: as from `encode_peer_record`.
    """
    for name, nothing in _SAID_IN_PASSING:
        if HEAD_BYTES + len(_pack_peer_record(record)) <= MAX_PEER_RECORD_BYTES:
            break
        record = replace(record, **{name: nothing})
    return record, encode_peer_record(record, identity)


def decode_peer_record(data: bytes, *, run_id: str, now: float, verified: VerifiedRecords | None = None) -> PeerRecord:
    """Check a peer record completely and return it. `now` in unix seconds.

    Raises:
        PeerFault: the record is too large, wrongly signed, of another run, expired, expires too late, or has a field
            out of range.
    """
    record = None if verified is None else verified.record(data, PeerRecord)
    if record is None:
        what = (data, MAX_PEER_RECORD_BYTES, "peer record", _PEER_DOMAIN)
        record = _readable(open_sealed(*what, _unpack_peer_record, _pack_peer_record))
        if verified is not None:
            verified.add_record(data, record)
    peer_id = record.peer_id
    if record.run_id != run_id:
        raise PeerFault(peer_id, f"sent a record of run {record.run_id}; expected {run_id}; it is ignored")
    check_expiry(peer_id, "record", record.expires_at, now, MAX_PEER_RECORD_LIFE_SECONDS + record.longer_seconds)
    return record


def _readable(record: PeerRecord) -> PeerRecord:
    """Return the record with cleaned texts: an invisible name becomes empty."""
    said = (record.device, record.name, record.site, record.software)
    device, name, site, software = shown = tuple(clean_text(text, len(text)) for text in said)
    if shown == said:
        return record
    return replace(record, device=device, name=name, site=site, software=software)


def claimed_level(data: bytes) -> int:
    """Return the level that a checked peer record votes for."""
    level = unpack(bytes(data[HEAD_BYTES:]))[1 + _WIRE_FIELDS.index("level")]
    assert type(level) is int
    return level


def _pack_peer_record(record: PeerRecord) -> bytes:
    values = {name: getattr(record, name) for name in _WIRE_FIELDS}
    for name in _REALS:
        values[name] = float(values[name])
    values["train_loss"] = None if record.train_loss is None else float(record.train_loss)
    evaluation = record.evaluation
    values["evaluation"] = evaluation and [float(evaluation.loss), evaluation.version]
    values["digests"] = b"".join(record.digests)
    times = record.newest_round
    values["newest_round"] = times and [times.fragment, times.version, *(float(x) for x in astuple(times)[2:])]
    return pack([_PEER_FORMAT, *values.values()])


def _unpack_peer_record(body: bytes, peer_id: PeerId) -> PeerRecord:
    items = unpack_array(body, 1 + len(_WIRE_FIELDS), _PEER_FORMAT)
    values = dict(zip(_WIRE_FIELDS, items[1:], strict=True))
    digests = values["digests"]
    if type(values["versions"]) is not list or type(digests) is not bytes or type(values["lineage_tokens"]) is not list:
        raise ValueError("versions, digests or lineage tokens of a wrong type; expected array, bytes, array")
    times = values["newest_round"]
    if times is not None and (type(times) is not list or len(times) != len(fields(RoundTimes))):
        raise ValueError(f"a newest round of a wrong form; expected nil or {len(fields(RoundTimes))} numbers")
    values["newest_round"] = None if times is None else RoundTimes(*times)
    evaluation = values["evaluation"]
    if evaluation is not None and (type(evaluation) is not list or len(evaluation) != len(fields(Evaluation))):
        raise ValueError(f"an evaluation of a wrong form; expected nil or {len(fields(Evaluation))} numbers")
    values["evaluation"] = None if evaluation is None else Evaluation(*evaluation)
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
    if record.train_loss is not None:
        check_real("train_loss", record.train_loss, at_least=-MAX_REAL)
    if record.evaluation is not None:
        check_real("evaluation.loss", record.evaluation.loss, at_least=-MAX_REAL)
        check_whole("evaluation.version", record.evaluation.version)
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
