"""What a P2pdHost leaves behind: nothing, however it ends."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dht.identity.keys import Identity
from dht.p2pd.host import P2pdHost
from dht.p2pd.socket_directory import SocketDirectory, remove_stale

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


def process_exists(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_close_leaves_no_process_and_no_socket() -> None:
    async def check() -> None:
        host = P2pdHost(Identity.generate(), LOOPBACK)
        await host.start()
        directory, process_id = host.daemon.directory, host.daemon.process_id
        assert process_id is not None
        assert sorted(path.name for path in directory.iterdir()) == ["control.sock", "owner.lock", "streams.sock"]
        assert directory.stat().st_mode & 0o077 == 0
        await host.close()
        assert not process_exists(process_id)
        assert not directory.exists()

    asyncio.run(check())


@pytest.mark.parametrize("num_turns", [1, 2, 4, 8])
def test_a_close_that_is_cancelled_half_way_leaves_nothing_either(num_turns: int) -> None:
    """As when the owner presses Ctrl+C once more while the peer takes its leave."""

    async def check() -> None:
        host = P2pdHost(Identity.generate(), LOOPBACK)
        await host.start()
        directory, process_id = host.daemon.directory, host.daemon.process_id
        assert process_id is not None
        closing = asyncio.create_task(host.close())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        assert closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert not directory.exists()
        # Until the loop knows, too: a transport that it leaves behind would be some later test's warning.
        assert host.daemon._daemon is not None
        async with asyncio.timeout(30.0):
            await host.daemon._daemon.wait()
        assert not process_exists(process_id)

    asyncio.run(check())


OWNER_PROGRAM = """
import asyncio
from dht.identity.keys import Identity
from dht.p2pd.host import P2pdHost

async def main():
    host = P2pdHost(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"])
    await host.start()
    print(host.daemon.process_id, host.daemon.directory, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="waits for a foreign process with a pidfd")
def test_a_killed_owner_leaves_no_daemon_and_its_directory_is_swept() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER_PROGRAM], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        process_text, directory_text = owner.stdout.readline().split()
        directory = Path(directory_text)
        daemon = os.pidfd_open(int(process_text))
        try:
            remove_stale()
            assert directory.exists()
            owner.kill()
            owner.wait()
            readable, _, _ = select.select([daemon], [], [], 10.0)
            assert readable, "the daemon outlived its owner"
        finally:
            os.close(daemon)
    # By whoever starts next, however soon.
    remove_stale()
    assert not directory.exists()


def test_a_directory_in_use_is_never_swept() -> None:
    directory = SocketDirectory()
    remove_stale()
    assert directory.path.exists()
    directory.remove()
    assert not directory.path.exists()


def test_directories_that_are_made_while_others_sweep_are_whole() -> None:
    """A sweep may be faster than the owner's lock; then the owner makes another directory, never a half one."""
    made = threading.Event()

    def sweep() -> None:
        while not made.is_set():
            remove_stale()

    with ThreadPoolExecutor(2) as sweepers:
        sweeps = [sweepers.submit(sweep) for _ in range(2)]
        try:
            directories = [SocketDirectory() for _ in range(200)]
        finally:
            made.set()
        for sweep_done in sweeps:
            sweep_done.result()
    assert [directory.path for directory in directories if not (directory.path / "owner.lock").exists()] == []
    for directory in directories:
        directory.remove()
