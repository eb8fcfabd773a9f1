"""Tickets, with which the owner of a private run admits peers, and their use. Pure.

A ticket contains the key that it admits, or the public half of a one-time secret. An invite with a one-time ticket
contains the secret too: its user signs its own PeerId with the secret once, and keeps only that signature. All members
remember which PeerId used a one-time ticket, and refuse others. An errand is a ticket for some minutes that the owner's
tools issue to themselves.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dht.ground.errors import UsageFault
from dht.ground.fields import check_bytes, check_choice, check_text, pack, unpack
from dht.ground.host import PeerId
from dht.identity import keys
from dht.identity.multiaddr import parse_peer_multiaddr
from dht.records.peer_record import MAX_RUN_ID_LENGTH

SERIAL_BYTES: Final = 8
SEED_BYTES: Final = 32
MAX_PASS_BYTES: Final = 300
"""Serial, key, expiry and two signatures take about 190."""
MAX_INVITE_LENGTH: Final = 4096
"""Characters; enough for eight long addresses."""
MAX_INVITE_ADDRESSES: Final = 8
"""Enough that one of them answers."""
MAX_ADDRESS_LENGTH: Final = 256
"""Characters; a relayed address takes about 180."""
MAX_EXPIRY: Final = 2**40
"""Unix seconds, far beyond any year."""
ERRAND_SECONDS: Final = 900.0
"""Longest life of an errand: the owner's tool reads, publishes and leaves."""
INVITE_PREFIX: Final = "murmuration-invite-1:"

TicketKind = Literal["key", "once", "errand"]
TICKET_KINDS: Final[tuple[TicketKind, ...]] = ("key", "once", "errand")

_FORMAT = 1
_TICKET_DOMAIN = b"murmuration ticket\0"
_BINDING_DOMAIN = b"murmuration ticket use\0"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The owner's permission for `holder` to take part in a run until `expires_at`."""

    serial: bytes
    """8 random bytes; the argument of `peer revoke --invite`."""
    kind: TicketKind
    holder: bytes
    """Public key (32 bytes) of the invited peer, or of the one-time secret."""
    expires_at: int
    """Unix seconds."""
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pass:
    """A ticket and, for a one-time ticket, the signature that binds it to one PeerId."""

    ticket: Ticket
    binding: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Invite:
    """An invite for a newcomer. Secret if it holds a one-time secret, which its `repr` does not show."""

    run_id: str
    addresses: tuple[str, ...]
    """Multiaddrs of members, each with the PeerId that must answer there."""
    owner_public_key: bytes = field(repr=False)
    ticket: Ticket | None = None
    """None in a run with a list of keys, where the list replaces tickets."""
    secret: bytes = field(default=b"", repr=False)
    """Seed of the one-time key (32 bytes); empty otherwise."""


def issue_ticket(
    owner: keys.Identity, run_id: str, kind: TicketKind, holder: bytes, expires_at: int, serial: bytes
) -> Ticket:
    """Sign a ticket; `holder` is a 32-byte public key, `serial` 8 random bytes."""
    ticket = Ticket(serial, kind, holder, expires_at, b"")
    return Ticket(serial, kind, holder, expires_at, owner.sign(_ticket_message(run_id, ticket)))


def bind_ticket(run_id: str, ticket: Ticket, secret: bytes, peer_id: PeerId) -> Pass:
    """Bind a one-time ticket to `peer_id`.

    Raises:
        ValueError: the secret does not belong to the ticket.
    """
    one_time = keys.Identity.from_seed(secret) if len(secret) == SEED_BYTES else None
    if one_time is None or one_time.public_key != ticket.holder:
        raise ValueError("an invite whose secret does not belong to its ticket")
    return Pass(ticket, one_time.sign(_binding_message(run_id, ticket, peer_id)))


def encode_pass(held: Pass) -> bytes:
    """Encode a pass in at most `MAX_PASS_BYTES`."""
    ticket = held.ticket
    return pack([_FORMAT, ticket.serial, ticket.kind, ticket.holder, ticket.expires_at, ticket.signature, held.binding])


def decode_pass(data: bytes) -> Pass:
    """Read a pass without checking its signatures.

    Raises:
        ValueError: the bytes are not a pass.
    """
    if len(data) > MAX_PASS_BYTES:
        raise ValueError(f"a pass of {len(data)} bytes; expected at most {MAX_PASS_BYTES}")
    content = unpack(data)
    if type(content) is not list or len(content) != 7 or content[0] != _FORMAT:
        raise ValueError("a pass in an unknown form; one of the two sides needs an update")
    ticket = _ticket_of(content[1:6])
    binding = content[6]
    if type(binding) is not bytes or len(binding) not in (0, keys.SIGNATURE_BYTES):
        raise ValueError(f"a pass with a binding of a wrong type or length; expected 0 or {keys.SIGNATURE_BYTES} bytes")
    return Pass(ticket, binding)


def is_signed_by_owner(run_id: str, ticket: Ticket, owner_public_key: bytes) -> bool:
    return keys.verify_key(owner_public_key, _ticket_message(run_id, ticket), ticket.signature)


