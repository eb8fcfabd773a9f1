"""The page in a real browser, driven by playwright; skipped where there is no Chromium.

One browser serves the whole file; every test has its own server, page and cookies. Nothing sleeps: playwright waits
for what is expected. The page's own policy stays in force, so a script that breaks it fails here.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from aiohttp import web
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, Request, async_playwright, expect

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState
from dashboard.server.live import Live
from dashboard.several_runs.cards import run_path
from dashboard.several_runs.index import make_index
from tests.kit.dashboard.records import HOSTILE_NAME, NOW, RUN_ID
from tests.kit.dashboard.scene import DAY, contributor_of, history_of_run, peer_id_of, points_of, state_of
from tests.kit.dashboard.serving import in_memory
from tests.kit.tiers import sampled
from tests.kit.web_bundle import require_bundle

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
"""CI runs as root, without a graphics card, in containers with a small /dev/shm."""
WAIT_MILLISECONDS = 30_000
"""Two busy cores draw a page in seconds; only a page that never comes takes this long."""
PHONE = {"width": 375, "height": 800}
STICKS_OUT = """[...document.querySelectorAll(".card td, .card th, .card p, .card pre")]
    .filter((each) => each.clientWidth > 1)
    .filter((each) => each.getBoundingClientRect().right > each.closest(".card").getBoundingClientRect().right)
    .map((each) => each.textContent)"""
"""What reaches over the edge of its card; cells of one pixel are for screen readers only."""
DESK = {"width": 1240, "height": 900}
TALL = {"width": 390, "height": 844}
LOOKS: list[tuple[Literal["light", "dark"], dict[str, int]]] = [
    ("light", TALL),
    ("dark", TALL),
    ("light", {"width": 820, "height": 1180}),
    ("dark", {"width": 820, "height": 1180}),
    ("dark", {"width": 1280, "height": 800}),
    ("light", {"width": 1280, "height": 800}),
    ("light", {"width": 1920, "height": 1080}),
    ("dark", {"width": 1920, "height": 1080}),
    ("light", {"width": 320, "height": 700}),
]
MAX_SCREENS = 8
"""Of a phone, for each tab of a run of 300 people."""
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]}
"""Of axe; those of WCAG 2.2 are among them, such as the size of what can be tapped."""
"""Schemes and sizes of windows; every fourth is looked at in `make test`."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; apt-get install chromium")


InBrowser = Callable[..., None]


class Site:
    """A dashboard without a network: the test is its observer. It can stop and come back at the same port."""

    def __init__(self, state: DashboardState, history: HistoryView) -> None:
        self.state, self.history = state, history
        self.now = NOW + 3
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._num_starts = 0
        self._runner: web.AppRunner | None = None
        self._stack = contextlib.AsyncExitStack()
        self.live = Live(state, "boot0", history)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def start(self) -> None:
        self._num_starts += 1
        page = in_memory(self.state, self.history, f"boot{self._num_starts}", clock=lambda: self.now)
        self.live, app = await self._stack.enter_async_context(page)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
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
    ) -> Page:
        context = await self._browser.new_context(
            color_scheme=scheme, viewport=size, java_script_enabled=has_scripts, reduced_motion=motion
        )
        context.set_default_timeout(WAIT_MILLISECONDS)
        self._contexts.append(context)
        page = await context.new_page()
        self.seen.watch(page)
        await page.goto(self.site.url + path, wait_until="load")
        return page

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()


@pytest.fixture(scope="module")
def in_browser() -> Iterator[InBrowser]:
    """Runs a check against a site of its own; one browser and one event loop for the whole file."""
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
    may_fail: Sequence[str] = (),
) -> None:
    """Run `check`. Only console errors that hold one of `may_fail` may come, and no request may leave the site."""
    site = Site(state_of(num_people), history_of_run(num_people))
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


def holding(text: str) -> re.Pattern[str]:
    """A pattern that finds `text` anywhere."""
    return re.compile(re.escape(text))


