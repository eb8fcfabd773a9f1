"""The map has land on its grid, a place for each country, and is there from two countries on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard.page.page import render_sections
from dashboard.page.world_map import HEIGHT, LAND, PLACES, WIDTH, country_dots
from tests.kit.dashboard.records import TextOnly
from tests.kit.dashboard.scene import history_of_run, state_of


def test_every_place_is_on_the_map() -> None:
    assert len(PLACES) > 190
    for code in PLACES:
        dots = country_dots(((code, 3), ("DE" if code != "DE" else "FR", 1)))
        dot = next(dot for dot in dots if dot.code == code)
        assert 0 <= dot.x <= WIDTH, code
        assert 0 <= dot.y <= HEIGHT, code
    assert LAND.count("M") > 80


@pytest.mark.parametrize(("countries", "number"), [((), 0), ((("DE", 9),), 0), ((("DE", 9), ("ZZ", 3)), 0)])
def test_one_country_or_none_is_no_map(countries: tuple[tuple[str, int], ...], number: int) -> None:
    assert len(country_dots(countries)) == number
    html = render_sections(state_of(), replace(history_of_run(), countries=countries))["countries"]
    assert '<svg class="world"' not in html


def test_more_people_are_a_larger_dot_and_the_table_says_the_same() -> None:
    big, small = country_dots((("FR", 4), ("IN", 400)))
    assert (big.code, small.code) == ("IN", "FR")
    assert big.radius > small.radius
    page = TextOnly(render_sections(state_of(), history_of_run())["countries"])
    assert page.tags.count("circle") == 3
    assert ("data-country", "IN") in page.attributes
