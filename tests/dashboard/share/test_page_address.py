"""The address of a page: what its owner says, else what was asked for; whatever a visitor writes stays out of HTML."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.share.page_address import checked_address, is_for_others, origin_of


def test_the_owners_word_counts_and_then_the_request() -> None:
    assert origin_of("https://run.example.org", "http", "evil.example") == "https://run.example.org"
    assert origin_of("", "https", "run.example.org") == "https://run.example.org"
    assert origin_of("", "gopher", "127.0.0.1:8080") == "http://127.0.0.1:8080"
    assert origin_of("", "http", "[2001:db8::1]:80") == "http://[2001:db8::1]:80"


def test_a_phone_cannot_open_what_is_of_this_machine_alone() -> None:
    others = ("https://run.example.org", "http://192.0.2.2:8080", "http://[2001:db8::1]:80/r/RUN")
    own = ("", "http://localhost:8080", "http://a.localhost", "http://127.0.0.1", "http://[::1]:80", "http://0.0.0.0")
    assert list(map(is_for_others, others)) == [True] * 3
    assert not any(map(is_for_others, (*own, origin_of("", "http", "[:::]"), "http://[:::]")))


@given(st.text(max_size=30))
def test_a_host_that_is_none_gives_nothing(host: str) -> None:
    origin = origin_of("", "http", host)
    assert origin == "" or not set(origin) & set(" \"'<>&/\\@#?%\n\r\t") - set("/")
    assert "@" not in origin


@pytest.mark.parametrize("host", ["", "a b", 'a"b', "a/b", "a@b", "-a", "a:123456", "<script>", "é.example", "x" * 300])
def test_bad_hosts(host: str) -> None:
    assert origin_of("", "http", host) == ""


def test_an_address_is_checked_when_it_is_given() -> None:
    assert checked_address("https://run.example.org/") == "https://run.example.org"
    assert checked_address("https://example.org/runs/one") == "https://example.org/runs/one"
    for text in (
        "run.example.org",
        "ftp://a.example",
        "https://",
        "https://a b",
        "https://a/?x",
        "https://u:p@a",
        "https://a/%22",
    ):
        with pytest.raises(ValueError, match="expected"):
            checked_address(text)
