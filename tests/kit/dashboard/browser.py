"""The page in a real browser: a site that the test publishes, visits to it, and what may not go wrong in them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from aiohttp import web
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, Request, async_playwright, expect

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.server.live_updates import Live
from dashboard.several_runs.index import make_index, run_path
from tests.kit.dashboard.records import NOW, RUN_ID
from tests.kit.dashboard.scene import contributor_of, history_of_run, state_of
from tests.kit.dashboard.serving import in_memory
from tests.kit.processes.process_swarm import free_port
from tests.kit.web_bundle import require_bundle

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
"""CI runs as root, without a graphics card, in containers with a small /dev/shm."""
WAIT_MILLISECONDS = 30_000
"""Two busy cores draw a page in seconds; only a page that never comes takes this long."""
ADDRESS = "/ip4/203.0.113.5/tcp/4001/p2p/12D3KooWLLT8g5ttNUeZqSADrztTvkAVvFuU56quYDCpwHy4wKaA"
DESK = {"width": 1240, "height": 900}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]}
"""Of axe; those of WCAG 2.2 are among them, such as the size of what can be tapped."""

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; apt-get install chromium")

InBrowser = Callable[..., None]


class Site:
    """A dashboard without a network: the test is its observer. It can stop and come back at the same port.

    Args:
        is_index: at the port is an index of several runs, with this one among them.
    """

    def __init__(self, state: DashboardState, history: HistoryView, *, is_index: bool = False) -> None:
        self.state, self.history = state, history
        self._is_index = is_index
        self.base = run_path(RUN_ID) if is_index else ""
        self.now = NOW + 3
        self.port = free_port()
        self._num_starts = 0
        self._runner: web.AppRunner | None = None
        self._stack = contextlib.AsyncExitStack()
        self.live = Live(state, "boot0", history)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def start(self) -> None:
        self._num_starts += 1
        boot_id = f"boot{self._num_starts}"
        page = in_memory(self.state, self.history, boot_id, base=self.base, clock=lambda: self.now)
        self.live, app = await self._stack.enter_async_context(page)
        shown = make_index([app], {}) if self._is_index else app
        self._runner = web.AppRunner(shown, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self._stack.aclose()

    def rename_first(self, name: str) -> None:
        """The leading contributor has another name from now on."""
        self.publish(contributors=(replace(contributor_of(0), name=name), *self.history.contributors[1:]))

    def publish(self, **changes: Any) -> None:
        """The history with `changes`, as after another look."""
        self.history = replace(self.history, **changes)
        self.live.publish(self.state, self.history)


@dataclass
class Seen:
    """What a page did that it should not have done."""

    errors: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._note)

    def _note(self, request: Request) -> None:
        self.urls.append(request.url)


class Visit:
    """Opens pages of one site; after the test nothing may have gone wrong in any of them."""

    def __init__(self, browser: Browser, site: Site) -> None:
        self._browser, self.site = browser, site
        self.seen = Seen()
        self._contexts: list[BrowserContext] = []

    async def open(
        self,
        path: str = "",
        *,
        scheme: Literal["light", "dark"] = "light",
        size: Any = DESK,
        has_scripts: bool = True,
        motion: Literal["reduce", "no-preference"] = "reduce",
        has_own_clock: bool = False,
    ) -> Page:
        context = await self._browser.new_context(
            color_scheme=scheme, viewport=size, java_script_enabled=has_scripts, reduced_motion=motion
        )
        context.set_default_timeout(WAIT_MILLISECONDS)
        self._contexts.append(context)
        page = await context.new_page()
        self.seen.watch(page)
        if has_own_clock:
            await page.clock.install()
        await page.goto(self.site.url + path, wait_until="load")
        return page

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()


def browsing() -> Iterator[InBrowser]:
    """What runs a check against a site of its own, in one browser and one event loop."""
    require_bundle()
    expect.set_options(timeout=WAIT_MILLISECONDS)
    with asyncio.Runner() as runner:
        driver = runner.run(async_playwright().start())
        browser = runner.run(driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=list(ARGUMENTS)))
        yield lambda *args, **options: runner.run(_checked(browser, *args, **options))
        runner.run(browser.close())
        runner.run(driver.stop())


async def _checked(
    browser: Browser,
    check: Callable[[Visit], Awaitable[None]],
    num_people: int = 12,
    *,
    is_index: bool = False,
    may_fail: Sequence[str] = (),
) -> None:
    """Run `check`. Only console errors that hold one of `may_fail` may come, and no request may leave the site."""
    state = replace(state_of(num_people), join_addresses=(ADDRESS,), install="pip install git+https://example.org/code")
    site = Site(state, history_of_run(num_people), is_index=is_index)
    await site.start()
    visit = Visit(browser, site)
    try:
        await check(visit)
    finally:
        await visit.close()
        await site.stop()
    assert visit.seen.urls
    assert [url for url in visit.seen.urls if not url.startswith(site.url)] == []
    assert [text for text in visit.seen.errors if not any(part in text for part in may_fail)] == []


async def width_of(page: Page) -> int:
    return int(await page.evaluate("document.documentElement.scrollWidth"))


async def accessibility_faults(page: Page) -> list[str]:
    """What axe finds to be serious or critical, as sentences."""
    results = await Axe().run(page, options=RULES)
    return [
        f"{found['impact']}: {found['id']} at {[node['target'] for node in found['nodes'][:3]]}"
        for found in results.response["violations"]
        if found["impact"] in ("serious", "critical")
    ]
