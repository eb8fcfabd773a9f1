"""PeerConfig: precedence of flags, file and defaults; sentences that blame the right one; cached addresses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dht.ground.errors import UsageFault
from dht.identity.keys import Identity, make_run_id
from peer.config.peer_config import (
    MAX_CACHED_PEERS_BYTES,
    PeerConfig,
    load_config,
    read_cached_peers,
    write_cached_peers,
)
from peer.user_folders import user_data_dir

OWNER = Identity.generate()
RUN_ID = make_run_id("demo", OWNER.public_key)
ADDRESS = f"/ip4/203.0.113.5/tcp/4001/p2p/{OWNER.peer_id}"


def written(folder: Path, text: str) -> Path:
    path = folder / "peer.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('devise = "cpu"', "devise is not a known field; did you mean device?"),
        ('device = "gpu"', "device is 'gpu'; expected something like auto or cpu"),
        ('peers = "/ip4"', "peers is '/ip4'; expected a list of texts."),
        ('peers = ["/ip4/203.0.113.5/tcp/4001"]', "cannot be dialled; expected an address that ends in /p2p/PEER_ID"),
        ('run_id = "demo"', "run_id: 'demo' is not a run id; expected NAME.FINGERPRINT"),
        ("max_steps = 0", "max_steps is 0; expected a whole number from 1"),
        ("join_timeout_seconds = inf", "join_timeout_seconds is inf; expected a finite number"),
        ("identity = 3", "identity is 3; expected a path."),
        ("device = ", "is not a TOML file"),
    ],
)
def test_file_faults_name_the_file_and_the_field(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageFault) as caught:
        load_config({"run_id": RUN_ID, "device": "cpu"}, path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"device": "cuda:x"}, "--device is 'cuda:x'; expected something like auto"),
        ({"run_id": "x", "device": "cpu"}, "--run-id: 'x' is not a run id"),
        ({"announce": ["/ip4/203.0.113.5/tcp/0"]}, "--announce: '/ip4/203.0.113.5/tcp/0' has port 0"),
        ({"listen": ["/ip4/0.0.0.0"]}, "--listen: '/ip4/0.0.0.0' has no port"),
        (
            {"listen": ["0.0.0.0:4001"]},
            "--listen: '0.0.0.0:4001' is not a multiaddr: it does not begin with '/'; expected something like "
            "/ip4/0.0.0.0/tcp/4001",
        ),
        (
            {"listen": ["/ip4/0.0.0.0/tcp/4001/p2p/12D3KooWLRzoSPvLjnytUUFXy3hdc5x5QXiCiPKfPfU9jGn1cqUJ"]},
            "names a peer; expected something like /ip4/0.0.0.0/tcp/4001, because this peer's id is added",
        ),
        ({"join_timeout_seconds": -1.0}, "--join-timeout is -1.0; expected a finite number from 0"),
        ({"name": "a\x1b[2J"}, "--name is 'a\\x1b[2J'; expected something like one line of printable text"),
        ({"data": "books.txt"}, "--data: 'books.txt' has no kind; expected text:, jsonl:"),
        ({"run_id": None}, "Which run? Expected RUN"),
    ],
)
def test_flag_faults_name_the_flag(tmp_path: Path, flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageFault) as caught:
        load_config({"run_id": RUN_ID} | flags, written(tmp_path, "threads = 1"))
    assert sentence in str(caught.value)
    # One fault, one sentence: defaults that depend on the wrong value do not add their own.
    assert str(caught.value).count("expected") <= 1


def test_data_folder_follows_each_platform() -> None:
    home = Path("/home/ada")
    assert user_data_dir({}, "linux", home) == Path("/home/ada/.local/share/murmuration")
    assert user_data_dir({"XDG_DATA_HOME": "/data"}, "linux", home) == Path("/data/murmuration")
    assert user_data_dir({"XDG_DATA_HOME": "relative"}, "linux", home) == Path("/home/ada/.local/share/murmuration")
    assert user_data_dir({}, "darwin", home) == Path("/home/ada/Library/Application Support/murmuration")


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert PeerConfig(run_id=RUN_ID, data_dir=Path("~/swarm")).identity == tmp_path / "swarm" / "identity.key"
    chosen = PeerConfig(run_id=RUN_ID, contributor_key=Path("~/me.key"), base=Path("~/weights"))
    assert (chosen.contributor_key, chosen.base) == (tmp_path / "me.key", tmp_path / "weights")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[" * 60_000, b"\xff", b"[" + b" " * MAX_CACHED_PEERS_BYTES + b"]", b"[1,null]"]
)
def test_a_damaged_cache_is_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cached_peers.json"
    assert read_cached_peers(path) == []
    path.write_bytes(content)
    assert read_cached_peers(path) == []


def test_only_dialable_addresses_come_out_of_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "cached_peers.json"
    path.write_text(f'["/ip4/203.0.113.5/tcp/4001", "{ADDRESS}", 7]')
    assert read_cached_peers(path) == [ADDRESS]


def test_a_full_disk_leaves_the_earlier_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cached_peers.json"
    write_cached_peers(path, [ADDRESS])

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_cached_peers(path, [])
    assert read_cached_peers(path) == [ADDRESS]
    assert [entry.name for entry in tmp_path.iterdir()] == ["cached_peers.json"]
