"""The page in a real browser, driven by playwright; skipped where there is no Chromium.

One browser serves the whole file; every test has its own server, page and cookies. Nothing sleeps: playwright waits
for what is expected. The page's own policy stays in force, so a script that breaks it fails here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest
from playwright.async_api import expect

from tests.kit.dashboard.browser import InBrowser, Visit, accessibility_faults, browsing, needs_chromium, width_of
from tests.kit.dashboard.records import HOSTILE_NAME, NOW
from tests.kit.dashboard.scene import DAY, contributor_of, peer_id_of, points_of
from tests.kit.tiers import sampled

PHONE = {"width": 375, "height": 800}
STICKS_OUT = """[...document.querySelectorAll(".card td, .card th, .card p, .card pre, .card .state")]
    .filter((each) => each.clientWidth > 1)
    .filter((each) => each.getBoundingClientRect().right > each.closest(".card").getBoundingClientRect().right)
    .map((each) => each.textContent)"""
"""What reaches over the edge of its card; cells of one pixel are for screen readers only."""
TALL = {"width": 390, "height": 844}
LAPTOP = {"width": 1280, "height": 800}
LOOKS: list[tuple[Literal["light", "dark"], dict[str, int]]] = [
    ("light", TALL),
    ("dark", TALL),
    ("light", {"width": 820, "height": 1180}),
    ("dark", {"width": 820, "height": 1180}),
    ("light", LAPTOP),
    ("dark", LAPTOP),
    ("light", {"width": 1920, "height": 1080}),
    ("dark", {"width": 1920, "height": 1080}),
    ("light", {"width": 320, "height": 700}),
]
"""Schemes and sizes of windows; every fifth is looked at in `make test`."""
BARE_NUMBERS = """() => [...document.querySelectorAll('.stack td:not(.rank)')].filter((cell) => {
    const heading = cell.closest('table').tHead, unit = getComputedStyle(cell, '::after').content;
    return cell.checkVisibility() && heading.offsetWidth < 2 && /^[0-9]/.test(cell.innerText) && !/ [a-z]/.test(unit);
}).map((cell) => cell.innerText)"""
"""Numbers of tables whose headings are not shown, as on a phone, that do not say what they count."""
FIRST_SCREEN = """[...document.querySelectorAll("h1, .goal, .quickly, .writes-card, .figures > :first-child")]
    .map((each) => Math.round(each.getBoundingClientRect().bottom))"""
"""Where the parts end that say what the run is, how far it is, how to join, what it writes, and how well it guesses."""
MAX_SCREENS = 8
"""Of a phone, for each tab of a run of 300 people."""

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def in_browser() -> Iterator[InBrowser]:
    yield from browsing()


def holding(text: str) -> re.Pattern[str]:
    """A pattern that finds `text` anywhere."""
    return re.compile(re.escape(text))


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
        newest = replace(points_of()[-1], at=NOW + 2, tokens=345_000_000, validation_loss=1.5, train_loss=1.25)
        people = (replace(contributor_of(0), name="Newcomer"), *visit.site.history.contributors[1:])
        visit.site.publish(contributors=people, points=(*visit.site.history.points, newest))
        await expect(page.locator("#contributors")).to_contain_text("Newcomer")
        # What was not in view comes when it is looked at, and the address says where one is.
        await page.get_by_role("link", name="Overview").click()
        await expect(page.locator("#top")).to_contain_text("Newcomer")
        assert page.url.endswith("?tab=overview")
        await expect(label).to_have_attribute("aria-label", holding("345 M tokens (validation loss 1.500"))

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
        await chart.get_by_text("As a table").click()
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
        await expect(page.locator("#people-found")).to_contain_text("No contributor has that name")
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
        # By key, since four of sixty have this name.
        await expect(page.locator(".share-card")).to_contain_text(f"{visit.site.url}c/")

    in_browser(check, num_people=60)


@pytest.mark.parametrize(("scheme", "size"), sampled(LOOKS, one_in=5))
def test_everybody_can_use_it(in_browser: InBrowser, scheme: Literal["light", "dark"], size: dict[str, int]) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open(scheme=scheme, size=size)
        await expect(page.locator('[data-chart="losses"] canvas')).to_be_visible()
        if size in (TALL, LAPTOP):
            bottoms = await page.evaluate(FIRST_SCREEN)
            assert len(bottoms) == 5
            assert max(bottoms) <= size["height"]
        if size["width"] < 704:
            await page.get_by_text("Paste three lines into its terminal").click()
            await expect(page.locator("#way-in-lines code")).to_be_visible()
        for tab in ("Overview", "People", "Model", "Engine room"):
            await page.get_by_role("link", name=tab, exact=True).click()
            if tab == "Engine room":
                await expect(page.locator("#peers tbody tr").first).to_be_visible()
            assert await accessibility_faults(page) == []
            assert await width_of(page) <= size["width"]
            assert await page.evaluate(BARE_NUMBERS) == []
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


@pytest.mark.parametrize("size", [{"width": 320, "height": 700}, PHONE, TALL, LAPTOP, {"width": 1920, "height": 1080}])
def test_a_long_word_about_health_stays_in_its_card(in_browser: InBrowser, size: dict[str, int]) -> None:
    async def check(visit: Visit) -> None:
        lone = tuple(replace(row, contributors=row.contributors[:1]) for row in visit.site.history.rounds)
        visit.site.history = replace(visit.site.history, rounds=lone)
        await visit.site.stop()
        await visit.site.start()
        page = await visit.open("?tab=engine-room", size=size)
        await expect(page.locator("#health .state")).to_contain_text("they share nothing.")
        assert await page.evaluate(STICKS_OUT) == []
        assert await width_of(page) <= size["width"]

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


def test_a_reader_goes_through_time(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open("?tab=model", motion="no-preference")
        # Through everything that the model wrote, by keyboard.
        slider, said = page.get_by_label("Through time"), page.locator("#samples output")
        await expect(said).to_contain_text("after 335 M tokens, version 3673, validation loss 1.730")
        await slider.press("Home")
        await expect(said).to_contain_text("after 900 tokens, version 1, validation loss 5.300")
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
        await page.get_by_text("Windows (WSL)", exact=True).first.click()
        await expect(page.get_by_text("wsl --install")).to_be_visible()
        await expect(page.get_by_text("docker run")).to_be_hidden()
        visit.site.state = replace(visit.site.state, install="pip install other")
        visit.site.publish()
        await expect(page.locator(".for-windows")).to_contain_text("pip install other")
        await expect(page.get_by_text("wsl --install")).to_be_visible()

    in_browser(check)


def test_a_printout_is_light_and_has_no_tools(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        printed = await visit.open("?tab=people", scheme="dark", size={"width": 780, "height": 1100})
        await expect(printed.get_by_role("searchbox")).to_be_visible()
        await printed.emulate_media(media="print", color_scheme="dark")
        await expect(printed.get_by_role("searchbox")).to_be_hidden()
        await expect(printed.locator("#contributors")).to_contain_text("basement-4090")
        card = "getComputedStyle(document.querySelector('.card')).backgroundColor"
        assert await printed.evaluate(card) == "rgb(255, 255, 255)"
        assert await width_of(printed) <= 780

    in_browser(check)


def test_a_mark_leads_to_what_the_model_wrote_and_a_link_to_the_own_row(in_browser: InBrowser) -> None:
    async def check(visit: Visit) -> None:
        page = await visit.open(f"?you={peer_id_of(40)}")
        await page.locator('[data-chart="losses"] .mark-at.sample').first.press("Enter")
        await expect(page.locator("#samples output")).to_contain_text("version 1,")
        await expect(page.locator("#samples")).to_be_visible()
        await page.get_by_role("link", name="People", exact=True).click()
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
