"""The handshake: the first frame of each stream and its answer. Pure.

The caller sends a hello; the called peer answers with a welcome, or with a refusal and its reason. The transport has
already authenticated the remote's PeerId, so a hello with a different one is a lie. Frames are msgpack maps: a peer of
any protocol version can read `protocol_version` and `refused` in all of them.

In a private run hello and welcome carry a proof of membership, which `dht.admission.admission` checks first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

from dht.admission.dated_proofs import MAX_PROOF_BYTES
from dht.ground.errors import PeerFault
from dht.ground.fields import check_bytes, check_choice, check_text, check_whole, clean_text, pack, unpack
from dht.ground.host import PeerId
from dht.records.peer_record import MAX_RUN_ID_LENGTH, MAX_SOFTWARE_LENGTH
from dht.records.signed_manifest import MANIFEST_HASH_BYTES

PROTOCOL_VERSION: Final = 2
"""Protocol version of the hello, checked before all other fields."""
MAX_HELLO_BYTES: Final = 1024
"""A hello takes about 250."""
MAX_REASON_LENGTH: Final = 300
"""Characters of a refusal's reason."""
MAX_REPLY_BYTES: Final = 2048
"""A reason of 300 characters takes at most 1200 bytes."""

HelloRole = Literal["trainer", "seed", "observer"]
HELLO_ROLES: Final[tuple[HelloRole, ...]] = ("trainer", "seed", "observer")


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Values that a remote must match, and that this peer sends."""

    run_id: str
    manifest_hash: bytes
    """32 bytes."""
    software: str
    """Software version, at most 20 characters; only displayed."""
    rules: int = 0
    """Number of the run's rules (`averaging/rules.py`)."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a stream, as `check_hello` returns it."""

    protocol_version: int
    software: str
    rules: int
    run_id: str
    manifest_hash: bytes
    peer_id: PeerId
    role: HelloRole
    proof: bytes


_WHO_UPDATES: Final = "the older of the two peers needs an update"
_HELLO_FIELDS = frozenset(field.name for field in fields(Hello))


def make_hello(rule: AccessRule, me: PeerId, role: str, proof: bytes = b"") -> bytes:
    """Return the first frame of a stream that `me` opens; at most `MAX_HELLO_BYTES`.

    Raises:
        ValueError: `check_hello` would refuse a field.
    """
    check_choice("role", role, HELLO_ROLES)
    hello = Hello(
        PROTOCOL_VERSION,
        rule.software,
        rule.rules,
        rule.run_id,
        rule.manifest_hash,
        me,
        role,  # type: ignore[arg-type]
        proof,
    )
    _check_fields(asdict(hello))
    return pack(asdict(hello))


def check_hello(rule: AccessRule, remote: PeerId, frame: bytes) -> Hello:
    """Check the first frame of the authenticated `remote`, and return its hello.

    Raises:
        PeerFault: malformed frame, different protocol version, run or manifest, or false PeerId. The text may be sent
            back.
    """
    try:
        content = _unpack_map(frame, MAX_HELLO_BYTES, "a hello")
        # Checked first, because other versions have different fields.
        _check_version(content)
        if content.keys() != _HELLO_FIELDS:
            raise ValueError(f"a hello with {len(content)} fields; expected {', '.join(sorted(_HELLO_FIELDS))}")
        _check_fields(content)
        hello = Hello(**content)
        if hello.run_id != rule.run_id:
            raise ValueError(f"run {hello.run_id}; expected {rule.run_id}; check the run id")
        if hello.rules != rule.rules:
            raise ValueError(f"rules {hello.rules}; expected {rule.rules}; {_WHO_UPDATES}")
        if hello.manifest_hash != rule.manifest_hash:
            raise ValueError(
                f"manifest {hello.manifest_hash.hex()[:12]}; expected {rule.manifest_hash.hex()[:12]}; "
                f"join again to fetch the run's current manifest"
            )
        if hello.peer_id != remote:
            raise ValueError(f"the PeerId {hello.peer_id}; expected {remote}, which the connection has proved")
    except ValueError as error:
        raise PeerFault(remote, f"introduced itself with {error}") from error
    return hello


def proof_in(frame: bytes) -> bytes:
    """Return the proof in an unchecked hello; empty if there is none."""
    try:
        proof = _unpack_map(frame, MAX_HELLO_BYTES, "a hello").get("proof")
    except ValueError:
        return b""
    return proof if type(proof) is bytes else b""


def make_welcome(proof: bytes = b"") -> bytes:
    """Return the answer to an admitted hello; in a private run with a proof of this peer."""
    shown = {"proof": proof} if proof else {}
    return pack({"protocol_version": PROTOCOL_VERSION, "refused": None, **shown})


def make_refusal(reason: str) -> bytes:
    """Return the answer to a refused hello; `reason` is cleaned and cut to `MAX_REASON_LENGTH`."""
    text = clean_text(reason, MAX_REASON_LENGTH) or "no reason given"
    return pack({"protocol_version": PROTOCOL_VERSION, "refused": text})


def check_reply(remote: PeerId, frame: bytes) -> bytes:
    """Return the proof (empty if there is none) in the welcome of `remote`.

    Raises:
        PeerFault: the remote refused, with its reason, or sent a malformed frame.
    """
    try:
        content = _unpack_map(frame, MAX_REPLY_BYTES, "an answer to this peer's hello")
        refused = content.get("refused", b"")
        if refused is not None:
            check_text("refused", refused, MAX_REASON_LENGTH)
            raise PeerFault(remote, f"refused this peer: {refused}")
        _check_version(content)
        proof = content.pop("proof", b"")
        if content.keys() != {"protocol_version", "refused"}:
            raise ValueError(f"an answer with {len(content)} fields; expected protocol_version and refused")
        if type(proof) is not bytes or len(proof) > MAX_PROOF_BYTES:
            raise ValueError(f"a proof of a wrong type or length; expected at most {MAX_PROOF_BYTES} bytes")
    except ValueError as error:
        raise PeerFault(remote, f"answered this peer's hello with {error}") from error
    return proof


def _unpack_map(frame: bytes, max_bytes: int, what: str) -> dict[Any, Any]:
    if len(frame) > max_bytes:
        raise ValueError(f"{what} of {len(frame)} bytes; expected at most {max_bytes}")
    content = unpack(frame)
    if type(content) is not dict:
        raise ValueError(f"{what} of type {type(content).__name__}; expected a map")
    return content


def _check_version(content: dict[Any, Any]) -> None:
    version = content.get("protocol_version")
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise ValueError(f"protocol version {version!r:.20}; expected {PROTOCOL_VERSION}; {_WHO_UPDATES}")


def _check_fields(content: dict[Any, Any]) -> None:
    check_text("software", content["software"], MAX_SOFTWARE_LENGTH)
    check_whole("rules", content["rules"])
    check_text("run_id", content["run_id"], MAX_RUN_ID_LENGTH)
    check_bytes("manifest_hash", content["manifest_hash"], MANIFEST_HASH_BYTES)
    check_text("peer_id", content["peer_id"], 64)
    check_choice("role", content["role"], HELLO_ROLES)
    proof = content["proof"]
    if type(proof) is not bytes or len(proof) > MAX_PROOF_BYTES:
        raise ValueError(f"a proof of a wrong type or length; expected at most {MAX_PROOF_BYTES} bytes")
