"""Checkpoints of the format before the present one are read: an update of the software costs no work."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from peer.checkpoint import checked_files
from peer.checkpoint.checkpoint import METADATA_NAME, TRAINER_FACTS_NAME
from peer.checkpoint.checkpoint_facts import EARLIER_FORMAT, FORMAT_VERSION
from peer.checkpoint.tensor_files import open_arrays, write_arrays
from tests.kit.trainer.checkpoint_peer import Peer, picture_of, resumed, saved_pair
from tests.kit.trainer.returning_peer import return_to
from tests.peer.checkpoint.test_kept_commits import VERSION, Nobody, frames_of, newest_folder, saved_peer


def rewrite(path: Path, content: dict[str, Any]) -> checked_files.WrittenFile:
    path.unlink()
    return checked_files.write_json(path, content)


def move_commits(path: Path, index: int, facts: dict[str, Any]) -> checked_files.WrittenFile:
    """Write the commits of a fragment to a separate file; returns what its own file is without them."""
    fragment = path / f"fragment-{index:04d}.safetensors"
    file = open_arrays(fragment)
    arrays = {name: np.array(file.get(name)) for name in sorted(file.names)}
    frames = msgpack.unpackb(arrays.pop("commits").tobytes())
    body = msgpack.packb([index, facts["version"], bytes.fromhex(facts["digest"]), frames])
    (path / f"commits-{index:04d}.bin").write_bytes(hashlib.sha256(body).digest() + body)
    fragment.unlink()
    return write_arrays(fragment, dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize)))


def write_earlier_format(peer: Peer) -> Path:
    """Rewrite the newest checkpoint of a peer as the software before the present format did."""
    path = newest_folder(peer)
    content = checked_files.read_json(path / METADATA_NAME)
    assert content["format_version"] == FORMAT_VERSION == EARLIER_FORMAT + 1
    content["format_version"] = EARLIER_FORMAT
    content["totals"]["reads"] = 41
    for index, facts in enumerate(content["fragments"]):
        facts["num_rounds"] = 7
        if "commits" in open_arrays(path / f"fragment-{index:04d}.safetensors").names:
            facts["file"] = move_commits(path, index, facts).model_dump()
    trainer = checked_files.read_json(path / TRAINER_FACTS_NAME) | {"reads": 41}
    content["trainer"] = rewrite(path / TRAINER_FACTS_NAME, trainer).model_dump()
    rewrite(path / METADATA_NAME, content)
    return path


def test_both_sides_resume_with_nothing_lost(tmp_path: Path) -> None:
    peer = saved_pair(tmp_path)
    before = resumed(tmp_path)
    write_earlier_format(peer)
    after = resumed(tmp_path)
    assert picture_of(after) == picture_of(before)
    for fragment, earlier in zip(after.fragments, before.fragments, strict=True):
        assert fragment.state.own_work == earlier.state.own_work
        assert np.array_equal(fragment.state.shown(), earlier.state.shown())
    assert after.folder.newest()[0].totals == before.folder.newest()[0].totals
    assert after.training.next_positions(8, 0, 64).tolist() == before.training.next_positions(8, 0, 64).tolist()


def test_commits_in_separate_files_come_back(tmp_path: Path) -> None:
    before = saved_peer(tmp_path)
    write_earlier_format(before)
    peer, _ = return_to(tmp_path, Nobody())  # type: ignore[arg-type]
    assert [fragment.state.version for fragment in peer.fragments] == [VERSION] * 3
    assert frames_of(peer.fragments) == frames_of(before.fragments)


@pytest.mark.parametrize("data", [b"", bytes(40), hashlib.sha256(b"\x07").digest() + b"\x07"])
def test_damaged_commits_cost_themselves_alone(tmp_path: Path, data: bytes, caplog: Any) -> None:
    path = write_earlier_format(saved_peer(tmp_path))
    (path / "commits-0001.bin").write_bytes(data)
    peer, _ = return_to(tmp_path, Nobody())  # type: ignore[arg-type]
    assert [len(fragment.log) > 0 for fragment in peer.fragments] == [True, False, True]
    assert [fragment.state.version for fragment in peer.fragments] == [VERSION] * 3
    assert "commits-0001.bin is damaged" in caplog.text


OF_NEITHER_FORMAT: tuple[dict[str, object], ...] = (
    {"format_version": EARLIER_FORMAT - 1},
    {"format_version": FORMAT_VERSION + 1},
    {"format_version": str(EARLIER_FORMAT)},
    {"totals": None},
    {"fragments": None},
    {"fragments": [1, "2"]},
    {"fragments": [{}]},
)


def test_what_is_of_neither_format_is_passed_over_with_a_sentence(tmp_path: Path) -> None:
    peer = saved_pair(tmp_path)
    path = write_earlier_format(peer) / METADATA_NAME
    content = checked_files.read_json(path)
    for changes in OF_NEITHER_FORMAT:
        rewrite(path, content | changes)
        saved, (complaint, *_) = peer.folder.newest()
        assert saved is None
        assert "version" in complaint.reason
