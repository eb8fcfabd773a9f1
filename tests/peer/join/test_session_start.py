"""How a session of a loop of your own begins: in a folder that is nobody else's, and with sentences for Python."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from dht.admission.tickets import Invite, encode_invite, issue_ticket
from dht.ground.errors import Incompatible, LocalFault, UsageFault
from dht.identity.keys import Identity, make_run_id
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig
from peer.data_folder.data_folder_choice import hold_folder
from peer.data_folder.folder_lock import last_use_of
from peer.join import session
from peer.join.python_error_words import in_python
from peer.network.membership.invitation import load_pass
from peer.observe import run_page
from peer.observe.ended_run import NamedRun, end_on_page
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
            "join with invite; `peer key --identity FILE` prints it",
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


def test_a_run_is_named_as_on_the_command_line(
    enter: Callable[..., session.Swarm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(run_id: str | None = None, **given: Any) -> tuple[str, tuple[str, ...]]:
        config = enter(run_id, **given)._config  # type: ignore[arg-type]
        return config.run_id, config.peers

    owner = Identity.from_seed(bytes([1]) * 32)
    run_id, address = make_run_id("own", owner.public_key), f"/ip4/203.0.113.5/tcp/4001/p2p/{owner.peer_id}"
    assert named(f"<murmuration://{run_id}@203.0.113.5:4001/{owner.peer_id}>") == (run_id, (address,))
    monkeypatch.setattr(run_page, "ask_page", lambda url: NamedRun(run_id, [address]))
    assert named("https://run.example.org") == (run_id, (address,))
    elsewhere = address.replace(".5/", ".6/")
    assert named("https://run.example.org", peers=[elsewhere]) == (run_id, (elsewhere,))
    with pytest.raises(UsageFault, match="neither a run id nor the name of a run here"):
        named("own")
    (tmp_path / "murmuration" / run_id).mkdir(parents=True)
    assert named("own") == (run_id, ())
    with pytest.raises(UsageFault, match="no run is given"):
        named()
    with pytest.raises(UsageFault, match="run_id is 3; expected"):
        named(3)  # type: ignore[arg-type]
    monkeypatch.setattr(
        run_page, "ask_page", lambda url: NamedRun(run_id, [address], end_on_page(run_id, "", is_served=True))
    )
    with pytest.raises(Incompatible, match=r"has ended.*no peer can join it"):
        named("https://run.example.org")


def test_an_invite_names_its_run_and_lets_this_peer_in(enter: Callable[..., session.Swarm], tmp_path: Path) -> None:
    owner = Identity.from_seed(bytes([1]) * 32)
    run_id, secret = make_run_id("own", owner.public_key), bytes(range(32))
    key, until = Identity.from_seed(secret).public_key, int(time.time()) + 3600
    ticket = issue_ticket(owner, run_id, "once", key, until, bytes(8))
    address = f"/ip4/203.0.113.5/tcp/4001/p2p/{owner.peer_id}"
    invite = tmp_path / "friend.invite"
    invite.write_text(encode_invite(Invite(run_id, (address,), owner.public_key, ticket, secret)))
    with pytest.raises(UsageFault, match="mode 0644"):
        enter(None, invite=invite)
    invite.chmod(0o600)
    with pytest.raises(UsageFault, match=f"invite is for run {run_id}; expected {RUN_ID}, the run of run_id"):
        enter(RUN_ID, invite=invite)
    with enter(None, invite=str(invite)) as swarm:
        assert (swarm._config.run_id, swarm._config.peers) == (run_id, (address,))
        assert load_pass(swarm._config.data_dir)


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
    assert "although its loop has ended; it is closed now" in caplog.text
    with pytest.raises(UsageFault, match="block has ended"):
        first.report(1.0)
    first.__exit__(None, None, None)  # of a callback, or as the process ends
    assert Connection.closed == ["own "]
    other = cell("two." + "b" * 20)
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
