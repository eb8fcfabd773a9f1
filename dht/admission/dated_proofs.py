"""Proofs of membership: the first bytes that a peer of a private run sends on each stream and in each DHT call. Pure.

A proof is signed with the peer's key over both PeerIds, the purpose, a time and 16 random bytes. The called side
accepts it once, within 90 s by its own clock. That needs a time and a memory of seen proofs; a challenge instead would
cost a round trip before each stream and DHT call. The answer needs no memory: it signs the caller's random bytes, which
no peer could know before.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

from dht.admission.tickets import MAX_PASS_BYTES
from dht.ground.fields import check_bytes, pack, unpack
from dht.ground.host import PeerId
from dht.identity.keys import SIGNATURE_BYTES, Identity, verify

MAX_PROOF_BYTES: Final = 512
"""Pass of 190 bytes, signature, nonce, time: about 290."""
NONCE_BYTES: Final = 16
"""Too many to guess, or to be equal by chance."""
PROOF_SECONDS: Final = 90.0
"""A minute of difference between two clocks, and half a minute of transfer."""
MAX_NONCES_PER_PEER: Final = 4096
"""Within `2 * PROOF_SECONDS`: 22 streams and DHT calls a second for three minutes. Further proofs are refused."""
MAX_NONCES: Final = 65_536
"""About 10 MB."""

Purpose = Literal["stream", "dht", "run", "answer"]

_FORMAT = 1
_DOMAIN = b"murmuration membership proof\0"


@dataclass(frozen=True, slots=True)
class Proof:
    """Content of a proof with a valid signature of the caller."""

    at: float
    nonce: bytes
    ticket_pass: bytes
    """Encoded pass; empty if the peer relies on the manifest's list of keys."""


def make_proof(
    identity: Identity, run_id: str, remote: PeerId, purpose: Purpose, now: float, nonce: bytes, ticket_pass: bytes
) -> bytes:
    """Return a proof that only `remote` accepts; `now` in unix seconds, `nonce` 16 random bytes (in an answer: the
    caller's).
    """
    milliseconds = int(1000 * now)
    message = _message(run_id, identity.peer_id, remote, purpose, milliseconds, nonce, ticket_pass)
    return pack([_FORMAT, milliseconds, nonce, ticket_pass, identity.sign(message)])


def nonce_of(proof: bytes) -> bytes:
    """Return the random bytes in a proof of this peer; empty if this peer has no proof."""
    return bytes(unpack(proof)[2]) if proof else b""


def open_proof(data: bytes, run_id: str, remote: PeerId, me: PeerId, purpose: Purpose) -> Proof:
    """Check form and signature of a proof that the authenticated `remote` sent to `me`.

    Raises:
        ValueError: the proof is malformed, or made by or for a different peer, run or purpose.
    """
    if not 0 < len(data) <= MAX_PROOF_BYTES:
        raise ValueError(f"a membership proof of {len(data)} bytes; expected 1 to {MAX_PROOF_BYTES}")
    content = unpack(data)
    if type(content) is not list or len(content) != 5 or content[0] != _FORMAT:
        raise ValueError("a membership proof in an unknown form")
    _, milliseconds, nonce, ticket_pass, signature = content
    if type(milliseconds) is not int or not 0 <= milliseconds <= 2**53:
        raise ValueError("a membership proof without a time")
    check_bytes("nonce", nonce, NONCE_BYTES)
    check_bytes("signature", signature, SIGNATURE_BYTES)
    if type(ticket_pass) is not bytes or len(ticket_pass) > MAX_PASS_BYTES:
        raise ValueError("a pass of a wrong type or length")
    if not verify(remote, _message(run_id, remote, me, purpose, milliseconds, nonce, ticket_pass), signature):
        raise ValueError("a membership proof with a wrong signature")
    return Proof(milliseconds / 1000, nonce, ticket_pass)


class NonceMemory:
    """Memory of the proofs seen within the time in which they could be repeated.

    Only members with a checked signature reach this memory. When it is full, it refuses proofs: forgetting one would
    let the proof be used twice.
    """

    def __init__(self) -> None:
        self._seen: dict[PeerId, OrderedDict[bytes, float]] = {}
        self._num_nonces = 0

    def __len__(self) -> int:
        return self._num_nonces

    def take(self, remote: PeerId, proof: Proof, now: float) -> None:
        """Note a proof.

        Raises:
            ValueError: the proof is too old, from the future or repeated, or the memory is full.
        """
        if not abs(now - proof.at) <= PROOF_SECONDS:
            raise ValueError(
                f"a membership proof made {now - proof.at:+.0f} s ago; expected at most {PROOF_SECONDS:.0f} s; one of "
                "the two clocks is wrong"
            )
        self._forget_old(remote, now)
        seen = self._seen.setdefault(remote, OrderedDict())
        if proof.nonce in seen:
            raise ValueError("a membership proof that was used before")
        if len(seen) >= MAX_NONCES_PER_PEER or self._num_nonces >= MAX_NONCES:
            for other in list(self._seen):
                self._forget_old(other, now)
            if len(seen) >= MAX_NONCES_PER_PEER or self._num_nonces >= MAX_NONCES:
                raise ValueError(f"more than {MAX_NONCES_PER_PEER} membership proofs in {2 * PROOF_SECONDS:.0f} s")
            self._seen[remote] = seen
        seen[proof.nonce] = now + 2 * PROOF_SECONDS
        self._num_nonces += 1

    def _forget_old(self, remote: PeerId, now: float) -> None:
        seen = self._seen.get(remote)
        while seen and next(iter(seen.values())) < now:
            seen.popitem(last=False)
            self._num_nonces -= 1
        if seen is not None and not seen:
            del self._seen[remote]


def _message(
    run_id: str, sender: PeerId, receiver: PeerId, purpose: str, milliseconds: int, nonce: bytes, ticket_pass: bytes
) -> bytes:
    return _DOMAIN + pack(
        [run_id, sender, receiver, purpose, milliseconds, nonce, hashlib.sha256(ticket_pass).digest()]
    )
