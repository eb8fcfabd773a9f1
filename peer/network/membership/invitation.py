"""An invite on the newcomer's side: validated, bound to this peer's key, and stored as a pass.

The pass (a file of mode 0600 in the data folder) is useless without the key beside it. The one-time secret of an invite
is used once, here, and not stored.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from dht.admission import tickets
from dht.admission.admission import Admission
from dht.admission.dated_proofs import NONCE_BYTES
from dht.ground.errors import UsageFault, reading
from dht.ground.quantities import date_text
from dht.ground.regular_files import open_regular, read_private
from dht.identity.keys import Identity, peer_id_of
from peer.secret_files import write_secret
from peer.user_folders import PASS_NAME as PASS_NAME


def read_invite(source: str) -> tickets.Invite:
    """Read the invite in the file `source`; ``-`` reads standard input.

    Raises:
        UsageFault: the text itself was given; the file cannot be read, contains a secret and is readable by other users
            of this machine, or is not a complete invite.
    """
    if source.startswith(tickets.INVITE_PREFIX[:-3]):
        raise UsageFault(
            "the invite itself is on the command line, where every user of this machine can read it in the list of "
            "processes; expected a file or - for standard input; save it to a file of mode 0600 and ask for a new "
            "invite if others use this machine"
        )
    if source == "-":
        return tickets.decode_invite(sys.stdin.read(tickets.MAX_INVITE_LENGTH + 1))
    expected = "a file that `peer invite` wrote, or - for standard input"
    with reading(f"the invite {source}", expected), open_regular(source) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        text = file.read(tickets.MAX_INVITE_LENGTH + 2).decode("ascii", "replace")
    invite = tickets.decode_invite(text)
    if invite.secret and mode & 0o077:
        raise UsageFault(
            f"the invite {source} has mode {mode:04o}, so other users of this machine can use it; expected 0600; run: "
            f"chmod 600 {source}"
        )
    return invite


def with_invite(flags: Mapping[str, object], invite: tickets.Invite) -> dict[str, object]:
    """Return the flags with the invite's run, and its addresses if no addresses are given.

    Raises:
        UsageFault: the flags contain a different run.
    """
    given = flags.get("run_id")
    if given is not None and given != invite.run_id:
        raise UsageFault(
            f"the invite is for run {invite.run_id}; expected {given}, the run of --run-id; give only one of them"
        )
    return {**flags, "run_id": invite.run_id, "peers": flags.get("peers") or invite.addresses or None}


def accept_invite(invite: tickets.Invite, identity: Identity, folder: Path) -> None:
    """Use an invite for this identity, and store the pass in `folder`.

    Raises:
        UsageFault: the invite has expired, or is for a different key.
        LocalFault: the folder is not writable.
    """
    write_secret(folder / PASS_NAME, _pass_of(invite, identity))


def _pass_of(invite: tickets.Invite, identity: Identity) -> bytes:
    """Return the encoded pass; empty for a key on the member list."""
    ticket = invite.ticket
    if ticket is None:
        return b""
    if ticket.expires_at <= time.time():
        day = date_text(ticket.expires_at)
        raise UsageFault(
            f"the invite expired at {day}; expected an invite that has not expired; ask the owner for a new invite"
        )
    if ticket.kind == "once":
        return tickets.encode_pass(tickets.bind_ticket(invite.run_id, ticket, invite.secret, identity.peer_id))
    if ticket.holder != identity.public_key:
        raise UsageFault(
            f"the invite is for the key {peer_id_of(ticket.holder)}; expected {identity.peer_id}, the key of this "
            "peer; give the file of that key with --identity, or ask the owner for an invite for this peer's key"
        )
    return tickets.encode_pass(tickets.Pass(ticket))


def load_pass(folder: Path) -> bytes | None:
    """Read the encoded pass in a data folder; empty for a listed key, None if this peer was never invited.

    Raises:
        UsageFault: the pass is damaged or readable by other users of the machine.
    """
    path = folder / PASS_NAME
    try:
        data = read_private(path, tickets.MAX_PASS_BYTES, str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageFault(f"{path} cannot be read ({error.strerror}); expected a readable file") from error
    try:
        if data:
            tickets.decode_pass(data)
    except ValueError as error:
        raise UsageFault(f"{path} is damaged: {error}; remove it and join with --invite again") from error
    return data


def invited_admission(run_id: str, identity: Identity, ticket_pass: bytes) -> Admission:
    """Return the admission that shows this key's invite to members, before the manifest is known."""
    return Admission(
        identity,
        run_id,
        time.time,
        lambda: secrets.token_bytes(NONCE_BYTES),
        ticket_pass=ticket_pass,
        is_private=True,
    )
