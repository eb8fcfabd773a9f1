"""The dashboard in a process of its own: with nobody to observe, and with few file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from aiohttp import ClientSession

from tests.kit.dashboard.records import PEERS, RUN_ID
from tests.kit.processes.process_swarm import wait_until

GET = b"GET /%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def _until_status(port: int, sentence: str) -> None:
    async with ClientSession(f"http://127.0.0.1:{port}") as session, asyncio.timeout(120):
        response = await session.get("/events")
        while sentence not in (await response.content.readline()).decode():
            pass
        response.close()


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def test_with_nobody_there_the_page_says_so_and_ctrl_c_leaves_nothing_behind() -> None:
    code = (
        "import sys; from dashboard.app import Choices, ShownRun, serve_dashboard;"
        f"run = ShownRun({RUN_ID!r}, ['/ip4/127.0.0.1/tcp/1/p2p/{PEERS[0].peer_id}'], Choices(port=0));"
        " sys.exit(serve_dashboard(run))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().removeprefix("The page is at ").partition("/ ")[0]
        port = int(address.removeprefix("http://127.0.0.1:"))
        asyncio.run(_until_status(port, "Nobody answers yet"))
        daemons = _children_of(process.pid)
        assert daemons
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert not [pid for pid in daemons if Path(f"/proc/{pid}").exists()]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_page_with_few_descriptors_closes_what_is_too_much_and_goes_on() -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256));"
        "from dashboard.app import Choices, ShownRun, serve_dashboard;"
        f"run = ShownRun({RUN_ID!r}, ['/ip4/127.0.0.1/tcp/1/p2p/{PEERS[0].peer_id}'],"
        " Choices(port=0, backend='libp2p')); sys.exit(serve_dashboard(run))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    slow: list[socket.socket] = []
    try:
        port = int(process.stdout.readline().partition(b"127.0.0.1:")[2].partition(b"/")[0])

        async def status(path: bytes) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET % path)
            head = await asyncio.wait_for(reader.readline(), 30)
            writer.close()
            return int(head.split()[1])

        def is_answered() -> bool:
            with contextlib.suppress(OSError, IndexError):
                return asyncio.run(status(b"healthz")) == 200
            return False

        for _ in range(300):
            slow.append(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):
                slow[-1].sendall(b"GET / HTTP/1.1\r\nHost")
        # All the connections that it may hold are taken, and no descriptor of another purpose.
        assert not is_answered()
        for connection in slow:
            connection.close()
        wait_until(is_answered, "an answer after the slow ones went")
        for path in (b"", b"api/v1/run", b"healthz", b"metrics") * 3:
            assert asyncio.run(status(path)) == 200
    finally:
        process.terminate()
        _, told = process.communicate(timeout=120)
        for connection in slow:
            connection.close()
    assert process.returncode == 0
    assert len(told) < 4000
