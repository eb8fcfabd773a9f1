"""A page in a real browser that loses its server, or that nobody looks at; and one without a stream: an index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.async_api import Page, expect

from tests.kit.dashboard.browser import InBrowser, Seen, Visit, accessibility_faults, browsing, needs_chromium
from tests.kit.dashboard.scene import contributor_of

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def in_browser() -> Iterator[InBrowser]:
    yield from browsing()


async def stop_clock(page: Page) -> None:
    """Let the clock of `page`, which was opened with a clock of its own, move only when a test moves it."""
    now_milliseconds = await page.evaluate("Date.now()")
    await page.clock.pause_at(now_milliseconds / 1000 + 1)


async def seconds_until_asked(page: Page, seen: Seen) -> int:
    """Move the stopped clock of `page` until its next request; return by how many seconds."""
    num_asked, seconds = len(seen.urls), 0
    while len(seen.urls) == num_asked:
        await page.clock.run_for(1000)
        seconds += 1
    return seconds


def test_a_page_says_that_it_lost_its_server_and_finds_it_again(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open(has_own_clock=True)
        await expect(page.locator('[data-chart="losses"] canvas')).to_be_visible()
        await visit.site.stop()
        await expect(page.locator("#connection")).to_contain_text("Connection lost")
        await expect(page.locator("body")).to_have_class("lost")
        # It asks more and more seldom, and at once when the network is there again.
        await stop_clock(page)
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


def test_an_index_leads_to_each_run_and_finds_its_server_again(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        index = await visit.open()
        assert await accessibility_faults(index) == []
        await index.get_by_role("link", name="tinybytes").first.click()
        await expect(index.locator('[data-chart="losses"] canvas')).to_be_visible()
        await index.get_by_role("link", name="People", exact=True).click()
        await expect(index.locator("#contributors")).to_contain_text("Ada")
        assert f"{visit.site.base}/" in index.url
        # An index has no stream; it says that it lost its server, and asks more and more seldom.
        await index.close()
        index = await visit.open(has_own_clock=True)
        await stop_clock(index)
        await visit.site.stop()
        gaps = [await seconds_until_asked(index, visit.seen) for _ in range(7)]
        await expect(index.locator("#connection")).to_contain_text("Connection lost")
        assert gaps[6] >= 10 > gaps[1]
        await visit.site.start()
        await seconds_until_asked(index, visit.seen)
        await expect(index.locator("#connection")).to_be_hidden()
        await expect(index.locator("body")).not_to_have_class("lost")

    in_browser(check, is_index=True, may_fail=("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED"))
