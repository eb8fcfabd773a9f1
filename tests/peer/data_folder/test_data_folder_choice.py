"""Each peer of a run on one machine has a folder and a key of its own, and comes back to them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.host import PeerId
from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import encode_run_record, sign_run_record
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig, write_cached_peers
from peer.data_folder import data_folder_choice
from peer.data_folder.data_folder_choice import HeldFolder, hold_folder
from peer.data_folder.folder_lock import FolderInUse, FolderLock, last_use_of
from peer.data_folder.run_folders import kept_command
from peer.events.peer_events import Event, JoinedRun
from peer.panel.return_command import keep_command
from peer.panel.terminal import Terminal
from tests.kit.terminals import StuckView

RUN_ID = "own." + "a" * 20
SEED_ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{Identity.from_seed(bytes(32)).peer_id}"


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PeerConfig, HeldFolder]]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    config, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer seed")
    yield config, held
    held.lock.close()


def test_a_first_peer_takes_its_own_folder_without_a_word(first: tuple[PeerConfig, HeldFolder]) -> None:
    config, held = first
    assert config == PeerConfig(run_id=RUN_ID)
    assert held.sentence is None


def test_a_second_and_a_third_get_their_own_folder_and_key_and_dial_the_first(
    first: tuple[PeerConfig, HeldFolder],
) -> None:
    folder = first[0].data_dir
    write_cached_peers(folder / "addresses.json", [SEED_ADDRESS])
    second, second_held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    third, third_held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    assert [config.data_dir.name for config in (second, third)] == [f"{RUN_ID}-2", f"{RUN_ID}-3"]
    assert second.identity == second.data_dir / "identity.key"
    assert second.peers == third.peers == (SEED_ADDRESS,)
    assert second_held.sentence == (
        f"this machine already runs the run's seed; this peer uses its own folder, {second.data_dir}"
    )
    second_held.lock.close()
    again, again_held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    assert again == second
    assert again_held.sentence is None, "it is known by now"
    for held in (again_held, third_held):
        held.lock.close()


def start_and_stop(what: str, last_event_at: int = 0) -> str:
    """The end of the folder's name of a peer that came and went."""
    config, held = hold_folder(PeerConfig(run_id=RUN_ID), what)
    config.event_log_path.touch()
    os.utime(config.event_log_path, (last_event_at, last_event_at))
    held.lock.close()
    return config.data_dir.name.removeprefix(RUN_ID)


def test_neither_a_seed_nor_a_trainer_takes_the_key_of_the_other(first: tuple[PeerConfig, HeldFolder]) -> None:
    first[1].lock.close()
    assert [start_and_stop(what) for what in ("peer join", "peer seed", "peer join")] == ["-2", "", "-2"]


def test_the_seed_of_a_run_takes_its_owners_folder_whatever_ran_there_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert start_and_stop("peer join") == ""
    config, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer seed")
    held.lock.close()
    assert config.data_dir.name == f"{RUN_ID}-2"
    assert held.sentence is not None
    assert "it is an additional bootstrap peer, and links to the other seed do not lead here" in held.sentence
    (tmp_path / "murmuration" / RUN_ID / "owner.key").touch()
    assert start_and_stop("peer seed") == ""
    _, trains = hold_folder(PeerConfig(run_id=RUN_ID), "peer seed")
    assert start_and_stop("peer seed") == "-2", "while something runs there"
    trains.lock.close()


def test_a_start_that_found_no_run_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for kept in ((), ("run.record",), ("membership.pass",)):
        config, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
        terminal = Terminal(config, held=held)
        with terminal.interruptible():
            terminal.keep_folder()
            for name in (*kept, "addresses.json", "identity.key"):
                (config.data_dir / name).touch()
        assert config.data_dir.exists() == bool(kept)
        shutil.rmtree(config.data_dir, ignore_errors=True)


def test_a_trainer_without_other_addresses_hears_that_its_seed_does_not_run(
    first: tuple[PeerConfig, HeldFolder],
) -> None:
    first[1].lock.close()
    for peers, said in (((), True), ((SEED_ADDRESS,), False)):
        _, held = hold_folder(PeerConfig(run_id=RUN_ID, peers=peers), "peer join")
        assert ("start it with `peer seed" in (held.sentence or "")) is said
        held.lock.close()


