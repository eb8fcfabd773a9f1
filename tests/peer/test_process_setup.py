"""What a machine may lack: a home, hard links, a place for temporary files, an output, room on the disk."""

from __future__ import annotations

import asyncio
import errno
import logging
import multiprocessing
import os
import pwd
import re
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from dht.ground.errors import LocalFault, NobodyReachable, PeerUnreachable, UsageFault
from dht.identity.keys import Identity, make_run_id
from dht.p2pd import lazy_hivemind, socket_directory
from dht.records.signed_manifest import RunRecord, decode_run_record, encode_run_record, sign_run_record
from peer.cli.usage import exit_codes
from peer.config.manifest import RunManifest
from peer.config.peer_config import ADDRESSES_NAME, PeerConfig, load_config, read_cached_peers, write_cached_peers
from peer.network.membership import run_finding
from peer.network.membership.run_finding import dial_reason, find_run
from peer.network.process.run_files import KeptAddresses
from peer.observe.run_and_address import checked_target
from peer.owner.new_run import create_run
from peer.owner.owned_run import open_owned_run
from peer.process_setup import SPIN_COUNT, put_right
from peer.trainer.devices.torchrun import Place, check_meeting_place

RUN_ID = "any.aaaaaaaaaaaaaaaaaaaa"
SCRIPT = str(Path(sys.executable).with_name("peer"))
FULL = OSError(errno.ENOSPC, "No space left on device")


def raising(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


# ---------------------------------------------------------------------------------------------------- a user without


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "LOGNAME", "USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", raising(KeyError("getpwuid(): uid not found")))


@pytest.mark.usefixtures("homeless")
def test_without_a_home_one_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "has no home folder: HOME is not set.*give --data-dir, or set HOME or XDG_DATA_HOME"
    with pytest.raises(UsageFault, match=words):
        load_config({"run_id": RUN_ID})
    with pytest.raises(UsageFault, match=words):
        create_run("any")
    with pytest.raises(UsageFault, match=words):
        open_owned_run(RUN_ID, None)
    with pytest.raises(UsageFault, match="home folder of an unknown user"):
        open_owned_run(RUN_ID, "~/run")
    with pytest.raises(UsageFault, match="home folder of an unknown user"):
        load_config({"run_id": RUN_ID, "data_dir": "~/run"})
    # A flag is enough, beside a configuration file too.
    (tmp_path / "peer.toml").write_text("threads = 1\n")
    config = load_config({"run_id": RUN_ID, "data_dir": str(tmp_path)}, tmp_path / "peer.toml")
    assert config.identity == tmp_path / "identity.key"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert load_config({"run_id": RUN_ID}).data_dir == tmp_path / "murmuration" / RUN_ID


@pytest.mark.usefixtures("homeless")
def test_without_a_home_a_bug_is_still_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = exit_codes._write_traceback(ValueError("what went wrong"))
    assert Path(told).parent == tmp_path
    assert "what went wrong" in Path(told).read_text()
    monkeypatch.setattr(tempfile, "gettempdir", raising(FileNotFoundError(2, "no usable folder")))
    assert "here it is instead:\n" in exit_codes._write_traceback(ValueError("what went wrong"))


@pytest.mark.usefixtures("homeless")
def test_a_user_whom_the_system_does_not_know_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "")
    monkeypatch.delenv("LOGNAME")
    put_right()
    assert os.environ.pop("LOGNAME") == f"uid{os.getuid()}"


