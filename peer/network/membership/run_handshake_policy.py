"""The membership rules of `dht/admission` as the handshake policy of rounds and state transfer."""

from __future__ import annotations

from dataclasses import dataclass

from dht.admission.admission import Admission, NotAdmitted
from dht.admission.dated_proofs import nonce_of
from dht.admission.handshake_frames import (
    AccessRule,
    check_hello,
    check_reply,
    make_hello,
    make_refusal,
    make_welcome,
    proof_in,
)
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from peer.version import is_older


@dataclass(slots=True)
class RunHandshakePolicy:
    """Sends this run's manifest hash, and refuses peers of a different run, manifest or protocol version.

    With an `admission` it first requires membership; without one, all peers are members.

    Attributes:
        minimum_software: older software is refused with a reason; empty: all versions are accepted.
    """

    rule: AccessRule
    me: PeerId
    role: str
    admission: Admission | None = None
    minimum_software: str = ""

    def hello(self, remote: PeerId) -> bytes:
        proof = b"" if self.admission is None else self.admission.prove(remote, "stream")
        return make_hello(self.rule, self.me, self.role, proof)

    def admit(self, remote: PeerId, hello: bytes) -> str:
        ticket = None
        if self.admission is not None:
            _, ticket = self.admission.admit(remote, proof_in(hello), "stream")
        read = check_hello(self.rule, remote, hello)
        if self.admission is not None and self.admission.is_excluded(remote):
            raise PeerFault(remote, "its key was revoked by the run's owner")
        if ticket is not None and ticket.kind == "errand" and read.role != "observer":
            raise PeerFault(remote, f"is a {read.role} with an errand; expected an observer")
        if self.minimum_software and is_older(read.software, self.minimum_software):
            raise PeerFault(
                remote,
                f"introduced itself with software {read.software}; expected {self.minimum_software} or newer, which "
                "the run's owner requires; update it",
            )
        return read.role

    def welcome(self, remote: PeerId, hello: bytes) -> bytes:
        proof = proof_in(hello)
        if self.admission is None or not self.admission.is_private:
            return make_welcome()
        return make_welcome(self.admission.answer(remote, nonce_of(proof)))

    def refusal(self, fault: PeerFault) -> bytes:
        if isinstance(fault, NotAdmitted):
            return make_refusal(fault.told) if fault.told else b""
        return make_refusal(fault.what)

    def check_reply(self, remote: PeerId, hello: bytes, reply: bytes) -> None:
        proof = check_reply(remote, reply)
        if self.admission is not None and self.admission.is_private:
            self.admission.check_answer(remote, proof, nonce_of(proof_in(hello)))

    @property
    def may_exclude(self) -> bool:
        """Whether `is_excluded` can be true for any peer now."""
        return self.admission is not None and self.admission.may_exclude

    def is_excluded(self, remote: PeerId) -> bool:
        return self.admission is not None and self.admission.is_excluded(remote)