async def width_of(page: Page) -> int:
    return int(await page.evaluate("document.documentElement.scrollWidth"))


async def seconds_until_asked(page: Page, seen: Seen) -> int:
    """By the page's clock, which stands still otherwise."""
    num_asked, seconds = len(seen.urls), 0
    while len(seen.urls) == num_asked:
        await page.clock.run_for(1000)
        seconds += 1
    return seconds


async def accessibility_faults(page: Page) -> list[str]:
    """What axe finds to be serious or critical, as sentences."""
    results = await Axe().run(page, options=RULES)
    return [
        f"{found['impact']}: {found['id']} at {[node['target'] for node in found['nodes'][:3]]}"
        for found in results.response["violations"]
        if found["impact"] in ("serious", "critical")
    ]


def test_the_page_comes_alive_and_follows_the_run(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open()
        await expect(page).to_have_title("tinybytes · Murmuration")
        await expect(page.locator("#status .age")).to_have_text("3 s ago")
        await expect(page.locator('[data-chart="losses"] canvas')).to_be_visible()
        await page.get_by_role("link", name="Engine room").click()
        await expect(page.locator('[data-chart="losses"] canvas')).to_be_hidden()
        for kind in ("swarm", "lines"):
            await expect(page.locator(f'[data-chart="{kind}"] canvas')).to_be_visible()
        await page.get_by_role("link", name="People", exact=True).click()
        await expect(page.locator('[data-country="DE"]').first).to_have_text("Germany")
        label = page.locator('[data-chart="losses"] [role="img"]')
        await expect(label).to_have_attribute("aria-label", holding("335 M"))
        # A new contributor and a new point of the curve arrive by themselves.
        newest = replace(points_of()[-1], at=NOW + 2, tokens=345_000_000, held_out_loss=1.5, train_loss=1.25)
        people = (replace(contributor_of(0), name="Newcomer"), *visit.site.history.contributors[1:])
        visit.site.publish(contributors=people, points=(*visit.site.history.points, newest))
        await expect(page.locator("#contributors")).to_contain_text("Newcomer")
        # What was not in view comes when it is looked at, and the address says where one is.
        await page.get_by_role("link", name="Overview").click()
        await expect(page.locator("#top")).to_contain_text("Newcomer")
        assert page.url.endswith("?tab=overview")
        await expect(label).to_have_attribute("aria-label", holding("345 M tokens (held-out loss 1.500"))

    in_browser(check)


def test_the_curve_can_be_asked_in_other_ways(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open()
        chart = page.locator('[data-chart="losses"]')
        await chart.get_by_role("button", name="time").click()
        await expect(chart.get_by_role("button", name="time")).to_have_attribute("aria-pressed", "true")
        await expect(chart).to_contain_text("logarithmic: along tokens or rounds")
        await chart.get_by_role("button", name="rounds").click()
        await expect(chart.get_by_role("img")).to_have_attribute("aria-label", holding("to 14.7 k exchanges ("))
        await chart.get_by_role("button", name="logarithmic").click()
        await expect(chart.locator("canvas")).to_be_visible()
        await chart.locator(".canvas").hover(position={"x": 300, "y": 100})
        await expect(chart.locator(".tip")).to_contain_text("training loss")
        await chart.get_by_role("button", name="smoothed").click()
        await expect(chart.locator(".hint")).to_contain_text("bold: mean of 7 points")
        # Dragging zooms, and what grows meanwhile does not undo it.
        box = await chart.locator(".u-over").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + 300, box["y"] + 50)
        await page.mouse.down()
        await page.mouse.move(box["x"] + 500, box["y"] + 50, steps=3)
        await page.mouse.up()
        back = chart.get_by_role("button", name="show all of it")
        await expect(back).to_be_visible()
        newest = replace(points_of()[-1], at=NOW + 2, rounds=14_800)
        visit.site.publish(points=(*visit.site.history.points, newest))
        await expect(chart.get_by_role("img")).to_have_attribute("aria-label", holding("to 14.8 k "))
        await expect(back).to_be_visible()
        await back.click()
        await expect(back).to_have_count(0)
        # Marks say what happened; the first is reached with Tab, the next with the arrows.
        await chart.get_by_role("button", name="tokens").click()
        marks = chart.locator(".mark-at")
        await marks.first.focus()
        await expect(chart.locator(".tip")).to_contain_text("Kiran joined")
        await page.keyboard.press("ArrowRight")
        await expect(marks.nth(1)).to_be_focused()
        await expect(chart.get_by_role("button", name=holding("note: raised H to 40"))).to_have_count(1)
        await chart.get_by_role("button", name="show as table").press("Enter")
        await expect(chart.locator("tbody tr").first).to_contain_text("335 M")
        assert await chart.locator("tbody tr").count() >= 10

    in_browser(check)


def test_contributors_are_sorted_searched_and_opened(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open("?tab=people")
        people = page.locator("section.contributors-card")
        await expect(page.locator("#contributors tbody tr")).to_have_count(25)
        await page.get_by_role("link", name="Show all 60").click()
        await expect(page.locator("#people-found tbody tr")).to_have_count(60)
        await people.get_by_role("button", name="Contributor", exact=True).click()
        await expect(page.locator("#people-found tbody tr").first).to_contain_text("Ada")
        await expect(page.locator("#people-found th[aria-sort]")).to_have_text("Contributor")
        await page.get_by_role("searchbox").fill("basement")
        await expect(people.get_by_role("status")).to_contain_text("of 60 contributors")
        found = page.locator("#people-found tbody tr")
        await expect(found.first).to_contain_text("basement-4090")
        await expect(page.locator("#contributors")).to_be_hidden()
        await found.first.locator("summary").click()
        await expect(found.first.locator("li")).to_have_count(3)
        await page.get_by_role("searchbox").fill("nobody has this name")
        await expect(page.locator("#people-found")).to_contain_text("Nobody is called that")
        await page.get_by_role("button", name="back to the ranking").click()
        await expect(page.locator("#contributors")).to_be_visible()
        # An opened row stays open when the section is replaced under it.
        machines = page.locator("#contributors details").first
        await machines.locator("summary").click()
        visit.site.publish(
            contributors=(replace(contributor_of(0), name="Renamed"), *visit.site.history.contributors[1:])
        )
        await expect(page.locator("#contributors")).to_contain_text("Renamed")
        await expect(machines).to_have_attribute("open", "")
        await page.locator("#contributors a.person").nth(1).click()
        await expect(page.locator("#contributor-title")).to_contain_text("basement-4090")
        await expect(page.get_by_role("link", name="Check it yourself")).to_be_visible()
        await expect(page.locator(".badge-card")).to_contain_text(f"]({visit.site.url}badge/")

    in_browser(check, num_people=60)


@pytest.mark.parametrize(("scheme", "size"), sampled(LOOKS, one_in=4))
def test_everybody_can_use_it(in_browser: InBrowser, scheme: Literal["light", "dark"], size: dict[str, int]) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open(scheme=scheme, size=size)
        await expect(page.locator('[data-chart="losses"] canvas')).to_be_visible()
        for tab in ("Overview", "People", "Model", "Engine room"):
            await page.get_by_role("link", name=tab, exact=True).click()
            if tab == "Engine room":
                await expect(page.locator("#peers tbody tr").first).to_be_visible()
            assert await accessibility_faults(page) == []
            assert await width_of(page) <= size["width"]
            if size == TALL:
                height = await page.evaluate("document.documentElement.scrollHeight")
                assert height <= MAX_SCREENS * TALL["height"], tab
        channels = await page.evaluate(
            "getComputedStyle(document.documentElement).backgroundColor.match(/[0-9]+/g).map(Number)"
        )
        assert (max(channels) < 60) == (scheme == "dark")
        own = await visit.open(f"c/{peer_id_of(1)}", scheme=scheme, size=size)
        await expect(own.locator("#contributor-title")).to_contain_text("basement-4090")
        assert await accessibility_faults(own) == []
        assert await width_of(own) <= size["width"]

    in_browser(check, num_people=300 if size == TALL else 12)


def test_a_link_shows_what_its_sender_saw_and_the_way_back_works(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open("?tab=people&sort=name&search=e&utm_source=chat")
        await expect(page.locator("#people-found th[aria-sort]")).to_have_text("Contributor")
        await expect(page.get_by_role("searchbox")).to_have_value("e")
        await page.locator("#people-found").get_by_role("button", name="Rounds").click()
        await expect(page).to_have_url(holding("sort=rounds&search=e"))
        await page.get_by_role("link", name="Overview").click()
        chart = page.locator('[data-chart="losses"]')
        await chart.get_by_role("button", name="time").click()
        await expect(page).to_have_url(holding("tab=overview&along=time"))
        await page.reload()
        await expect(chart.get_by_role("button", name="time")).to_have_attribute("aria-pressed", "true")
        await page.go_back()
        await expect(page.locator("#people-found th[aria-sort]")).to_have_text("Rounds")
        await page.go_back()
        await expect(page.locator("#people-found th[aria-sort]")).to_have_text("Contributor")

    in_browser(check, num_people=60)


def test_a_tab_begins_at_its_top_and_the_way_back_where_one_was(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open()
        await expect(page.locator('[data-chart="losses"] canvas')).to_be_visible()
        await page.evaluate("window.scrollTo(0, 700)")
        await page.evaluate("document.querySelector('nav a[href*=people]').click()")
        await expect(page.locator("#contributors")).to_contain_text("Ada")
        assert await page.evaluate("scrollY") == 0
        await page.go_back()
        await expect(page.locator("#overview")).to_be_visible()
        assert await page.evaluate("scrollY") == 700

    in_browser(check)


def test_a_phone_holds_the_longest_names(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        row = contributor_of(1)
        machines = tuple(replace(machine, device="M" * 40) for machine in row.machines)
        visit.site.history = replace(
            visit.site.history, contributors=(replace(row, name="W" * 40, last_at=NOW - 300 * DAY, machines=machines),)
        )
        await visit.site.stop()
        await visit.site.start()
        page = await visit.open("?tab=people", size=PHONE)
        await page.locator("#contributors summary").click()
        assert await page.evaluate("[...document.querySelectorAll('details')].map((each) => (each.open = true)).length")
        assert await width_of(page) <= PHONE["width"]
        # Nothing may stick out of its card either.
        assert await page.evaluate(STICKS_OUT) == []

    in_browser(check)


def test_a_hostile_name_is_text(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open("?tab=people")
        visit.site.rename_first(HOSTILE_NAME)
        await expect(page.locator("#contributors")).to_contain_text(HOSTILE_NAME)
        await page.get_by_role("searchbox").fill("alert(")
        await expect(page.locator("#people-found")).to_contain_text(HOSTILE_NAME)
        assert await page.locator("main script").count() == 0
        own = await visit.open(f"c/{peer_id_of(0)}")
        await expect(own.locator("#contributor-title")).to_contain_text(HOSTILE_NAME)
        assert await own.locator("header script, main script").count() == 0

    in_browser(check)


def test_without_scripts_the_page_is_complete(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open(has_scripts=False)
        await expect(page.locator("#status .age")).to_have_text("3 s ago")
        for key in ("losses", "swarm", "lines"):
            if key == "swarm":
                # Each tab is a page of its own then.
                await page.get_by_role("link", name="Engine room").click()
            await expect(page.locator(f"#{key}-table tbody tr")).to_have_count(12)
            await expect(page.locator(f"#{key}-table tbody tr").first).to_be_visible()
            if key == "losses":
                await expect(page.locator("#losses-table tbody tr").first).to_contain_text("335 M")
        await page.get_by_role("link", name="People", exact=True).click()
        await expect(page.locator("#contributors tbody tr")).to_have_count(12)
        await page.get_by_role("link", name="Contributor", exact=True).click()
        await expect(page.locator("#people-found th[aria-sort]")).to_have_text("Contributor")
        await page.locator("#people-found a.person").first.click()
        await expect(page.locator("#contributor-title")).to_contain_text("Ada")
        await expect(page.locator("#machines tbody tr")).to_have_count(1)
        await expect(page.locator('[data-chart="work"]')).to_contain_text("begins with the first round")

    in_browser(check)


def test_a_reader_goes_through_time_and_sees_the_tokens_count(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open("?tab=model", motion="no-preference")
        # Through everything that the model wrote, by keyboard.
        slider, said = page.get_by_label("Through time"), page.locator("#samples output")
        await expect(said).to_contain_text("after 335 M tokens, version 3673, held-out loss 1.730")
        await slider.press("Home")
        await expect(said).to_contain_text("after 900 tokens, version 1, held-out loss 5.300")
        await expect(page.locator("#samples pre").first).to_contain_text("def e")
        await slider.press("ArrowRight")
        await expect(said).to_contain_text("version 460")
        # A new sample leaves the reader where they are.
        newest = replace(visit.site.history.samples[-1], at=NOW, version=3700)
        visit.site.publish(samples=(*visit.site.history.samples, newest))
        await expect(slider).to_have_attribute("max", "9")
        await expect(said).to_contain_text("version 460")
        # One system at a time, and another look at the run does not choose another one.
        await page.get_by_role("link", name="Join with your machine").click()
        await page.get_by_text("Windows", exact=True).first.click()
        await expect(page.get_by_text("wsl --install")).to_be_visible()
        await expect(page.get_by_text("docker run")).to_be_hidden()
        visit.site.state = replace(visit.site.state, install="pip install other")
        visit.site.publish()
        await expect(page.locator(".for-windows")).to_contain_text("pip install other")
        await expect(page.get_by_text("wsl --install")).to_be_visible()
        # Tokens count up to what is confirmed, and no further.
        before, speed = points_of()[-1].tokens, round(visit.site.state.tokens_per_second)
        await expect(page.locator(".counter")).to_have_text(f"{before:,}")
        confirmed = before + 2 * speed
        visit.site.state = replace(visit.site.state, committed_tokens=confirmed)
        visit.site.publish()
        await expect(page.locator(".counter")).not_to_have_text(re.compile(f"{before:,}|{confirmed:,}"))
        await expect(page.locator(".counter")).to_have_text(f"{confirmed:,}")
        still = await visit.open()
        await expect(still.locator(".counter")).to_have_text(f"{confirmed:,}")

    in_browser(check)


def test_a_page_says_that_it_lost_its_server_and_finds_it_again(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open()
        await expect(page.locator('[data-chart="losses"] canvas')).to_be_visible()
        await visit.site.stop()
        await expect(page.locator("#connection")).to_contain_text("Connection lost")
        await expect(page.locator("body")).to_have_class("lost")
        # It asks more and more seldom, and at once when the network is there again.
        await page.clock.install()
        await page.evaluate("dispatchEvent(new Event('online'))")
        gaps = [await seconds_until_asked(page, visit.seen) for _ in range(7)]
        assert gaps[6] >= 10 > gaps[0]
        async with page.expect_request("**/events/stream*"):
            await page.evaluate("dispatchEvent(new Event('online'))")
        await page.clock.resume()
        people = (replace(contributor_of(0), name="Back again"), *visit.site.history.contributors[1:])
        visit.site.history = replace(visit.site.history, contributors=people)
        await visit.site.start()
        await expect(page.locator("#top")).to_contain_text("Back again")
        await expect(page.locator("#connection")).to_be_hidden()

    in_browser(check, may_fail=("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED"))


def test_a_tab_that_nobody_looks_at_holds_no_stream(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open()
        await expect(page.locator('[data-chart="losses"] canvas')).to_be_visible()
        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        event = "document.dispatchEvent(new Event('visibilitychange'));"
        await page.evaluate(hide % "true" + event)
        visit.site.rename_first("While hidden")
        async with page.expect_request("**/events**"):
            await page.evaluate(hide % "false" + event)
        await expect(page.locator("#top")).to_contain_text("While hidden")

    in_browser(check)


def test_a_wall_a_printout_and_an_index_show_what_they_are_for(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        wall = await visit.open("?wall", size={"width": 1920, "height": 1080})
        await expect(wall.locator('[data-chart="losses"] canvas')).to_be_visible()
        await expect(wall.locator("#top")).to_contain_text("Ada")
        await expect(wall.get_by_role("link", name="People", exact=True)).to_have_count(0)
        assert await wall.evaluate("document.documentElement.scrollHeight") <= 1080
        assert await width_of(wall) <= 1920
        # What is printed is the tab that is open, without what only a screen can do, within the paper.
        printed = await visit.open("?tab=people", scheme="dark", size={"width": 780, "height": 1100})
        await expect(printed.get_by_role("searchbox")).to_be_visible()
        await printed.emulate_media(media="print", color_scheme="dark")
        await expect(printed.get_by_role("searchbox")).to_be_hidden()
        await expect(printed.locator("#contributors")).to_contain_text("basement-4090")
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        assert await printed.evaluate(ground) in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")
        assert await width_of(printed) <= 780
        # An index leads to each run, and a run's page stays below its own address.
        async with contextlib.AsyncExitStack() as stack:
            base = run_path(RUN_ID)
            page = in_memory(visit.site.state, visit.site.history, base=base, clock=lambda: NOW + 3)
            _, app = await stack.enter_async_context(page)
            await wall.close()
            await printed.close()
            await visit.site.stop()
            runner = web.AppRunner(make_index([app], {}), access_log=None, shutdown_timeout=1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", visit.site.port, reuse_address=True).start()
            index = await visit.open()
            assert await accessibility_faults(index) == []
            await index.get_by_role("link", name="tinybytes").first.click()
            await expect(index.locator('[data-chart="losses"] canvas')).to_be_visible()
            await index.get_by_role("link", name="People", exact=True).click()
            await expect(index.locator("#contributors")).to_contain_text("Ada")
            assert f"{base}/" in index.url
            manifest = await index.evaluate(
                "fetch(document.querySelector('link[rel=manifest]').href).then((r) => r.json())"
            )
            assert manifest["start_url"] == f"{base}/"
            # An index has no stream; it says that it lost its server, and asks more and more seldom.
            await index.close()
            index = await visit.open()
            await index.clock.install()
            await runner.cleanup()
            gaps = [await seconds_until_asked(index, visit.seen) for _ in range(7)]
            await expect(index.locator("#connection")).to_contain_text("Connection lost")
            assert gaps[6] >= 10 > gaps[1]

    in_browser(check, may_fail=("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED"))


def test_a_mark_leads_to_what_the_model_wrote_and_a_link_to_the_own_row(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open(f"?you={peer_id_of(40)}")
        await page.locator('[data-chart="losses"] .mark-at.sample').first.press("Enter")
        await expect(page.locator("#samples output")).to_contain_text("version 1,")
        await expect(page.locator("#samples")).to_be_visible()
        await page.get_by_role("link", name="People", exact=True).click()
        await expect(page.locator("svg.world circle")).to_have_count(3)
        await page.get_by_role("button", name="find me").click()
        await expect(page.locator("#people-found tr.you")).to_have_count(1)
        await page.get_by_role("button", name="back to the ranking").click()
        await page.get_by_role("link", name="Show 75 at a time").click()
        await expect(page.locator("#people-found tbody tr")).to_have_count(75)
        await expect(page.locator("#people-found tr.you .own")).to_have_text("you")
        await page.get_by_role("link", name="Next", exact=True).click()
        await expect(page.locator("#people-found tbody tr")).to_have_count(45)
        await expect(page.locator("#people-found")).to_contain_text("76 to 120 of 120 contributors")

    in_browser(check, num_people=120)
