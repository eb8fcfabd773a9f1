"""The command of the goodbye names the same folder, key and choices, and the command line reads it so."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from peer.cli import join, seed
from peer.cli.app import run
from peer.config.peer_config import PeerConfig, load_config
from peer.panel.return_command import same_again, same_with
from peer.panel.scene import scene_of, with_update
from peer.panel.sentences import comeback
from peer.panel.updates import LineLimits
from peer.view.swarm_seen import OwnAddresses

RUN_ID = "own." + "a" * 20


def absolute(value: object) -> object:
    """Paths of these tests as they are from another folder."""
    here = str(Path.cwd())
    if value == "text:a b.txt,/c":
        return f"text:{here}/a b.txt,/c"
    return f"{here}/{value}" if value in ("owner", "my owner", "old.key", "Ada's.key") else value


@pytest.mark.parametrize(
    ("what", "flags"),
    [
        ("peer seed", {"data_dir": "owner"}),
        ("peer seed", {"data_dir": "my owner", "listen": ["/ip4/0.0.0.0/tcp/4001"], "map_ports": True}),
        (
            "peer join",
            {"identity": "old.key", "contributor_key": "Ada's.key", "device": "cpu", "data": "text:a b.txt,/c"},
        ),
        ("peer join", {"upload_limit_mbit": 2.5}),
        ("peer join", {"threads": 2, "optimizer_bits": "8", "micro_batch": 1, "checkpoint_activations": True}),
        ("peer join", {"track": "csv", "data_limit_gib": 5.0, "precision": "bf16", "relay": False}),
    ],
)
def test_what_is_printed_starts_the_same_peer(
    what: str, flags: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = load_config({"run_id": RUN_ID, **flags})
    read: list[PeerConfig] = []

    def start(flags: dict[str, object], *rest: object, seed_only: bool) -> int:
        assert seed_only == (what == "peer seed")
        read.append(load_config(flags))
        return 0

    for command in (join, seed):
        monkeypatch.setattr(command, "run_peer", start)
    assert run(shlex.split(same_again(config, what))[1:]) == 0
    assert read == [load_config({"run_id": RUN_ID, **{name: absolute(value) for name, value in flags.items()}})]


def test_the_goodbye_says_it(tmp_path: Path) -> None:
    config = PeerConfig(run_id=RUN_ID, data_dir=tmp_path)
    began = scene_of(RUN_ID, LineLimits(), is_seed=True)
    assert comeback(began) == f"peer seed {RUN_ID}"
    told = replace(began, same_again=partial(same_with, config, "peer seed"))
    assert comeback(told) == f"peer seed {RUN_ID} --data-dir {tmp_path}"
    changed = with_update(told, LineLimits(2.5, None))
    assert comeback(changed) == f"peer seed {RUN_ID} --data-dir {tmp_path} --upload-limit-mbit 2.5"
    assert comeback(with_update(changed, LineLimits())) == comeback(told)
    up = with_update(told, OwnAddresses(("/ip4/192.0.2.7/tcp/40123",), listening=("/ip4/0.0.0.0/tcp/40123",)))
    assert comeback(up) == f"{comeback(told)} --listen /ip4/0.0.0.0/tcp/40123"


def test_what_a_file_chose_for_training_is_no_flag_of_a_seed() -> None:
    config = load_config({"run_id": RUN_ID, "data_dir": "owner", "device": "cpu"})
    assert same_again(config, "peer seed") == f"peer seed {RUN_ID} --data-dir {Path.cwd() / 'owner'}"
