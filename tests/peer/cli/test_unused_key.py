"""A join says that a profile here is not used; it never takes the key unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.config.peer_config import load_config
from peer.network.membership.profile_file import unused_key
from peer.user_folders import contributor_key_path

RUN_ID = "own." + "a" * 20


def test_a_profile_that_a_join_leaves_aside_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "my data"))
    config = load_config({"run_id": RUN_ID})
    assert unused_key(config) is None
    path = contributor_key_path()
    path.parent.mkdir(parents=True)
    path.write_text("any")
    said = unused_key(config)
    assert said is not None
    assert said.endswith(f"add --contributor-key '{path}'")
    assert config.contributor_key is None
    assert unused_key(load_config({"run_id": RUN_ID, "contributor_key": "other.key"})) is None
