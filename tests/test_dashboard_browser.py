"""The page in a real browser, driven over the DevTools protocol; skipped where there is no Chromium."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse
from aiohttp.test_utils import TestServer

from dashboard.live import Live
from dashboard.routes import make_app
from dashboard.state import DashboardState, Look, fold
from tests.dashboard_records import HOSTILE_NAME, NOW, PEERS, RUN_ID, record_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
START_SECONDS = 60
ANSWER_SECONDS = 30

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; apt-get install chromium"),
]


class Tab:
    """One tab: sends commands, and keeps what the browser reports about errors and requests."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.errors: list[str] = []
        self.urls: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            elif event["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif event["method"] == "Network.requestWillBeSent":
                self.urls.append(event["params"]["request"]["url"])
            elif event["method"] == "Runtime.exceptionThrown" or (
                event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"
            ):
                self.errors.append(json.dumps(event["params"]))

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        answer = await asyncio.wait_for(self._answers[number], ANSWER_SECONDS)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str) -> None:
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.command(f"{domain}.enable")
        await self.command("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), ANSWER_SECONDS)

    async def value(self, expression: str) -> Any:
        answer = await self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def text_with(self, section: str, wanted: str) -> str:
        """The section's text, once `wanted` is in it."""
        expression = (
            "new Promise((resolve) => {"
            f"const section = document.getElementById({json.dumps(section)});"
            f"const check = () => section.innerText.includes({json.dumps(wanted)}) && resolve(section.innerText);"
            "new MutationObserver(check).observe(section, {childList: true, subtree: true, characterData: true});"
            "check(); })"
        )
        return str(await self.value(expression))


@contextlib.asynccontextmanager
async def browser_tab() -> AsyncIterator[Tab]:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                line = b""
                while b"DevTools listening on ws://" not in line:
                    line = await process.stderr.readline()
                    assert line, "the browser ended before it listened"
            draining = asyncio.create_task(_drain(process.stderr))
            authority = line.decode().partition("ws://")[2].partition("/")[0]
            async with ClientSession() as session:
                tabs = await (await session.get(f"http://{authority}/json/list")).json()
                page = next(tab for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    tab = Tab(socket)
                    listening = asyncio.create_task(tab.listen())
                    yield tab
                    await socket.close()
                    await listening
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
        finally:
            process.kill()
            await process.wait()


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(4096):
        pass


def in_browser(check: Callable[[Tab, Live, str], Awaitable[None]]) -> None:
    async def run() -> None:
        state = fold(DashboardState(RUN_ID, NOW, NOW), Look(now=NOW, num_members=3, records=[record_of(PEERS[0])]))
        live = Live(state, "boot")
        server = TestServer(make_app(live, clock=lambda: NOW + 5))
        await server.start_server()
        try:
            async with browser_tab() as tab:
                await check(tab, live, str(server.make_url("/")))
        finally:
            await server.close()

    asyncio.run(run())


def test_an_open_page_follows_the_swarm_without_an_error() -> None:
    async def check(tab: Tab, live: Live, url: str) -> None:
        await tab.open(url)
        assert "5 s ago" in await tab.text_with("status", "5 s ago")
        for sequence in range(2, 5):
            newer = record_of(
                PEERS[0],
                sequence=sequence,
                now=NOW + sequence,
                name=HOSTILE_NAME,
                versions=(3 + sequence, 2),
                lineage_tokens=(9000 * sequence, 7000),
            )
            live.publish(fold(live.state, Look(now=NOW + sequence, num_members=3, records=[newer])))
        assert HOSTILE_NAME in await tab.text_with("peers", HOSTILE_NAME)
        assert await tab.value("document.querySelectorAll('#peers script').length") == 0
        assert tab.errors == []
        assert tab.urls
        assert all(loaded.startswith(url) for loaded in tab.urls)

    in_browser(check)


def test_a_phone_needs_no_sideways_scrolling_and_dark_is_dark() -> None:
    async def check(tab: Tab, live: Live, url: str) -> None:
        long = record_of(PEERS[0], sequence=2, now=NOW + 1, name="W" * 40, device="M" * 40)
        live.publish(fold(live.state, Look(now=NOW + 1, num_members=3, records=[long])))
        await tab.command("Emulation.setDeviceMetricsOverride", width=375, height=800, deviceScaleFactor=2, mobile=True)
        await tab.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        await tab.open(url)
        assert await tab.value("document.documentElement.scrollWidth") <= 375
        channels = await tab.value("getComputedStyle(document.documentElement).backgroundColor.match(/[0-9]+/g)")
        assert max(int(channel) for channel in channels) < 60

    in_browser(check)


def test_without_scripts_the_figures_are_there() -> None:
    async def check(tab: Tab, live: Live, url: str) -> None:
        await tab.command("Emulation.setScriptExecutionDisabled", value=True)
        await tab.open(url)
        text = await tab.value("document.body.innerText")
        assert PEERS[0].peer_id[-8:] in text
        assert "2.750" in text
        assert "5 s ago" in text
        assert tab.errors == []

    in_browser(check)
