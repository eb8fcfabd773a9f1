"""A second process with the same key: a copied data folder beside the original, and nobody else to notice it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dht.ground.errors import LocalFault
from dht.identity.keys import Identity
from peer.config.peer_config import ADDRESSES_NAME, PeerConfig, write_cached_peers
from peer.folder_lock import FolderLock
from peer.network.process import second_process
from peer.run_folders import remember_place

ME, OTHER = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2))
RUN_ID = "own." + "a" * 20


def address(port: int, peer_id: str = ME) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was asked; everything on port 1 answers."""
    found: list[list[str]] = []

    async def answer(addresses: Any) -> list[str]:
        found.append([*addresses])
        return [one for one in addresses if "/tcp/1/" in one]

    monkeypatch.setattr(second_process, "answering", answer)
    monkeypatch.setattr(second_process, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(second_process, "LOOK_SECONDS", 0.0)
    return found


def config_in(folder: Path, *addresses: str) -> PeerConfig:
    folder.mkdir(exist_ok=True)
    write_cached_peers(folder / ADDRESSES_NAME, list(addresses))
    return PeerConfig(run_id=RUN_ID, data_dir=folder)


def test_a_copy_of_a_folder_whose_peer_runs_does_not_start(tmp_path: Path, asked: list[list[str]]) -> None:
    copy = config_in(tmp_path / "copy", address(1), address(3, OTHER))
    with pytest.raises(LocalFault, match=f"uses the identity {ME} and was there first; expected one process per"):
        asyncio.run(second_process.refuse_second_process(copy, ME))
    # Several times: a network process that died a moment ago may leave something that answers.
    assert asked == [[address(1)]] * second_process.NUM_TRIES


def test_a_peer_that_comes_back_starts(tmp_path: Path, asked: list[list[str]]) -> None:
    asyncio.run(second_process.refuse_second_process(config_in(tmp_path / "own", address(2)), ME))
    assert asked == [[address(2)]]
    asyncio.run(second_process.refuse_second_process(config_in(tmp_path / "new", address(1, OTHER)), ME))
    assert len(asked) == 1, "nothing to ask"


def test_of_two_that_start_together_the_later_one_stops(
    tmp_path: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    one, two = config_in(tmp_path / "one", address(1)), config_in(tmp_path / "two", address(2))
    for seconds, config in enumerate((one, two)):
        os.utime(config.data_dir / ADDRESSES_NAME, (seconds, seconds))
        remember_place(RUN_ID, config.data_dir)

    async def watch(config: PeerConfig, *, ends: bool) -> bool:
        noted: list[bool] = []
        membership: Any = SimpleNamespace(
            identity=SimpleNamespace(peer_id=ME), note_earlier_process=lambda: noted.append(True)
        )
        task = asyncio.create_task(second_process.watch_for_second_process(config, membership))
        await asyncio.wait([task], timeout=None if ends else 0.05)
        task.cancel()
        return bool(noted)

    locks = [FolderLock(config.data_dir, "peer join") for config in (one, two)]
    assert not asyncio.run(watch(one, ends=False))
    assert asked == []
    assert asyncio.run(watch(two, ends=True))
    assert asked == [[address(1)]]
    locks[0].close()
    assert not asyncio.run(watch(two, ends=False)), "what is left in a folder says nothing"