@pytest.mark.parametrize("listen", [(), ("/ip4/192.0.2.7/tcp/4001",)])
def test_the_command_that_it_hears_brings_the_seed_back_where_it_was(
    listen: tuple[str, ...], first: tuple[PeerConfig, HeldFolder]
) -> None:
    seed = first[0].model_copy(update={"listen": listen})
    keep_command(seed, "peer seed", listen or ["/ip4/0.0.0.0/tcp/40123", "/ip6/::/tcp/40123"])
    first[1].lock.close()
    _, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    flags = " ".join(f"--listen {one}" for one in listen or ("/ip4/0.0.0.0/tcp/40123", "/ip6/::/tcp/40123"))
    assert (held.sentence or "").endswith(f"; start it with `peer seed {RUN_ID} {flags}`")
    held.lock.close()


@pytest.mark.parametrize("content", [b"", b"peer seed\x1b[2J", b"\xff", b"a\nb\n", b"x" * 20_000])
def test_what_is_no_command_is_not_shown_as_one(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "return.command").write_bytes(content)
    assert kept_command(tmp_path) is None


def test_of_several_folders_that_was_used_last_is_taken(first: tuple[PeerConfig, HeldFolder]) -> None:
    _, alice = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    assert start_and_stop("peer join", last_event_at=2000) == "-3"
    alice.lock.close()
    config, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    assert config.data_dir.name.endswith("-3")
    assert held.sentence == (
        f"2 peers have stopped here; the last of them continues (--data-dir {config.data_dir}); "
        "`peer runs` lists the others"
    )
    held.lock.close()
    assert start_and_stop("peer join", last_event_at=1000) == "-3"
    # A start that fails there changes nothing of what the folder is for.
    bob, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    held.give_up()
    assert last_use_of(bob.data_dir) == "peer join"


@pytest.mark.parametrize("named", ["data_dir", "identity"])
def test_what_was_named_is_taken_or_refused(named: str, first: tuple[PeerConfig, HeldFolder]) -> None:
    config = PeerConfig.model_validate({"run_id": RUN_ID, named: getattr(first[0], named)})
    with pytest.raises(FolderInUse, match="is in use by process"):
        hold_folder(config, "peer join")


def test_the_folder_of_another_run_is_refused_and_keeps_its_manifest(tmp_path: Path) -> None:
    owner = Identity.from_seed(bytes([1]) * 32)
    other = make_run_id("other", owner.public_key)
    content = encode_run_record(sign_run_record(other, RunManifest.from_fields({"name": "other"}).to_bytes(), owner))
    (tmp_path / "run.record").write_bytes(content)
    for what in ("peer join", "peer seed", "a training loop"):
        with pytest.raises(
            UsageFault, match=rf"{tmp_path} belongs to the run {other}; expected a folder of {RUN_ID}, or a new"
        ):
            hold_folder(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), what)
    assert [path.name for path in tmp_path.iterdir()] == ["run.record"]
    assert (tmp_path / "run.record").read_bytes() == content
    hold_folder(PeerConfig(run_id=other, data_dir=tmp_path), "peer join")[1].lock.close()


def test_too_many_are_refused(first: tuple[PeerConfig, HeldFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folder_choice, "MOST_FOLDERS", 1)
    with pytest.raises(LocalFault, match=r"all 1 folders for peers of own.a+ on this machine are in use"):
        hold_folder(PeerConfig(run_id=RUN_ID), "peer join")


def test_the_terminal_says_so_and_lets_go(first: tuple[PeerConfig, HeldFolder]) -> None:
    config, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    view = StuckView()
    view.freed.set()
    terminal = Terminal(config, view, held=held)
    with terminal.interruptible():
        terminal.keep_folder()
        terminal.show(Event(1.0, PeerId("me"), JoinedRun(RUN_ID, "cpu", 1, (0,))))
    assert view.shown[0] == held.sentence
    FolderLock(config.data_dir, "another").close()


def test_a_start_of_which_nothing_comes_leaves_no_folder(first: tuple[PeerConfig, HeldFolder]) -> None:
    config, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    terminal = Terminal(config, held=held)
    with terminal.interruptible():
        (config.data_dir / "run.record").touch()
        (config.data_dir / "files" / "of-the-run").mkdir(parents=True)
        terminal.keep_folder()
    assert not config.data_dir.exists()
    assert first[0].data_dir.exists()
