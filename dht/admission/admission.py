"""Check whether a remote is a member of the run, by rules that may change during the run. Pure: time is an argument.

In an open run all peers are members and need no proofs. In a private run each side first sends the other a proof
(`dht.admission.dated_proofs`) that it holds its key, and that this key is on the owner's list or has the owner's
ticket. Strangers get no answer. A former member, or a peer with an unusable ticket, gets the reason: such a peer
already has the run id, and its owner should not have to guess.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from dht.admission.dated_proofs import NonceMemory, Proof, Purpose, make_proof, open_proof
from dht.admission.tickets import ERRAND_SECONDS, Pass, Ticket, decode_pass, is_for, is_signed_by_owner
from dht.ground.bounds import Newest
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.identity.keys import Identity

AccessMode = Literal["open", "allowlist", "invite"]

MAX_KNOWN_TICKETS: Final = 4096
"""Tickets with checked signatures, and one-time tickets with a known user."""


class NotAdmitted(PeerFault):
    """A remote may not take part.

    Attributes:
        what: the rule that refused the remote, for this peer's owner.
        told: the reason that the remote may get; empty for strangers.
    """

    def __init__(self, peer_id: PeerId, what: str, told: str = "") -> None:
        super().__init__(peer_id, what)
        self.told = told


@dataclass(frozen=True, slots=True)
class MemberRules:
    """The keys that may take part, according to the present manifest."""

    mode: AccessMode
    owner_public_key: bytes
    members: frozenset[PeerId] = frozenset()
    """Keys on the owner's list; they need no ticket."""
    revoked: frozenset[PeerId] = frozenset()
    revoked_tickets: frozenset[bytes] = frozenset()
    """Serials of revoked tickets."""


