"""A second peer of one run on one machine gets a folder and a key of its own, unless its person named them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dht.errors import LocalFault
from dht.identity.keys import Identity
from peer.config.peer_config import PeerConfig, write_cached_peers
from peer.folder_lock import FolderInUse, FolderLock
from peer.panel import own_folder
from peer.panel.own_folder import HeldFolder, hold_folder
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
    assert second_held.sentence is not None
    assert "(peer seed)" in second_held.sentence
    assert f"a key and a folder of its own: {second.data_dir}" in second_held.sentence
    second_held.lock.close()
    again, again_held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    assert again == second
    for held in (again_held, third_held):
        held.lock.close()


@pytest.mark.parametrize("named", ["data_dir", "identity"])
def test_what_was_named_is_taken_or_refused(named: str, first: tuple[PeerConfig, HeldFolder]) -> None:
    config = PeerConfig.model_validate({"run_id": RUN_ID, named: getattr(first[0], named)})
    with pytest.raises(FolderInUse, match="is in use by process"):
        hold_folder(config, "peer join")


def test_too_many_are_refused(first: tuple[PeerConfig, HeldFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_folder, "MOST_FOLDERS", 1)
    with pytest.raises(LocalFault, match=r"1 peers of own.a+ run on this machine already; expected fewer"):
        hold_folder(PeerConfig(run_id=RUN_ID), "peer join")


def test_the_terminal_says_so_and_lets_go(first: tuple[PeerConfig, HeldFolder]) -> None:
    config, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    view = StuckView()
    view.freed.set()
    terminal = Terminal(config, view, held=held)
    with terminal.interruptible():
        terminal.keep_folder()
    assert view.shown == [held.sentence]
    FolderLock(config.data_dir, "another").close()


def test_a_start_of_which_nothing_comes_leaves_no_folder(first: tuple[PeerConfig, HeldFolder]) -> None:
    config, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    with Terminal(config, held=held).interruptible():
        assert config.data_dir.exists()
    assert not config.data_dir.exists()
    assert first[0].data_dir.exists()
