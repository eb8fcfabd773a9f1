"""The manifest of a run, signed by its owner. Pure.

Results of `decode_run_record` are completely checked.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from dht.ground.errors import PeerFault, UsageFault
from dht.ground.fields import MAX_WHOLE, pack, refuse_constant
from dht.identity.keys import SIGNATURE_BYTES, Identity, fingerprint, split_run_id
from dht.records.signature_cache import VerifiedRecords
from dht.records.signed_envelopes import HEAD_BYTES, check_signature, open_envelope, unpack_array

MAX_RUN_RECORD_BYTES: Final = 16 * 1024
"""Largest manifest with its envelope."""


MANIFEST_HASH_BYTES: Final = 32


_RUN_FORMAT = 1


_RUN_DOMAIN = b"murmuration run record\0"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The owner's signed manifest. Its DHT entry's expiry is not signed, so any member may publish it again."""

    run_id: str
    manifest: bytes
    """Canonical JSON with a whole number "revision"."""
    owner_public_key: bytes
    signature: bytes

    @property
    def revision(self) -> int:
        """Counter of the owner's changes; the highest revision is in force.

        Raises:
            ValueError: the manifest is not a JSON object with a whole number "revision".
        """
        return _revision_of(self.manifest)


def sign_run_record(run_id: str, manifest: bytes, owner: Identity) -> RunRecord:
    """Sign a manifest with the owner's key.

    Raises:
        UsageFault: the key does not match `run_id`, or the manifest has no whole number "revision".
    """
    if split_run_id(run_id)[1] != fingerprint(owner.public_key):
        raise UsageFault(
            f"the owner key with fingerprint {fingerprint(owner.public_key)} does not own run {run_id}; expected the "
            f"key made by `peer init` for this run; give its path"
        )
    try:
        _revision_of(manifest)
    except ValueError as error:
        raise UsageFault(f"the run manifest cannot be signed: {error}") from error
    return RunRecord(run_id, manifest, owner.public_key, owner.sign(_run_message(run_id, manifest)))


def encode_run_record(record: RunRecord) -> bytes:
    """Encode a run record in at most `MAX_RUN_RECORD_BYTES`.

    Raises:
        ValueError: the manifest is too large.
    """
    data = record.signature + record.owner_public_key + _pack_run_record(record.run_id, record.manifest)
    if len(data) > MAX_RUN_RECORD_BYTES:
        raise ValueError(
            f"a run record of {len(data)} bytes; expected at most {MAX_RUN_RECORD_BYTES}; shorten the manifest"
        )
    return data


def decode_run_record(data: bytes, *, run_id: str, verified: VerifiedRecords | None = None) -> RunRecord:
    """Check that the owner in `run_id` signed this manifest for this run, and return the record.

    Raises:
        PeerFault: the record is too large, of another owner or run, wrongly signed, or without a revision in its
            manifest.
        UsageFault: `run_id` itself is not a run id.
    """
    mark = split_run_id(run_id)[1]
    public_key, body = open_envelope(data, MAX_RUN_RECORD_BYTES, "run record")
    if fingerprint(public_key) != mark:
        raise PeerFault("", f"a run record of owner {fingerprint(public_key)}; expected {mark}; it is ignored")
    try:
        found_run_id, manifest = _unpack_run_record(body)
        if found_run_id != run_id:
            raise ValueError(f"run id {found_run_id[:80]!r}; expected {run_id}")
        if _pack_run_record(run_id, manifest) != body:
            raise ValueError("bytes that are not in canonical form; expected one form per record")
        _revision_of(manifest)
    except ValueError as error:
        raise PeerFault("", f"a run record with {error}; it is ignored") from error
    message = _run_message(run_id, manifest)
    # The same cache may hold statements of rounds.
    digest = hashlib.sha256(data[:HEAD_BYTES] + message).digest()
    if verified is None or not verified.seen(digest):
        check_signature(data, public_key, message)
        if verified is not None:
            verified.add(digest)
    return RunRecord(run_id, manifest, public_key, data[:SIGNATURE_BYTES])


def claimed_run_id(data: bytes) -> str | None:
    """Return the run id in an unchecked run record; None if `data` is not a run record."""
    try:
        return _unpack_run_record(open_envelope(data, MAX_RUN_RECORD_BYTES, "run record")[1])[0]
    except (ValueError, PeerFault):
        return None


def run_key(run_id: str) -> str:
    """Return the DHT key of the run record, a single value."""
    return f"{run_id}/run"


def _pack_run_record(run_id: str, manifest: bytes) -> bytes:
    return pack([_RUN_FORMAT, run_id, manifest])


def _unpack_run_record(body: bytes) -> tuple[str, bytes]:
    _, run_id, manifest = unpack_array(body, 3, _RUN_FORMAT)
    if type(run_id) is not str or type(manifest) is not bytes:
        raise ValueError("fields of wrong types; expected run id (text) and manifest (bytes)")
    return run_id, manifest


def _run_message(run_id: str, manifest: bytes) -> bytes:
    return _RUN_DOMAIN + run_id.encode() + b"\0" + manifest


def _revision_of(manifest: bytes) -> int:
    try:
        content = json.loads(manifest.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a manifest that is not JSON ({type(error).__name__}); expected an object") from error
    revision = content.get("revision") if type(content) is dict else None
    if type(revision) is not int or not 0 <= revision <= MAX_WHOLE:
        raise ValueError('a manifest without "revision"; expected a whole number from 0')
    return revision
