"""Stores the users of one-time invites on disk, so that an invite stays used when members restart.

Each use is one line of JSON in the peer's data folder, written before the newcomer is answered. The file contains no
secrets.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dht.admission.admission import MAX_KNOWN_TICKETS, Admission
from dht.admission.tickets import SERIAL_BYTES, Ticket
from dht.ground.errors import LocalFault
from dht.ground.host import PeerId
from dht.ground.regular_files import open_regular
from dht.identity.keys import public_key_of
from peer.secret_files import write_secret

INVITE_USERS_NAME = "used_invites.jsonl"
"""Name of the file in a peer's data folder."""
MAX_LINE_BYTES: Final = 160
"""Length of a line with serial number, PeerId and time, including their keys."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InviteUse:
    """`peer_id` used the one-time invite `serial` (8 bytes), which expires at `expires_at` (unix seconds)."""

    serial: bytes
    peer_id: PeerId
    expires_at: int


class InviteUsers:
    """The file with the users of one-time invites that this peer admitted."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / INVITE_USERS_NAME

    def remind(self, admission: Admission, now: float) -> None:
        """Load the users of invites from earlier sessions into `admission`.

        Uses of invites that have expired by `now` are dropped, because these invites admit no peer.

        Raises:
            LocalFault: the file is not readable or not writable.
        """
        uses = [use for use in read_users(self._path) if use.expires_at > now]
        for use in uses:
            admission.note_user(use.serial, use.peer_id)
        if self._path.exists():
            write_secret(self._path, b"".join(map(_line, uses)))

    def keep(self, ticket: Ticket, peer_id: PeerId) -> None:
        """Record the user of an invite."""
        try:
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                file.write(_line(InviteUse(ticket.serial, peer_id, ticket.expires_at)))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            log.warning(
                "%s cannot be written (%s); another key could use invite %s after this peer is started again; free "
                "space, or revoke that invite",
                self._path,
                error.strerror,
                ticket.serial.hex(),
            )


def read_users(path: Path) -> list[InviteUse]:
    """Read the uses in a file; damaged lines are skipped with a warning.

    Raises:
        LocalFault: the file cannot be read.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MAX_KNOWN_TICKETS * MAX_LINE_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LocalFault(
            f"{path} cannot be read: {error.strerror}; expected the users of one-time invites; check its mode"
        ) from error
    uses: list[InviteUse] = []
    for line in data.splitlines():
        try:
            uses.append(_use_of(json.loads(line)))
        except (ValueError, RecursionError) as error:
            # A power cut left an incomplete line; its invite counts as unused.
            log.warning("a line of %s is damaged (%s) and was left out", path, error)
    return uses[:MAX_KNOWN_TICKETS]


def _use_of(fields: object) -> InviteUse:
    match fields:
        case {"serial": str(serial), "peer_id": str(peer_id), "expires_at": int(expires_at)}:
            public_key_of(peer_id)
            if len(serial) != 2 * SERIAL_BYTES:
                raise ValueError(f"a serial number of {len(serial)} digits; expected {2 * SERIAL_BYTES}")
            return InviteUse(bytes.fromhex(serial), PeerId(peer_id), expires_at)
    raise ValueError("expected serial, peer_id and expires_at")


def _line(use: InviteUse) -> bytes:
    fields = {"serial": use.serial.hex(), "peer_id": use.peer_id, "expires_at": use.expires_at}
    return json.dumps(fields).encode() + b"\n"
