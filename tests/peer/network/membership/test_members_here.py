"""Who waits for a run looks again at what its peers on this machine say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.identity.keys import Identity
from peer.config.peer_config import PeerConfig, write_cached_peers
from peer.data_folder.folder_lock import FolderLock
from peer.data_folder.run_folders import remember_place
from peer.network.membership.members_here import addresses_here, addresses_now

RUN_ID = "own." + "a" * 20
PEER = Identity.from_seed(bytes(32)).peer_id


def address(port: int) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}"


def test_a_peer_that_comes_back_on_another_port_is_known_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    own, seed, third = (tmp_path / "murmuration" / f"{RUN_ID}{end}" for end in ("", "-2", "-3"))
    elsewhere = tmp_path / "elsewhere"
    for port, folder in enumerate((own, seed, third, elsewhere), 4001):
        folder.mkdir(parents=True)
        write_cached_peers(folder / "addresses.json", [address(port)])
    remember_place(RUN_ID, elsewhere)
    config = PeerConfig(run_id=RUN_ID, peers=(address(4009),))
    write_cached_peers(config.cached_peers_path, [address(4008)])
    held = [FolderLock(own, "peer join")]
    assert addresses_now(config) == [address(4009), address(4008)], "nobody else runs"
    held += [FolderLock(folder, "peer seed") for folder in (seed, elsewhere)]
    assert addresses_now(config) == [address(port) for port in (4009, 4002, 4004, 4008)]
    write_cached_peers(seed / "addresses.json", [address(4012)])
    assert addresses_now(config) == [address(port) for port in (4009, 4012, 4004, 4008)]
    assert addresses_here(RUN_ID) == [address(port) for port in (4001, 4012, 4004)]
    for lock in held:
        lock.close()
