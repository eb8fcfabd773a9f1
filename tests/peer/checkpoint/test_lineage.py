"""A poisoned state is not the only one on the disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from peer.checkpoint.checkpoint import LINEAGE_NAME, CheckpointFolder, list_checkpoints
from tests.kit.trainer.saved_states import OWNER, newest, save, states_of


def test_what_was_written_before_the_anchors_were_replaced_stays(tmp_path: Path) -> None:
    """However many of a poisoned lineage follow, and however often the anchors are replaced again."""
    folder = CheckpointFolder(tmp_path, OWNER, 60.0)
    assert folder.keep_lineage() is None
    good = [save(folder, states_of(seed)) for seed in range(3)][-1]
    assert folder.keep_lineage() == good
    poisoned = []
    for seed in range(10, 14):
        poisoned.append(save(folder, states_of(seed)))
        assert folder.keep_lineage() is None
    assert list_checkpoints(tmp_path) == [*poisoned[:-3:-1], good]
    for path in poisoned:
        shutil.rmtree(path, ignore_errors=True)
    assert newest(folder).path == good
    # A week later it makes room.
    os.utime(good / LINEAGE_NAME, (0, 0))
    later = [save(folder, states_of(seed)) for seed in range(20, 23)]
    assert list_checkpoints(tmp_path) == later[:-3:-1]
