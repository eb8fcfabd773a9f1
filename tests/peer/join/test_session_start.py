"""How a session of a loop of your own begins: in a folder that is nobody else's, and with sentences for Python."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from dht.errors import LocalFault, UsageFault
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig
from peer.data_folder_choice import hold_folder
from peer.folder_lock import last_use_of
from peer.join import session
from peer.join.python_error_words import in_python
from peer.trainer.loop.mailbox_link import TrainerLink
from tests.kit.trainer.lone_swarm import link_of

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


class Connection:
    """A network process that holds nothing; `closed` has the reason of each goodbye."""

    closed: ClassVar[list[str]] = []
    identity = SimpleNamespace(peer_id="me")
    totals = SimpleNamespace(reads=0)
    network = SimpleNamespace(run_has_ended=False, check=lambda: None)
    has_mailbox = True

    def __init__(self, config: PeerConfig, *ports: Any) -> None:
        self.config = config

    def open(self, stop: Any) -> RunManifest:
        return RunManifest(name="own")

    def link(self, manifest: RunManifest, parameters: Any, device: Any, buffers: Any) -> TrainerLink:
        return link_of(parameters)

    def close(self, reason: str, idle: Any = None) -> None:
        self.closed.append(f"{self.config.run_id[:3]} {self.config.data_dir.name[len(RUN_ID) :]}")

    def abort(self) -> None: ...


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., session.Swarm]]:
    """Joins and enters by hand, as a cell of a notebook may; ends what is open at the end."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(session, "RunConnection", Connection)
    monkeypatch.setattr(session, "READY_SECONDS", None)  # the anchors are there
    monkeypatch.setattr(Connection, "closed", [])
    entered: list[session.Swarm] = []

    def joined(run_id: str = RUN_ID, module: nn.Module | None = None, **choices: Any) -> session.Swarm:
        module = module or nn.Linear(1, 1)
        swarm = session.join(run_id, module=module, optimizer=torch.optim.SGD(module.parameters(), 0.1), **choices)
        entered.append(swarm)
        return swarm

    yield joined
    for swarm in entered:
        if swarm in session._OPEN:
            swarm.__exit__(None, None, None)


def folder_of(swarm: session.Swarm) -> str:
    return swarm._config.data_dir.name.removeprefix(RUN_ID)


def test_a_session_whose_loop_is_over_gives_its_folder_to_the_next(
    enter: Callable[..., session.Swarm], caplog: pytest.LogCaptureFixture
) -> None:
    module = nn.Linear(1, 1)

    def cell(run_id: str = RUN_ID, module: nn.Module | None = None) -> session.Swarm:
        return enter(run_id, module).__enter__()

    first = cell(module=module)
    second = cell(module=module)  # the same one, made in an earlier cell
    assert folder_of(second) == ""
    assert Connection.closed == ["own "]
    assert "although its loop is over; it ends now" in caplog.text
    with pytest.raises(UsageFault, match="block is over"):
        first.report(1.0)
    first.__exit__(None, None, None)  # of a callback, or as the process ends
    assert Connection.closed == ["own "]
    other = cell("two." + "a" * 20)
    del first
    gc.collect()
    third = cell()
    del third
    gc.collect()
    assert folder_of(cell()) == ""
    other.report(1.0)  # a session of another run is left alone


def test_sessions_of_one_run_that_are_in_use_keep_their_folders(
    enter: Callable[..., session.Swarm], tmp_path: Path
) -> None:
    with enter() as outer, enter() as inner:
        assert [folder_of(swarm) for swarm in (outer, inner)] == ["", "-2"]
        outer.report(1.0)
    began, end = threading.Event(), threading.Event()
    folders: list[str] = []

    def loop() -> None:
        with enter() as swarm:
            folders.append(folder_of(swarm))
            began.set()
            end.wait()
            swarm.report(1.0)

    thread = threading.Thread(target=loop)
    thread.start()
    began.wait()
    with enter() as beside:
        folders.append(folder_of(beside))
    end.set()
    thread.join()
    assert sorted(folders) == ["", "-2"]

    def by_hand(folder: str) -> session.Swarm:
        return enter(data_dir=tmp_path / folder).__enter__()

    one, two = by_hand("one"), by_hand("two")
    for swarm in (one, two):
        swarm.report(1.0)
