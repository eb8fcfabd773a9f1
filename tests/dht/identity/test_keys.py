"""Key files, PeerIds, signatures and run ids."""

from __future__ import annotations

import os
import stat
import string
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import UsageFault
from dht.ground.host import PeerId
from dht.identity.keys import (
    Identity,
    fingerprint,
    make_run_id,
    public_key_of,
    split_run_id,
    verify,
    verify_key,
)

ALICE = Identity.generate()
BOB = Identity.generate()


@pytest.mark.parametrize(
    ("seed", "public_key", "peer_id"),
    [
        (
            bytes(range(32)).hex(),
            "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8",
            "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB",
        ),
        # The Ed25519 example of the libp2p peer id specification.
        (
            "7e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d",
            "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e",
            "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq",
        ),
    ],
)
def test_same_ids_as_the_libp2p_daemon(seed: str, public_key: str, peer_id: str) -> None:
    """The ids on the right are what p2pd reported for these key files."""
    identity = Identity.from_bytes(bytes.fromhex("08011240" + seed + public_key))
    assert identity.public_key.hex() == public_key
    assert identity.peer_id == peer_id


@given(st.text(max_size=70) | st.text(string.ascii_letters + string.digits, min_size=40, max_size=60))
def test_any_other_text_is_no_peer_id(text: str) -> None:
    with pytest.raises(ValueError, match="expected a libp2p Ed25519 id"):
        public_key_of(text)
    assert not verify(text, b"message", bytes(64))


@given(st.binary(max_size=200))
def test_signatures(message: bytes) -> None:
    signature = ALICE.sign(message)
    assert len(signature) == 64
    assert verify(ALICE.peer_id, message, signature)
    assert verify_key(ALICE.public_key, message, signature)
    assert not verify(BOB.peer_id, message, signature)
    assert not verify(ALICE.peer_id, message + b"x", signature)
    assert not verify(ALICE.peer_id, message, signature[:-1])
    assert not verify_key(ALICE.public_key[:-1], message, signature)


@given(st.binary(max_size=64), st.integers(0, 63), st.integers(1, 255))
def test_changed_signature_is_refused(message: bytes, position: int, change: int) -> None:
    signature = bytearray(ALICE.sign(message))
    signature[position] ^= change
    assert not verify(ALICE.peer_id, message, bytes(signature))


def test_secret_does_not_show() -> None:
    assert ALICE.peer_id in repr(ALICE)
    assert repr(ALICE) == f"Identity(peer_id={ALICE.peer_id!r})"
    with pytest.raises(AttributeError):
        ALICE.peer_id = PeerId("x")  # type: ignore[misc]


def test_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "identity.key"
    created = Identity.load_or_create(path)
    assert len(path.read_bytes()) == 68
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["identity.key"]
    assert Identity.load(path) == created == Identity.load_or_create(path)
    message = b"same key"
    assert Identity.load(path).sign(message) == created.sign(message)


def test_simultaneous_creation_gives_one_identity(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    start = threading.Barrier(8)
    found: list[Identity] = []

    def create() -> None:
        start.wait()
        found.append(Identity.load_or_create(path))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert {identity.peer_id for identity in found} == {Identity.load(path).peer_id}
    assert os.listdir(tmp_path) == ["identity.key"]


@pytest.mark.parametrize("damage", ["empty", "short", "long", "prefix", "public", "seed"])
def test_damaged_file(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "identity.key"
    content = bytearray(ALICE.to_bytes())
    if damage == "empty":
        content = bytearray()
    elif damage == "short":
        del content[-1]
    elif damage == "long":
        content += b"x"
    else:
        content[{"prefix": 2, "seed": 10, "public": 60}[damage]] ^= 1
    path.write_bytes(content)
    path.chmod(0o600)
    for read in (Identity.load, Identity.load_or_create):
        with pytest.raises(UsageFault, match="is damaged"):
            read(path)
    assert path.read_bytes() == content


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"the key file .* cannot be read"):
        Identity.load(tmp_path / "nothing.key")
    with pytest.raises(UsageFault, match=r"the key file .* cannot be read"):
        Identity.load(tmp_path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_file_open_to_others(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.key"
    Identity.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(UsageFault, match="chmod 600"):
        Identity.load(path)


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageFault, match=r"the key file .* cannot be read"):
        Identity.load_or_create(tmp_path / "file" / "identity.key")


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=40))
def test_run_id_round_trip(name: str) -> None:
    run_id = make_run_id(name, ALICE.public_key)
    assert split_run_id(run_id) == (name, fingerprint(ALICE.public_key))
    assert run_id != make_run_id(name, BOB.public_key)


@pytest.mark.parametrize("name", ["", "A", "a.b", "a b", "x" * 41, "ü", "name\n"])
def test_bad_run_name(name: str) -> None:
    with pytest.raises(UsageFault, match="cannot be used"):
        make_run_id(name, ALICE.public_key)


@given(st.text(max_size=80))
def test_text_that_is_no_run_id(text: str) -> None:
    with pytest.raises(UsageFault, match="is not a run id"):
        split_run_id(text)
