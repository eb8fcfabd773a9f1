"""What is refused before anything heavy is loaded."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from dht.ground.errors import UsageFault
from peer.config.peer_config import PeerConfig
from peer.join import before_start


def test_data_without_anything_in_it_is_refused_before_members_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "full.txt").write_text("words")

    def check(data: str) -> None:
        before_start.check_data(PeerConfig(run_id="own." + "a" * 20, data_dir=tmp_path / "peer", data=data))

    for kind in ("text", "jsonl", "tokens"):
        for name in ("folder", "empty.txt"):
            with pytest.raises(UsageFault, match=f"{name} contains no files"):
                check(f"{kind}:{tmp_path / name}")
    check(f"text:{tmp_path / 'empty.txt'},{tmp_path / 'full.txt'}")
    check(f"text:{tmp_path}")
    for base, what in (("folder", r"has no \*\.safetensors file"), ("full.txt", "is not a folder")):
        config = PeerConfig(run_id="own." + "a" * 20, data_dir=tmp_path / "peer", base=tmp_path / base)
        with pytest.raises(UsageFault, match=f"{base} {what}"):
            before_start.check_data(config)
    with pytest.raises(UsageFault, match="does not exist"):
        check(f"text:{tmp_path / 'nosuch'}")
    with pytest.raises(UsageFault, match=r"has no meta\.json; .*peer data prepare.* --data text:"):
        check(f"tokens:{tmp_path}")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageFault, match="pipe cannot be read"):
        check(f"text:{tmp_path / 'pipe'}")

    def refuse(folder: str) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UsageFault, match=r"folder cannot be read \(Permission denied\)"):
        check(f"text:{tmp_path / 'folder'}")


@pytest.mark.parametrize(
    ("flag", "library"),
    [({"track": "wandb"}, "wandb"), ({"optimizer_bits": "8"}, "bitsandbytes"), ({"base_bits": "4"}, "bitsandbytes")],
)
def test_a_library_that_is_missing_is_named_before_members_are_looked_for(
    flag: dict[str, str], library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(before_start, "find_spec", lambda name: None)
    config = PeerConfig.model_validate({"run_id": "own." + "a" * 20, "data_dir": tmp_path, **flag})
    with pytest.raises(UsageFault, match=f"needs {library}, which is not installed.*pip install"):
        before_start._check_libraries(config)
    before_start._check_libraries(PeerConfig(run_id="own." + "a" * 20, data_dir=tmp_path, track="csv"))
