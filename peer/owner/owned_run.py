"""The owner's operations with the key: invites, revocations, and signed revisions of the manifest.

All files are in the owner's folder (the one that `peer init` wrote): the key, the signed manifest, an unsigned draft,
and a list of the issued invites. Nothing in this file uses the network; `peer.owner.publish` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dht.admission.tickets import (
    MAX_INVITE_ADDRESSES,
    SEED_BYTES,
    SERIAL_BYTES,
    Invite,
    Ticket,
    TicketKind,
    issue_ticket,
)
from dht.ground.errors import LocalFault, PeerFault, UsageFault, reading
from dht.ground.host import PeerId
from dht.ground.regular_files import read_regular
from dht.identity.keys import Identity, fingerprint, public_key_of
from dht.records.signed_manifest import (
    MAX_RUN_RECORD_BYTES,
    RunRecord,
    claimed_run_id,
    decode_run_record,
    encode_run_record,
    sign_run_record,
)
from peer.config.access_sections import MAX_NOTES, ChangeSection
from peer.config.manifest import MAX_MANIFEST_BYTES, RunManifest
from peer.config.peer_config import ADDRESSES_NAME, RUN_RECORD_NAME, read_cached_peers
from peer.data_folder.run_folders import folders_of
from peer.owner.new_run import OTHER_FOLDER
from peer.secret_files import write_secret
from peer.user_folders import OWNER_KEY_NAME, expanded, user_data_dir_here
from peer.version import full_version, is_older

DRAFT_NAME = "manifest.draft"
"""The next revision before it is signed, in the owner's folder."""
LEDGER_NAME = "invites.jsonl"
"""A file with one line for each issued invite, without secrets."""
MAX_LEDGER_BYTES = 64 << 20
"""At about 150 bytes per invite, far more invites than an owner issues."""
LONGEST_INVITE_SECONDS = 366 * 86400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass
class OwnedRun:
    """A run whose owner key is on this machine."""

    folder: Path
    owner: Identity
    record: RunRecord
    manifest: RunManifest

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def draft(self) -> RunManifest | None:
        """Return the next revision, which is not signed yet, or None.

        Raises:
            UsageFault: the draft cannot be read.
        """
        path = self.folder / DRAFT_NAME
        try:
            return RunManifest.from_bytes(read_regular(path, MAX_MANIFEST_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageFault(
                f"{path} cannot be read ({error}); expected a draft made by `peer manifest edit`; remove it and "
                "edit again"
            ) from error

    def known_addresses(self) -> list[str]:
        """Return the addresses of the run's peers on this machine, then those of members reached from this folder
        before.
        """
        folders = [self.folder]
        with contextlib.suppress(UsageFault):  # this user has no home folder
            folders += folders_of(self.record.run_id)
        own = [address for folder in folders for address in read_cached_peers(folder / ADDRESSES_NAME)]
        return list(dict.fromkeys([*own, *read_cached_peers(self.folder / "cached_peers.json")]))

    def edit(self, change: ChangeSection) -> RunManifest:
        """Add a change to the draft, and begin a draft if there is none.

        Raises:
            UsageFault: the manifest would be too large or hold too many changes, or the change requires software that
                may not follow the run's rules.
        """
        minimum = change.minimum_software
        if minimum is not None and is_older(full_version(), minimum):
            raise UsageFault(
                f"--minimum-software {minimum} is newer than this software ({full_version()}), which cannot tell "
                f"whether {minimum} follows the run's rules {self.manifest.rules}; expected at most this version; "
                "update this software first"
            )
        basis = self.draft or self.manifest
        fields = basis.model_dump(mode="json")
        fields["revision"] = self.manifest.revision + 1
        changes = list(fields["changes"])
        notes = [place for place, kept in enumerate(changes) if kept.get("note")]
        if change.note and len(notes) >= MAX_NOTES:
            del changes[notes[0]]
        fields["changes"] = [*changes, change.model_dump(mode="json")]
        try:
            # Decoded from its bytes, so that every member can read the revision that is signed later.
            draft = RunManifest.from_bytes(RunManifest.from_fields(fields).to_bytes())
        except ValueError as error:
            raise UsageFault(f"this change does not fit in the manifest: {error}") from error
        write_secret(self.folder / DRAFT_NAME, draft.to_bytes(), OTHER_FOLDER)
        return draft

    def sign(self) -> RunManifest:
        """Sign the draft and make it the manifest of this folder.

        Raises:
            UsageFault: there is no draft, or its revision is not later than the signed one.
        """
        draft = self.draft
        if draft is None:
            raise UsageFault(
                f"{self.folder} has no draft; expected changes that are not signed yet; `peer manifest edit` adds a "
                "change"
            )
        if draft.revision <= self.manifest.revision:
            raise UsageFault(
                f"the draft is revision {draft.revision}, but revision {self.manifest.revision} is already signed; "
                f"expected a later revision; remove {self.folder / DRAFT_NAME} and edit again"
            )
        self.record = sign_run_record(self.run_id, draft.to_bytes(), self.owner)
        self.manifest = draft
        write_secret(self.folder / RUN_RECORD_NAME, encode_run_record(self.record), OTHER_FOLDER)
        (self.folder / DRAFT_NAME).unlink()
        return draft

    def change_now(self, change: ChangeSection) -> RunManifest:
        """Edit and sign in one step.

        Raises:
            UsageFault: an unsigned draft would be signed along with the change.
        """
        if self.draft is not None:
            raise UsageFault(
                f"{self.folder / DRAFT_NAME} contains changes that are not signed; expected none, because this "
                "command would sign them unseen; run `peer manifest sign` first, or remove the file"
            )
        self.edit(change)
        return self.sign()

    def invite(self, key: PeerId | None, expires_at: int, addresses: list[str], *, issued_at: float) -> Invite:
        """Issue an invite for `key`, or a one-time invite if it is None, and record it in the ledger.

        Raises:
            UsageFault: the run accepts listed keys only.
        """
        run_id, public_key = self.run_id, self.owner.public_key
        kept = tuple(addresses[:MAX_INVITE_ADDRESSES])
        if self.manifest.access.mode == "allowlist":
            return Invite(run_id, kept, public_key)
        seed = b"" if key is not None else secrets.token_bytes(SEED_BYTES)
        holder = public_key_of(key) if key is not None else Identity.from_seed(seed).public_key
        kind: TicketKind = "key" if key is not None else "once"
        ticket = issue_ticket(self.owner, run_id, kind, holder, expires_at, secrets.token_bytes(SERIAL_BYTES))
        self._note(ticket, key, issued_at)
        return Invite(run_id, kept, public_key, ticket, seed)

    def given(self) -> list[dict[str, Any]]:
        """Return the invites that were issued from this folder, oldest first."""
        try:
            lines = read_regular(self.folder / LEDGER_NAME, MAX_LEDGER_BYTES).decode().splitlines()
            return [json.loads(line) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise UsageFault(f"{self.folder / LEDGER_NAME} cannot be read ({error}); repair or remove it") from error

    def _note(self, ticket: Ticket, key: PeerId | None, issued_at: float) -> None:
        line = {
            "serial": ticket.serial.hex(),
            "kind": ticket.kind,
            "key": key,
            "issued_at": int(issued_at),
            "expires_at": ticket.expires_at,
        }
        path = self.folder / LEDGER_NAME
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600), "w") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise LocalFault(f"{path} cannot be written: {error.strerror}; no invite was issued") from error


def open_owned_run(run_id: str | None, folder: str | Path | None) -> OwnedRun:
    """Open the run in an owner's folder, by default the data folder of `run_id`.

    Raises:
        UsageFault: neither argument is given, or the folder holds no owner key or no manifest signed with it.
    """
    if folder is None:
        if run_id is None:
            raise UsageFault(
                "Which run? Expected RUN: the id or name of a run that was created on this machine, or the folder that "
                "`peer init` wrote."
            )
        folder = user_data_dir_here() / run_id
    path = expanded(folder)
    if not (path / OWNER_KEY_NAME).exists():
        raise UsageFault(
            f"{path} contains no {OWNER_KEY_NAME}; expected the folder that `peer init` wrote, because this command "
            "needs the owner's key; give that folder with --data-dir"
        )
    owner = Identity.load(path / OWNER_KEY_NAME)
    record_path = path / RUN_RECORD_NAME
    try:
        with reading(record_path, "the manifest that `peer init` signed."):
            data = read_regular(record_path, MAX_RUN_RECORD_BYTES)
        if (found := run_id or claimed_run_id(data)) is None:
            raise UsageFault(
                f"{record_path} is damaged: it contains no run id; expected the file that `peer init` or `peer "
                "manifest sign` wrote; restore it from a copy, or from any member's folder"
            )
        record = decode_run_record(data, run_id=found)
        manifest = RunManifest.from_bytes(record.manifest)
    except PeerFault as fault:
        raise UsageFault(
            f"{record_path} is not signed by the owner of this run ({fault.what}); expected the file that `peer init` "
            "or `peer manifest sign` wrote; restore it from a copy"
        ) from fault
    except ValueError as error:
        raise UsageFault(f"{record_path} is not compatible with this software: {error}") from error
    if fingerprint(owner.public_key) != fingerprint(record.owner_public_key):
        raise UsageFault(
            f"{path / OWNER_KEY_NAME} is the key of another run; expected the owner's key of {record.run_id}; restore "
            "it from a copy"
        )
    return OwnedRun(path, owner, record, manifest)


def checked_key(text: str) -> PeerId:
    """Check a public key that a person entered, and return it as a PeerId.

    Raises:
        UsageFault: `text` is not a public key of the expected kind.
    """
    try:
        public_key_of(text)
    except ValueError as error:
        raise UsageFault(f"{error}; `peer key` prints the key on the machine that wants to join.") from error
    return PeerId(text)


def checked_serial(text: str) -> str:
    """Check the serial number of an invite, and return it.

    Raises:
        UsageFault: `text` is not a serial number.
    """
    if len(text) != 2 * SERIAL_BYTES or not all(character in "0123456789abcdef" for character in text):
        raise UsageFault(
            f"--invite {text[:40]!r} is not the serial number of an invite; expected {2 * SERIAL_BYTES} hexadecimal "
            "digits, as `peer members` shows them"
        )
    return text


def seconds_of(text: str) -> float:
    """Convert a duration such as 7d, 12h, 30m or 90s to seconds.

    Raises:
        UsageFault: `text` is not a duration, or is longer than a year.
    """
    number, unit = text[:-1], text[-1:]
    seconds = float(number) * _UNITS[unit] if unit in _UNITS and number.isascii() and number.isdecimal() else 0.0
    if not 0 < seconds <= LONGEST_INVITE_SECONDS:
        raise UsageFault(f"--expires {text[:40]!r} is not a duration; expected 1s to 366d, such as 7d, 12h or 30m.")
    return seconds
