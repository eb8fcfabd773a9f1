"""The manifest of a run that is kept on this machine."""

from __future__ import annotations

from pathlib import Path

from dht.errors import PeerFault
from dht.records.signed_records import MAX_RUN_RECORD_BYTES, decode_run_record
from dht.regular_files import read_regular
from peer.config.manifest import RunManifest


def end_signed_here(record_path: Path, run_id: str) -> str:
    """The owner's word, kept here, that the run ends, as the beginning of a sentence; empty: there is none."""
    manifest = manifest_here(record_path, run_id) if record_path.exists() else None
    ends = [] if manifest is None else [change.at_version for change in manifest.changes if change.ends_run]
    if not ends:
        return ""
    first: int = sorted(ends)[0]
    when = f"from version {first} on" if first else "at once"
    return f"the owner of {run_id} has ended it ({when}, says the manifest kept here)"


def manifest_here(record_path: Path, run_id: str) -> RunManifest | None:
    """The manifest at this path, checked; None: none, or it cannot be used."""
    try:
        record = decode_run_record(read_regular(record_path, MAX_RUN_RECORD_BYTES), run_id=run_id)
        return RunManifest.from_bytes(record.manifest)
    except (OSError, ValueError, PeerFault):
        return None  # whoever needs the manifest says what is wrong with it
