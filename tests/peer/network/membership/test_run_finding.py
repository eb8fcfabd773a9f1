"""The run record that a peer keeps in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import RunRecord, sign_run_record
from peer.config.manifest import RunManifest
from peer.network.membership.run_finding import keep_record, local_record

OWNER = Identity.from_seed(bytes(32))
RUN_ID = make_run_id("tiny", OWNER.public_key)


def record_of(revision: int) -> RunRecord:
    return sign_run_record(RUN_ID, RunManifest(name="tiny", revision=revision).to_bytes(), OWNER)


@pytest.mark.parametrize(("kept", "told", "left"), [(1, 2, 2), (3, 2, 3), (2, 2, 2)])
def test_a_seed_in_the_owners_folder_leaves_what_was_signed_meanwhile(
    tmp_path: Path, kept: int, told: int, left: int
) -> None:
    path = tmp_path / "run.record"
    for revision in (kept, told):
        keep_record(path, record_of(revision))
    assert local_record(path, RUN_ID) == (record_of(left), "")


def test_a_damaged_record_gives_way(tmp_path: Path) -> None:
    (tmp_path / "run.record").write_bytes(b"no record")
    keep_record(tmp_path / "run.record", record_of(1))
    assert local_record(tmp_path / "run.record", RUN_ID) == (record_of(1), "")