class Admission:
    """One peer's side of membership in one run.

    Args:
        identity: this peer's key.
        ticket_pass: encoded pass of this peer; empty if it has none.
        now: returns unix seconds.
        new_nonce: returns 16 random bytes.
        rules: None until the manifest is known; until then a run known to be private admits no peer.
        is_private: whether the run is known to be private before its manifest is known.
        on_refused: called with (remote, rule) for each refusal.
        on_used: called with (ticket, PeerId) when a one-time ticket is used for the first time.
    """

    def __init__(
        self,
        identity: Identity,
        run_id: str,
        now: Callable[[], float],
        new_nonce: Callable[[], bytes],
        *,
        ticket_pass: bytes = b"",
        rules: MemberRules | None = None,
        is_private: bool = False,
        on_refused: Callable[[PeerId, str], None] = lambda remote, rule: None,
        on_used: Callable[[Ticket, PeerId], None] = lambda ticket, peer_id: None,
    ) -> None:
        self.run_id = run_id
        self._on_refused = on_refused
        self._on_used = on_used
        self._identity = identity
        self._ticket_pass = ticket_pass
        self._now = now
        self._new_nonce = new_nonce
        self._rules = rules
        self._is_private = is_private
        self._nonces = NonceMemory()
        self._tickets: Newest[bytes, Ticket] = Newest(MAX_KNOWN_TICKETS)
        self._users: dict[bytes, PeerId] = {}
        """User of each one-time ticket that this peer saw."""
        self._ticket_of: Newest[PeerId, Ticket] = Newest(MAX_KNOWN_TICKETS)
        with contextlib.suppress(ValueError):  # no pass, or a damaged one
            # A remote that shows this peer's own ticket has a copy of the invite.
            self.note_user(decode_pass(ticket_pass).ticket.serial, identity.peer_id)

    @property
    def is_private(self) -> bool:
        """Whether proofs are needed."""
        return self._rules.mode != "open" if self._rules is not None else self._is_private

    def set_rules(self, rules: MemberRules) -> None:
        self._rules = rules

    def note_user(self, serial: bytes, peer_id: PeerId) -> None:
        """Store the user of a one-time ticket from an earlier session."""
        if len(self._users) < MAX_KNOWN_TICKETS:
            self._users.setdefault(serial, peer_id)

    def prove(self, remote: PeerId, purpose: Purpose) -> bytes:
        """Return the proof to send to `remote` first; empty in an open run.

        A peer that asks for the manifest sends a proof too: a key on the list needs no invite, and cannot know before
        the manifest that the run has a list.
        """
        is_first = self._rules is None and purpose == "run"
        return self._prove(remote, purpose, self._new_nonce()) if self.is_private or is_first else b""

    def answer(self, remote: PeerId, nonce: bytes) -> bytes:
        """Return the proof to answer a caller whose proof held `nonce`; empty in an open run."""
        return self._prove(remote, "answer", nonce) if self.is_private else b""

    def admit(self, remote: PeerId, proof: bytes, purpose: Purpose) -> tuple[bytes, Ticket | None]:
        """Check a caller's proof and return its nonce and ticket.

        Raises:
            NotAdmitted: the caller may not take part.
        """
        if not self.is_private:
            return b"", None
        opened = self._open(remote, proof, purpose)
        ticket = self._check_member(remote, opened)
        try:
            self._nonces.take(remote, opened, self._now())
        except ValueError as error:
            told = str(error) if "clock" in str(error) else ""
            raise self._refuse(remote, f"sent {error}", told) from error
        return opened.nonce, ticket

    def check_answer(self, remote: PeerId, proof: bytes, nonce: bytes) -> None:
        """Check the proof in the answer of a called peer.

        Raises:
            NotAdmitted: the called peer is not a member.
        """
        if not self.is_private:
            return
        opened = self._open(remote, proof, "answer")
        if opened.nonce != nonce:
            raise self._refuse(remote, "answered with the membership proof of another call")
        self._check_member(remote, opened)

    @property
    def may_exclude(self) -> bool:
        """Whether `is_excluded` can return True for any peer now. In an open run without revoked keys it cannot."""
        return self._rules is not None and (self._rules.mode != "open" or bool(self._rules.revoked))

    def is_excluded(self, remote: PeerId) -> bool:
        """Return whether `remote` is known, without a proof, not to be a member: it is revoked or not on the list."""
        rules = self._rules
        if rules is None or rules.mode == "open":
            return rules is not None and remote in rules.revoked
        if remote in rules.revoked:
            return True
        ticket = self._ticket_of.get(remote)
        if ticket is not None and ticket.serial in rules.revoked_tickets and remote not in rules.members:
            return True
        if ticket is not None and ticket.expires_at <= self._now() and remote not in rules.members:
            return True
        is_on_errand = ticket is not None and ticket.kind == "errand"
        return rules.mode == "allowlist" and remote not in rules.members and not is_on_errand

    # ----------------------------------------------------------------------------------------------------- details

    def _prove(self, remote: PeerId, purpose: Purpose, nonce: bytes) -> bytes:
        return make_proof(self._identity, self.run_id, remote, purpose, self._now(), nonce, self._ticket_pass)

    def _open(self, remote: PeerId, proof: bytes, purpose: Purpose) -> Proof:
        if not proof:
            raise self._refuse(remote, "showed no membership proof")
        try:
            return open_proof(proof, self.run_id, remote, self._identity.peer_id, purpose)
        except ValueError as error:
            raise self._refuse(remote, f"sent {error}") from error

    def _check_member(self, remote: PeerId, proof: Proof) -> Ticket | None:
        rules = self._rules
        if rules is None:
            raise self._refuse(remote, "asked before this peer had the run's manifest")
        if remote in rules.revoked:
            raise self._refuse(remote, "its key was revoked", "the owner of the run revoked this key")
        if remote in rules.members:
            return None
        if not proof.ticket_pass:
            raise self._refuse(remote, "is not on the list of the run's keys and has no invite")
        held = self._checked_pass(remote, proof.ticket_pass, rules)
        ticket = held.ticket
        if rules.mode == "allowlist" and ticket.kind != "errand":
            raise self._refuse(
                remote,
                "has an invite, but this run admits only listed keys",
                "this run admits only listed keys, and yours is not on the list",
            )
        if ticket.serial in rules.revoked_tickets:
            raise self._refuse(remote, f"its invite {ticket.serial.hex()} was revoked", "the invite was revoked")
        if ticket.expires_at <= self._now():
            raise self._refuse(remote, f"its invite {ticket.serial.hex()} has expired", "the invite has expired")
        if ticket.kind == "errand" and ticket.expires_at > self._now() + 2 * ERRAND_SECONDS:
            raise self._refuse(remote, "showed an errand that is valid for too long")
        if ticket.kind == "once":
            self._check_first_use(remote, ticket)
        self._ticket_of[remote] = ticket
        self._ticket_of.move_to_end(remote)
        return ticket

    def _checked_pass(self, remote: PeerId, data: bytes, rules: MemberRules) -> Pass:
        try:
            held = decode_pass(data)
        except ValueError as error:
            raise self._refuse(remote, f"sent {error}") from error
        # The digest includes the PeerId, because a pass is valid for only one peer.
        digest = hashlib.sha256(remote.encode() + b"\0" + data).digest()
        if self._tickets.get(digest) is None:
            if not is_signed_by_owner(self.run_id, held.ticket, rules.owner_public_key):
                raise self._refuse(remote, "showed an invite that the run's owner did not sign")
            if not is_for(self.run_id, held, remote):
                raise self._refuse(remote, f"showed invite {held.ticket.serial.hex()}, which is for another key")
            self._tickets[digest] = held.ticket
        return held

    def _check_first_use(self, remote: PeerId, ticket: Ticket) -> None:
        user = self._users.get(ticket.serial)
        if user is None:
            if len(self._users) >= MAX_KNOWN_TICKETS:
                raise self._refuse(
                    remote, f"would exceed the {MAX_KNOWN_TICKETS} users of one-time invites that this peer remembers"
                )
            self._users[ticket.serial] = remote
            self._on_used(ticket, remote)
        elif user != remote:
            raise self._refuse(
                remote,
                f"its one-time invite {ticket.serial.hex()} was already used by {user}",
                "the one-time invite was already used by another key",
            )

    def _refuse(self, remote: PeerId, rule: str, told: str = "") -> NotAdmitted:
        self._on_refused(remote, rule)
        return NotAdmitted(remote, rule, told)
