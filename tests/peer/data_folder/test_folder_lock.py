"""One process for each data folder, and somebody who notices when it is deleted."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dht.ground.errors import LocalFault
from peer.config.peer_config import PeerConfig
from peer.data_folder.folder_lock import LOCK_NAME, FolderLock
from peer.join import session
from peer.join.session import Swarm, ending_on_signals, join
from peer.panel.terminal import Terminal
from tests.kit.terminals import StuckView, lost

RUN_ID = "own." + "a" * 20
HOLD = "import sys, pathlib; from peer.data_folder.folder_lock import FolderLock; "
HOLD += "lock = FolderLock(pathlib.Path(sys.argv[1]), 'peer join'); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def own_loop(folder: Path) -> Swarm:
    module = torch.nn.Linear(2, 2)
    return join(RUN_ID, module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_dir=folder)


def test_a_second_process_is_told_who_is_there_and_what_to_do(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    words = rf"in use by process {holder.pid} \(peer join\), since .*end that process, or choose a different "
    config = PeerConfig(run_id=RUN_ID, data_dir=tmp_path)
    for what in ("peer join", "peer seed"):
        with pytest.raises(LocalFault, match=f"{words}--data-dir"):
            Terminal(config, StuckView(), what)
    with pytest.raises(LocalFault, match=f"{words}data_dir"):
        own_loop(tmp_path).__enter__()
    assert not (tmp_path / "identity.key").exists()


def test_who_was_killed_leaves_nothing_behind(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    FolderLock(tmp_path, "peer seed").close()
    assert (tmp_path / LOCK_NAME).read_text().startswith(f"process {os.getpid()} (peer seed), since ")


def test_two_in_one_process_are_two(tmp_path: Path) -> None:
    config = PeerConfig(run_id=RUN_ID, data_dir=tmp_path)
    first = Terminal(config, StuckView())
    words = f"in use by process {os.getpid()}.*that is this process: leave the session that is open in it, or choose"
    with pytest.raises(LocalFault, match=words):
        Terminal(config, StuckView())
    view = StuckView()
    view.freed.set()
    with first.interruptible():
        pass
    Terminal(config, view)  # it has let go


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_does_not_hold_the_folder(tmp_path: Path) -> None:
    """As the workers of a data loader, which live on for seconds when their parent is killed."""
    held = FolderLock(tmp_path, "a training loop")
    (reader, writer), (is_there, there) = os.pipe(), os.pipe()
    if (process := os.fork()) == 0:
        os.close(writer)
        os.write(there, b"1")
        os.read(reader, 1)  # until the other one has looked
        os._exit(0)
    os.read(is_there, 1)
    with pytest.raises(LocalFault, match="in use by"):  # the fork has let go of it for itself alone
        FolderLock(tmp_path, "a training loop")
    held.close()
    FolderLock(tmp_path, "a training loop").close()
    os.close(writer)
    os.waitpid(process, 0)
    for descriptor in (reader, is_there, there):
        os.close(descriptor)


def test_another_spelling_of_the_folder_is_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    held = FolderLock(tmp_path / "real", "peer join")
    with pytest.raises(LocalFault, match="in use by"):
        FolderLock(tmp_path / "link", "peer join")
    held.close()


def test_what_others_wrote_into_the_file_is_not_repeated(tmp_path: Path) -> None:
    held = FolderLock(tmp_path, "peer join")
    (tmp_path / LOCK_NAME).write_text("process 1 (\x1b[2J), since ever")
    with pytest.raises(LocalFault, match="in use by another process; expected"):
        FolderLock(tmp_path, "peer join")
    held.close()


def test_a_link_or_an_unwritable_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).symlink_to("/etc/passwd")
    with pytest.raises(LocalFault, match=r"cannot be written: .*give another --data-dir"):
        FolderLock(tmp_path, "peer join")
    with pytest.raises(LocalFault, match="No such file or directory; expected a writable folder"):
        FolderLock(tmp_path / "absent", "peer join")


def test_a_disk_without_locks_and_a_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fail)
        held = FolderLock(tmp_path, "peer join")
    with pytest.raises(LocalFault, match="in use by another process"):
        FolderLock(tmp_path, "peer join")
    held.close()

    with monkeypatch.context() as full:
        full.setattr(os, "open", fail)
        FolderLock(tmp_path, "peer join").close()
    assert "cannot be locked (No space left on device); start no second peer there" in caplog.text

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    FolderLock(tmp_path, "peer join").close()
    assert "cannot be locked (No locks available); start no second peer there" in caplog.text
    caplog.clear()
    FolderLock(tmp_path, None).close()
    assert not caplog.text, "whoever only looks whether it is free starts no peer there"


# ------------------------------------------------------------------------------------------------------- it is deleted


def test_a_deleted_folder_is_told_once_and_the_next_one_is_held(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    held = FolderLock(folder, "peer join")
    assert held.what_happened() is None
    shutil.rmtree(folder)
    told = held.what_happened()
    assert told is not None
    assert "was deleted or replaced while this peer was using it" in told
    assert held.what_happened() is None
    with pytest.raises(LocalFault, match="in use by"):
        FolderLock(folder, "peer join")
    held.close()


def test_a_disk_that_does_not_answer_is_no_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = FolderLock(tmp_path, "peer join")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as away:
        away.setattr(Path, "stat", fail)
        assert held.what_happened() is None
    with pytest.raises(LocalFault, match="in use by"):
        FolderLock(tmp_path, "peer join")
    held.close()


def test_a_folder_that_another_peer_took_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    held = FolderLock(folder, "peer join")
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    other = FolderLock(folder, "peer seed")
    told = held.what_happened()
    assert told is not None
    assert f"in use by process {os.getpid()} (peer seed)" in told
    other.close()


def test_the_owner_of_a_peer_hears_of_it_and_the_log_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.panel.terminal.FOLDER_LOOKS", 1)
    folder, view = tmp_path / "data", StuckView()
    view.freed.set()
    owner = Terminal(PeerConfig(run_id=RUN_ID, data_dir=folder), view)
    with owner.interruptible():
        owner.show(lost(0))
        shutil.rmtree(folder)
        end = time.monotonic() + 30
        while not any("was deleted" in str(item) for item in view.shown) and time.monotonic() < end:
            view.stuck.wait(0.05)
        owner.show(lost(1))
    assert [item for item in view.shown if "was deleted" in str(item)]
    assert (folder / "events.jsonl").read_text().count("\n") == 1


# --------------------------------------------------------------------------------------------------- SIGTERM, own loops


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_an_own_loop_by_an_exception(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        restore = ending_on_signals()
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(number)
        assert caught.value.code == 128 + number
        restore()
        assert signal.getsignal(number) is signal.SIG_DFL
        # A script's own handler stays.
        signal.signal(number, signal.SIG_IGN)
        ending_on_signals()()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_swarm_takes_and_gives_back_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    seen: list[object] = []

    def enter(self: Swarm, connection: object) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        raise LocalFault("nothing there")

    monkeypatch.setattr(session.Swarm, "_enter", enter)
    try:
        with pytest.raises(LocalFault, match="nothing there"):
            own_loop(tmp_path).__enter__()
        assert seen
        assert seen[0] is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    FolderLock(tmp_path, "peer join").close()  # and the folder