def is_for(run_id: str, held: Pass, peer_id: PeerId) -> bool:
    """Return whether the pass belongs to `peer_id`, by its key or by the signature of the one-time secret."""
    if held.ticket.kind == "once":
        return keys.verify_key(held.ticket.holder, _binding_message(run_id, held.ticket, peer_id), held.binding)
    return keys.public_key_of(peer_id) == held.ticket.holder


def encode_invite(invite: Invite) -> str:
    """Encode an invite as one line of text."""
    ticket = invite.ticket
    fields = [] if ticket is None else [ticket.serial, ticket.kind, ticket.holder, ticket.expires_at, ticket.signature]
    packed = pack([_FORMAT, invite.run_id, list(invite.addresses), invite.owner_public_key, fields, invite.secret])
    checksum = hashlib.sha256(packed).digest()[:4]
    return INVITE_PREFIX + base64.urlsafe_b64encode(packed + checksum).decode("ascii").rstrip("=")


def decode_invite(text: str) -> Invite:
    """Read an invite, and check that the owner of its run id signed its ticket.

    Raises:
        UsageFault: the text is not an invite, cut off, changed, or signed by a different key.
    """
    text = text.strip()
    if not text.startswith(INVITE_PREFIX):
        raise UsageFault(
            f"this is not an invite; expected one line that begins with {INVITE_PREFIX}; ask the run's owner for an "
            "invite made by `peer invite`"
        )
    if len(text) > MAX_INVITE_LENGTH:
        raise UsageFault(
            f"an invite of {len(text)} characters; expected at most {MAX_INVITE_LENGTH}; ask for a new invite"
        )
    try:
        encoded = text.removeprefix(INVITE_PREFIX)
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        packed, checksum = data[:-4], data[-4:]
        if hashlib.sha256(packed).digest()[:4] != checksum:
            raise ValueError("its checksum is wrong")
        invite = _invite_of(unpack(packed))
    except ValueError as error:
        raise UsageFault(
            f"the invite is damaged or cut off ({error}); expected the line that `peer invite` wrote; copy the "
            "complete line"
        ) from error
    if keys.fingerprint(invite.owner_public_key) != keys.split_run_id(invite.run_id)[1] or (
        invite.ticket is not None and not is_signed_by_owner(invite.run_id, invite.ticket, invite.owner_public_key)
    ):
        raise UsageFault(
            f"the invite was changed or does not come from the owner of {invite.run_id}; expected the owner's "
            "signature; ask the owner for a new invite"
        )
    if not _holds_its_secret(invite):
        raise UsageFault(
            "the invite lacks the secret of its ticket; expected both, because the ticket is useless without its "
            "secret; copy the complete invite, or ask the owner for a new invite"
        )
    return invite


def _holds_its_secret(invite: Invite) -> bool:
    ticket = invite.ticket
    if ticket is None or ticket.kind != "once":
        return True
    return len(invite.secret) == SEED_BYTES and keys.Identity.from_seed(invite.secret).public_key == ticket.holder


def _invite_of(content: Any) -> Invite:
    if type(content) is not list or len(content) != 6 or content[0] != _FORMAT:
        raise ValueError("an invite in an unknown form")
    _, run_id, addresses, owner_public_key, fields, secret = content
    check_text("run_id", run_id, MAX_RUN_ID_LENGTH)
    if type(addresses) is not list or len(addresses) > MAX_INVITE_ADDRESSES:
        raise ValueError(f"addresses in an unknown form; expected at most {MAX_INVITE_ADDRESSES}")
    for address in addresses:
        check_text("address", address, MAX_ADDRESS_LENGTH)
        try:
            parse_peer_multiaddr(address)
        except UsageFault as error:
            raise ValueError(str(error)) from error
    check_bytes("owner_public_key", owner_public_key, keys.PUBLIC_KEY_BYTES)
    if type(secret) is not bytes or len(secret) not in (0, SEED_BYTES):
        raise ValueError("a secret of a wrong length")
    if type(fields) is not list or (fields and len(fields) != 5):
        raise ValueError("a ticket in an unknown form")
    return Invite(run_id, tuple(addresses), owner_public_key, _ticket_of(fields) if fields else None, secret)


def _ticket_of(fields: list[Any]) -> Ticket:
    serial, kind, holder, expires_at, signature = fields
    check_bytes("serial", serial, SERIAL_BYTES)
    check_choice("kind", kind, TICKET_KINDS)
    check_bytes("holder", holder, keys.PUBLIC_KEY_BYTES)
    if type(expires_at) is not int or not 0 <= expires_at <= MAX_EXPIRY:
        raise ValueError(f"an expiry {expires_at!r:.30}; expected unix seconds")
    check_bytes("signature", signature, keys.SIGNATURE_BYTES)
    return Ticket(serial, kind, holder, expires_at, signature)


def _ticket_message(run_id: str, ticket: Ticket) -> bytes:
    return _TICKET_DOMAIN + pack([run_id, ticket.serial, ticket.kind, ticket.holder, ticket.expires_at])


def _binding_message(run_id: str, ticket: Ticket, peer_id: PeerId) -> bytes:
    return _BINDING_DOMAIN + pack([run_id, ticket.serial, peer_id])
