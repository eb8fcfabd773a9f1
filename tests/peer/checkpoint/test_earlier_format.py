"""Checkpoints of the format before the present one are read: an update costs no work.

`format_3/` was written by the last software that wrote format 3. Fragment 0 had two contributions whose rounds were
over, one under way, and work that waited; fragment 1 had none.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from averaging.outer.outer_settings import OuterRule
from dht.ground.host import PeerId
from peer.checkpoint import checked_files
from peer.checkpoint.checkpoint import FORMAT_VERSION, METADATA_NAME, CheckpointFolder, saved_totals
from peer.checkpoint.earlier_format import EARLIER_FORMAT
from tests.kit.trainer.saved_states import ME, OWNER, TOTALS, newest, save, state_of

WRITTEN = Path(__file__).parent / f"format_{EARLIER_FORMAT}"
EAGER = OuterRule("eager", 0.7, 0.5)
SHOWN = [-1.4519174098968506, -4.159134387969971, -2.319801092147827, 0.7183586955070496, 1.3792833089828491]
RESIDUAL = [0.2496604025363922, 0.24939453601837158, 0.2548553943634033, 0.25940048694610596, 0.2501356601715088]
"""Of fragment 0, as the software that wrote the checkpoint showed them."""


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    shutil.copytree(WRITTEN, tmp_path / "checkpoints")
    return CheckpointFolder(tmp_path / "checkpoints", OWNER, 60.0)


def test_each_change_of_the_format_brings_a_reader_of_the_one_before() -> None:
    assert EARLIER_FORMAT == FORMAT_VERSION - 1
    content = json.loads((WRITTEN / "checkpoint-00000001" / METADATA_NAME).read_text())["content"]
    assert content["format_version"] == EARLIER_FORMAT


def test_anchors_work_that_waits_and_work_under_way_come_back(folder: CheckpointFolder) -> None:
    saved, complaints = folder.newest()
    assert saved is not None
    assert (saved.is_own, saved.is_settled, saved.totals, complaints) == (True, True, TOTALS, [])
    assert saved_totals(folder.path, OWNER.run_id, ME) == TOTALS
    states = [state_of(size, 50, EAGER) for size in OWNER.sizes]
    for index, state in enumerate(states):
        saved.restore(index, state)
    first, second = states
    assert (first.version, first.lineage_tokens, first.num_rounds) == (6, 56, 1)
    assert (first.unsent_tokens, first.unsent_steps, first.unsent_base_version) == (11, 2, 6)
    assert first.residual.tolist() == RESIDUAL
    assert first.pending is not None
    assert (first.pending.sequence, first.pending.tokens, first.pending.steps) == (3, 30, 3)
    assert first.pending.base_version == 5
    assert bytes(first.pending.encoded.codes).hex() == "bfee8a"
    # What the trainer sees: the anchor, less what waits and what travels, with the overlay of this peer's velocity.
    assert first.shown().tolist() == SHOWN
    assert (second.version, second.lineage_tokens, second.unsent_tokens, second.pending) == (5, 45, 0, None)


def test_it_is_saved_again_in_the_present_format(folder: CheckpointFolder) -> None:
    states = [state_of(size, 50, EAGER) for size in OWNER.sizes]
    for index, state in enumerate(states):
        newest(folder).restore(index, state)
    save(folder, states)
    again = [state_of(size, 60, EAGER) for size in OWNER.sizes]
    for index, state in enumerate(again):
        newest(folder).restore(index, state)
        assert np.array_equal(state.shown(), states[index].shown())


def test_another_peer_takes_the_anchors_alone(folder: CheckpointFolder) -> None:
    path = folder.path / "checkpoint-00000001" / METADATA_NAME
    content = json.loads(path.read_text())["content"] | {"peer_id": "12D3KooWOther"}
    rewrite(path, content)
    state = state_of(OWNER.sizes[0], 50, EAGER)
    newest(folder).restore(0, state)
    assert (state.version, state.pending, state.unsent_tokens, state.residual.any()) == (6, None, 0, False)
    assert saved_totals(folder.path, OWNER.run_id, PeerId("12D3KooWOther")) == TOTALS


def rewrite(path: Path, content: dict[str, Any]) -> None:
    path.unlink()
    checked_files.write_json(path, content, checked_files.open_new)


@pytest.mark.parametrize(
    "changes",
    [
        {"format_version": EARLIER_FORMAT - 1},
        {"format_version": FORMAT_VERSION},
        {"format_version": FORMAT_VERSION + 1},
        {"format_version": str(EARLIER_FORMAT)},
        {"fragments": None},
        {"fragments": {"0": 1}},
        {"fragments": [1, "2"]},
        {"fragments": [{"contributions": 5}]},
        {"fragments": [{"contributions": [1, None, {}]}]},
    ],
)
def test_what_is_of_neither_format_is_passed_over_with_a_sentence(
    folder: CheckpointFolder, changes: dict[str, object]
) -> None:
    path = folder.path / "checkpoint-00000001" / METADATA_NAME
    rewrite(path, json.loads(path.read_text())["content"] | changes)
    saved, complaints = folder.newest()
    assert saved is None
    (complaint,) = complaints
    assert "version" in complaint.reason


@pytest.mark.parametrize("field", ["unsent_tokens", "version", "contributions"])
def test_fields_of_the_earlier_format_are_checked_too(folder: CheckpointFolder, field: str) -> None:
    path = folder.path / "checkpoint-00000001" / METADATA_NAME
    content = json.loads(path.read_text())["content"]
    content["fragments"][0][field] = -1
    rewrite(path, content)
    assert folder.newest()[0] is None
