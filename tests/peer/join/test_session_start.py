"""How a session of a loop of your own begins: in a folder that is nobody else's, and with sentences for Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dht.errors import LocalFault
from peer.config.peer_config import PeerConfig
from peer.data_folder_choice import hold_folder
from peer.folder_lock import last_use_of
from peer.join import session
from peer.join.python_error_words import in_python

RUN_ID = "own." + "a" * 20


@pytest.mark.parametrize(
    ("for_the_command_line", "for_python"),
    [
        ("give another --data-dir", "give another data_dir"),
        ("raise --join-timeout; give --peers of a member", "raise join_timeout_seconds; give peers of a member"),
        (
            "join with --invite; `peer key --identity FILE` prints it",
            "join with --invite; `peer key --identity FILE` prints it",
        ),
    ],
)
def test_arguments_stand_where_the_command_line_has_flags(for_the_command_line: str, for_python: str) -> None:
    assert in_python(for_the_command_line) == for_python


def test_a_session_never_takes_the_folder_of_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    seed, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer seed")
    held.lock.close()
    configs: list[PeerConfig] = []

    def refuse(config: PeerConfig, *ports: Any) -> None:
        configs.append(config)
        raise LocalFault("a port is taken; choose another with --listen")

    monkeypatch.setattr(session, "RunConnection", refuse)
    module = nn.Linear(1, 1)
    swarm = session.join(RUN_ID, module=module, optimizer=torch.optim.SGD(module.parameters()))
    with pytest.raises(LocalFault, match=r"choose another with listen$"):
        swarm.__enter__()
    assert [config.data_dir.name for config in configs] == [f"{RUN_ID}-2"]
    assert not configs[0].data_dir.exists(), "nothing came of it"
    assert last_use_of(seed.data_dir) == "peer seed"