@pytest.mark.parametrize(
    ("own", "spins"), [({}, str(SPIN_COUNT)), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_idle_threads_wait_shortly_unless_their_owner_chose(
    own: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what is made here is undone
        monkeypatch.delenv(name)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    put_right()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


# ---------------------------------------------------------------------------------------------------------- disks


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_key_is_made_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", raising(OSError(number, os.strerror(number))))
    path = tmp_path / "data" / "identity.key"
    made = Identity.load_or_create(path)
    assert Identity.load_or_create(path).peer_id == made.peer_id
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.key"]


def test_of_two_that_make_a_key_there_at_once_both_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, faster = tmp_path / "identity.key", Identity.generate()

    def link(*_: object) -> None:
        path.write_bytes(faster.to_bytes())
        path.chmod(0o600)
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    assert Identity.load_or_create(path).peer_id == faster.peer_id


def test_a_disk_that_keeps_no_modes_is_told_before_anything_is_trained_with_that_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(draft: Path, path: Path) -> None:
        path.write_bytes(draft.read_bytes())
        path.chmod(0o755)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(UsageFault, match=r"the disk stores no file modes \(exFAT\).*give another path with --identity"):
        Identity.load_or_create(tmp_path / "identity.key")
    assert list(tmp_path.iterdir()) == []


def test_other_failures_of_a_link_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", raising(FULL))
    with pytest.raises(LocalFault, match="No space left on device"):
        Identity.load_or_create(tmp_path / "identity.key")
    assert list(tmp_path.iterdir()) == []


def test_sockets_go_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tempfile.mkdtemp

    def refuses(*, prefix: str, dir: Path) -> str:
        if dir != Path("/var/tmp"):
            raise OSError(errno.EROFS, "Read-only file system")
        return made(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", refuses)
    folder = socket_directory.SocketDirectory()
    assert folder.path.parent == Path("/var/tmp")
    folder.remove()
    monkeypatch.setattr(tempfile, "mkdtemp", raising(OSError(errno.EROFS, "Read-only file system")))
    monkeypatch.setattr(tempfile, "gettempdir", raising(FileNotFoundError(2, "no usable folder")))
    with pytest.raises(
        LocalFault, match=r"no folder fits .* \(/tmp: Read-only file system.*set TMPDIR to such a folder"
    ):
        socket_directory.SocketDirectory()
    assert isinstance(socket_directory.remove_stale(), int)


def test_hivemind_loads_where_no_semaphore_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "Lock", raising(OSError(errno.EROFS, "Read-only file system")))
    lazy_hivemind._do_without_semaphores()
    assert multiprocessing.Lock is threading.Lock


def test_a_cache_that_cannot_be_written_is_told_once_for_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"
    host = SimpleNamespace(connected_addresses=AsyncMock(return_value={"member": [address]}))
    addresses = KeptAddresses(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), host)  # type: ignore[arg-type]
    with monkeypatch.context() as full, caplog.at_level(logging.WARNING):
        full.setattr(os, "fsync", raising(FULL))
        asyncio.run(addresses.keep())
        asyncio.run(addresses.keep())
    assert len(caplog.records) == 1
    assert (
        "cached_peers.json cannot be written (No space left on device): the addresses of members are not stored"
        in caplog.text
    )
    assert "looking for members" not in caplog.text
    asyncio.run(addresses.keep())
    assert read_cached_peers(tmp_path / "cached_peers.json") == [address]


# ------------------------------------------------------------------------------------------------------- the output


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", ">&- 2>&- <&-"])
def test_a_closed_output_changes_nothing_else(tmp_path: Path, closed: str) -> None:
    command = f'exec "{SCRIPT}" key --data-dir "{tmp_path}/data" {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Identity.load(tmp_path / "data" / "identity.key")


def test_a_full_output_is_a_sentence(tmp_path: Path) -> None:
    command = f'exec "{SCRIPT}" key --data-dir "{tmp_path}/data" > /dev/full'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("peer: This machine refused a file or the output: No space left on device; expected")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", ["--help", "join --help"])
def test_help_into_a_full_output_or_none_is_no_traceback(words: str) -> None:
    """It is printed outside of any command."""
    done = subprocess.run(f"exec '{SCRIPT}' {words} > /dev/full", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "peer: The output cannot be written (No space left on device); expected free disk space.\n"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([SCRIPT, *words.split()], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


# ------------------------------------------------------------------------------------------------------- what is there


def test_variables_of_an_earlier_job_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        for rank in (0, 1):
            with pytest.raises(UsageFault, match=f"listens at 127.0.0.1:{port} .*run: unset RANK LOCAL_RANK WORLD"):
                check_meeting_place(Place(rank, rank, 2, "127.0.0.1", port))
        listener.listen()
        check_meeting_place(Place(0, 0, 2, "127.0.0.1", port))
    with pytest.raises(UsageFault, match=r"no process listens at no-such-host\.invalid:1"):
        check_meeting_place(Place(0, 0, 2, "no-such-host.invalid", 1))


def test_status_knows_the_addresses_of_the_peer_in_a_data_folder(tmp_path: Path) -> None:
    own, met = (f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.generate().peer_id}" for port in (1, 2))
    with pytest.raises(UsageFault, match=f"No address of a member of {RUN_ID} is known in {tmp_path}"):
        checked_target(RUN_ID, None, None, str(tmp_path))
    write_cached_peers(tmp_path / ADDRESSES_NAME, [own])
    assert checked_target(RUN_ID, None, None, str(tmp_path)).addresses == [own]
    write_cached_peers(tmp_path / "cached_peers.json", [met, own])
    assert checked_target(RUN_ID, None, None, str(tmp_path)).addresses == [own, met]
    assert checked_target(RUN_ID, [met], None, str(tmp_path)).addresses == [met]
    # Whoever looks at a private run does so with the observer's key of that folder, or else of the usual one.
    usual = checked_target(RUN_ID, [met]).observer_folder
    assert checked_target(RUN_ID, [met], None, str(tmp_path)).observer_folder == usual
    (tmp_path / "observer").mkdir()
    assert checked_target(RUN_ID, [met], None, str(tmp_path)).observer_folder == tmp_path / "observer"


# ---------------------------------------------------------------------------------------------------- who is not found


class DeafHost:
    """Reaches nobody, for reasons."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self.peer_id = Identity.generate().peer_id
        self.reasons = reasons

    async def connect(self, address: str, timeout_seconds: float) -> None:
        raise PeerUnreachable("", self.reasons[address])


def look(host: DeafHost, peers: list[str], folder: Path, local: RunRecord | None = None) -> Any:
    async def nobody(addresses: list[str]) -> int:
        return 0

    config = PeerConfig(run_id=RUN_ID, peers=tuple(peers), data_dir=folder).model_copy(
        update={"join_timeout_seconds": 0.0}
    )
    store: Any = SimpleNamespace(bootstrap=nobody)
    admission: Any = None
    deaf: Any = host
    return asyncio.run(find_run(config, store, deaf, admission, local, "", lambda reason, waited: None))


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(run_finding, "ask_for_run", nothing)


@pytest.mark.parametrize(
    ("place", "said", "shown"),
    [
        ("/dns4/no-such-host.invalid", "failed to dial: no good addresses", "this name has no address, or it cannot"),
        ("/ip4/203.0.113.9", "all dials failed * connect: connection refused", "connection refused"),
        ("/ip4/203.0.113.9", "no route to host", "no route to host"),
        ("/ip4/203.0.113.9", "was not there within 5 s", "no answer"),
    ],
)
def test_why_nobody_answered(tmp_path: Path, place: str, said: str, shown: str) -> None:
    address = f"{place}/tcp/4001/p2p/{Identity.generate().peer_id}"
    assert dial_reason(address, said).startswith(shown)
    told = f"{address})" if shown == "no answer" else f"{address}: {shown}"
    with pytest.raises(NobodyReachable, match=rf"\({re.escape(told)}"):
        look(DeafHost({address: said}), [address], tmp_path)


def test_ones_own_address_is_told_also_to_whoever_has_the_record(tmp_path: Path) -> None:
    owner = Identity.generate()
    run_id = make_run_id("own", owner.public_key)
    data = encode_run_record(sign_run_record(run_id, RunManifest.from_fields({"name": "own"}).to_bytes(), owner))
    host = DeafHost({})
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{host.peer_id}"
    host.reasons[address] = "this is this peer's own address"
    for local in (None, decode_run_record(data, run_id=run_id)):
        with pytest.raises(UsageFault, match="is the address of this peer's own identity; expected another member's"):
            look(host, [address], tmp_path, local)
