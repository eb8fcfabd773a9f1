"""Reads the manifest of a run that is stored on this machine."""

from __future__ import annotations

from pathlib import Path

from dht.ground.errors import PeerFault
from dht.ground.regular_files import read_regular
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, decode_run_record
from peer.config.manifest import RunManifest


def manifest_here(record_path: Path, run_id: str) -> RunManifest | None:
    """Return the verified manifest at this path; None if there is none or it is unusable."""
    try:
        record = decode_run_record(read_regular(record_path, MAX_RUN_RECORD_BYTES), run_id=run_id)
        return RunManifest.from_bytes(record.manifest)
    except (OSError, ValueError, PeerFault):
        return None  # code that requires the manifest reports the fault
