"""Whatever a person or a stranger puts where a file is expected: a sentence, and never a wait or all memory."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dht.ground.errors import LocalFault
from dht.ground.regular_files import open_regular, read_regular, write_whole
from dht.identity.keys import Identity
from peer.checkpoint.checked_files import measure_file, read_json
from peer.config.manifest import RunManifest
from peer.config.peer_config import load_config, read_cached_peers
from peer.events.log_tail import last_events
from peer.network.membership.invitation import load_pass, read_invite
from peer.network.membership.invite_users import read_users
from peer.network.membership.profile_file import load_contributor, read_choice
from peer.network.membership.run_finding import local_record
from peer.observe.receipts_verify import verify_receipts
from peer.owner.new_run import create_run
from peer.owner.owned_run import open_owned_run
from peer.plan.plan_source import load_planned_run

READ_SECONDS = 10.0
"""For a reader that should answer in a millisecond; it would wait for ever."""
RUN_ID = "any.aaaaaaaaaaaaaaaaaaaa"

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "key": ("identity.key", Identity.load),
    "key, or a new one": ("identity.key", Identity.load_or_create),
    "contributor key": ("contributor.key", lambda path: load_contributor(path, create=True)),
    "run file": ("run.toml", RunManifest.load_toml),
    "run file of peer init": ("run.toml", lambda path: create_run("any", path, path.parent / "out")),
    "run file of peer plan": ("run.toml", load_planned_run),
    "record of peer plan": ("run.record", load_planned_run),
    "configuration": ("peer.toml", lambda path: load_config({"run_id": RUN_ID}, path)),
    "record": ("run.record", lambda path: local_record(path, RUN_ID)),
    "invite": ("run.invite", lambda path: read_invite(str(path))),
    "pass": ("membership.pass", lambda path: load_pass(path.parent)),
    "profile": ("contributor.key.profile.json", read_choice),
    "receipts": ("receipts.jsonl", lambda path: verify_receipts(path, None, False)),
    "event log": ("events.jsonl", lambda path: last_events(path, 1)),
    "users of invites": ("used_invites.jsonl", read_users),
    "addresses": ("cached_peers.json", read_cached_peers),
    "checkpoint's facts": ("metadata.json", read_json),
    "checkpoint's file": ("fragment-0000.safetensors", measure_file),
    "owner key": ("owner.key", lambda path: open_owned_run(RUN_ID, path.parent)),
}
SAYS_NOTHING = ("addresses",)  # a convenience: what cannot be used is left out
SAYS_OTHERWISE = ("record",)  # returns its sentence


def in_time(read: Callable[[Path], object], path: Path) -> BaseException | object:
    """What reading gave or raised; fails the test when it waits."""
    found: list[BaseException | object] = []

    def work() -> None:
        try:
            found.append(read(path))
        except (LocalFault, OSError, ValueError) as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(READ_SECONDS)
    if not found and not path.is_char_device():
        # Let the reader go, so that nothing waits behind this test.
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    assert found, "it waits"
    return found[0]


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_a_sentence(name: str, tmp_path: Path) -> None:
    file_name, read = READERS[name]
    os.mkfifo(tmp_path / file_name, 0o600)
    check(name, in_time(read, tmp_path / file_name), "is a named pipe, not a regular file")


@pytest.mark.parametrize("name", READERS)
def test_a_device_is_a_sentence(name: str, tmp_path: Path) -> None:
    file_name, read = READERS[name]
    (tmp_path / file_name).symlink_to("/dev/zero")
    check(name, in_time(read, tmp_path / file_name), "is a device, not a regular file")


def check(name: str, outcome: object, words: str) -> None:
    if name in SAYS_NOTHING:
        assert outcome == []
    elif name in SAYS_OTHERWISE:
        assert words in str(outcome)
    else:
        assert isinstance(outcome, BaseException)
        text = outcome.strerror if isinstance(outcome, OSError) else str(outcome)
        assert words in str(text)


def test_what_is_opened_is_a_regular_file_or_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path, words in (
            (tmp_path, "Is a directory"),
            (tmp_path / "socket", "is a socket"),
            (Path("/dev/null"), "device"),
        ):
            with pytest.raises(OSError, match=words):
                open_regular(path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 4) == b"1234"
    with pytest.raises(OSError, match="has more than 3 bytes"):
        read_regular(tmp_path / "link", 3)


def test_a_file_that_turns_into_a_pipe_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    real = os.open

    def swap(name: str | Path, *rest: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return real(name, *rest)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(OSError, match="named pipe"):
        open_regular(path)


def test_a_file_is_written_whole_for_its_owner_alone_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "file"
    write_whole(path, b"first")
    assert path.read_bytes() == b"first"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"

    def interrupt(*paths: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_whole(path, b"third")
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"third")
    assert path.read_bytes() == b"second"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "new" / "folder" / "file", b"fourth")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(OSError, match="File exists"):
        write_whole(path / "below a file", b"")
