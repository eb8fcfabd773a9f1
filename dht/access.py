"""Who may talk to a run's members: the first frame of every stream, and the answer to it. Pure.

Hello:   msgpack ["hello", protocol version, software, run id, manifest hash, peer id, role, proof]
Answer:  msgpack ["welcome"] or ["refused", reason]

Access `open` admits everyone who runs the same manifest; allow-list and invites add a check of `proof` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from dht.errors import PeerFault
from dht.host import PeerId

PROTOCOL_VERSION = 1
MAX_REASON_CHARACTERS = 300
ROLES = ("trainer", "seed", "observer")


@dataclass(frozen=True, slots=True)
class AccessRule:
    """What both ends must agree on. `manifest_hash`: 32 bytes."""

    run_id: str
    manifest_hash: bytes
    software: str


def make_hello(rule: AccessRule, me: PeerId, role: str, proof: bytes = b"") -> bytes:
    """The first frame of a stream."""
    return _pack(["hello", PROTOCOL_VERSION, rule.software, rule.run_id, rule.manifest_hash, me, role, proof])


def check_hello(rule: AccessRule, remote: PeerId, hello: bytes) -> str:
    """Check a remote's first frame and return its role.

    Raises:
        PeerFault: malformed, another protocol version, run or manifest, or another peer's name; the text is the
            reason sent back.
    """
    fields = _unpack(hello, remote, "hello", 8)
    _, version, software, run_id, manifest_hash, peer_id, role, proof = fields
    if version != PROTOCOL_VERSION:
        theirs = f"{version!r:.20} ({software!r:.40})"
        raise PeerFault(
            remote,
            f"speaks protocol version {theirs}; expected {PROTOCOL_VERSION} ({rule.software}): install the same version",
        )
    if run_id != rule.run_id:
        raise PeerFault(remote, f"is in run {run_id!r:.80}; expected {rule.run_id}")
    if manifest_hash != rule.manifest_hash:
        theirs = manifest_hash.hex()[:16] if isinstance(manifest_hash, bytes) else "none"
        raise PeerFault(
            remote,
            f"has manifest {theirs}; expected {rule.manifest_hash.hex()[:16]}: restart to fetch the newest manifest",
        )
    if peer_id != remote:
        raise PeerFault(remote, f"introduced itself as {peer_id!r:.80}")
    if role not in ROLES or type(proof) is not bytes:
        raise PeerFault(remote, f"has role {role!r:.20}; expected one of {', '.join(ROLES)}")
    return str(role)


def make_welcome() -> bytes:
    """The answer to a hello that was admitted."""
    return _pack(["welcome"])


def make_refusal(reason: str) -> bytes:
    """The answer to a hello that was refused."""
    return _pack(["refused", reason[:MAX_REASON_CHARACTERS]])


def check_reply(remote: PeerId, reply: bytes) -> None:
    """Check a remote's answer to our hello.

    Raises:
        PeerFault: it refused us (with its reason), or answered something else.
    """
    fields = _unpack(reply, remote, None, 0)
    if fields == ["welcome"]:
        return
    if len(fields) == 2 and fields[0] == "refused" and isinstance(fields[1], str):
        raise PeerFault(remote, f"refused this peer: {fields[1][:MAX_REASON_CHARACTERS]}")
    raise PeerFault(remote, "answered the hello with neither welcome nor refusal")


def _pack(fields: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def _unpack(data: bytes, remote: PeerId, kind: str | None, num_fields: int) -> list[Any]:
    try:
        fields = msgpack.unpackb(data, raw=False, max_map_len=0, max_ext_len=0, max_array_len=16)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise PeerFault(remote, f"sent a first frame that is not msgpack ({type(error).__name__})") from error
    if type(fields) is not list or (kind is not None and (len(fields) != num_fields or fields[0] != kind)):
        raise PeerFault(remote, f"sent a first frame that is no {kind or 'answer'}; expected this run's protocol")
    return fields
