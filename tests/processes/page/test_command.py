"""The dashboard in a process of its own: with nobody to observe, and with few file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from aiohttp import ClientSession

from tests.kit.dashboard.records import PEERS, RUN_ID

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
        "import sys; from dashboard.app import Choices, ShownRun, serve_dashboards;"
        f"run = ShownRun({RUN_ID!r}, ['/ip4/127.0.0.1/tcp/1/p2p/{PEERS[0].peer_id}'], Choices(port=0));"
        " sys.exit(serve_dashboards([run], is_index=False))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().removeprefix("The page is at ").partition("/ ")[0]
        port = int(address.removeprefix("http://127.0.0.1:"))
        asyncio.run(_until_status(port, "No member answers yet"))
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
