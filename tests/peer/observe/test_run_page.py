"""What a page says to those who want to join: several runs, pages that lie, stall, or are none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import NobodyReachable, UsageFault
from dht.identity.keys import Identity, make_run_id
from peer.observe.own_runs import is_page_here
from peer.observe.run_page import MAX_ANSWER_BYTES, ask_page, in_words, is_unprotected, read_answer

ADA = Identity.from_seed(bytes([1]) * 32)
ONE, OTHER = make_run_id("one", ADA.public_key), make_run_id("other", ADA.public_key)
ADDRESS = f"/ip4/203.0.113.5/tcp/4001/p2p/{ADA.peer_id}"


def answer_of(run_id: str) -> bytes:
    return json.dumps({"schema": 1, "run_id": run_id, "addresses": [ADDRESS], "is_private": False}).encode()


@contextmanager
def page(answers: dict[str, Any]) -> Iterator[str]:
    """A server; the value of a path is its content, a status, a place to go, or what it waits for without a word."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path, 404)
            if isinstance(found, bytes):
                self.send_response(200)
                self.send_header("Content-Type", "application/json; charset=utf-8")
                self.end_headers()
                self.wfile.write(found)
            elif isinstance(found, str):
                self.send_response(302)
                self.send_header("Location", found)
                self.end_headers()
            elif isinstance(found, threading.Event):
                found.wait(30)
            else:
                self.send_error(found)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_path_says_which_of_several_runs_is_meant() -> None:
    join = "/api/v1/join"
    answers = {
        f"/r/one{join}": answer_of(ONE),
        f"/r/other{join}": answer_of(OTHER),
        join: 404,
        f"/moved{join}": f"/r/one{join}",
    }
    with page(answers) as url:
        assert ask_page(f"{url}/r/one").run_id == ONE
        assert ask_page(f"{url}/r/other/").run_id == OTHER
        assert ask_page(f"{url}/r/other/c/{ADA.peer_id}?tab=people#top").run_id == OTHER
        assert ask_page(f"{url}/moved").run_id == ONE
        with pytest.raises(UsageFault, match="not the page of a run"):
            ask_page(url)
        says = ask_page(f"{url}/r/one")
    assert says.peers == [ADDRESS]
    assert in_words(says, url) == f"{url.removeprefix('http://')} refers to the run {ONE}, with 1 address."
    assert not is_unprotected(url)
    assert is_unprotected("http://run.example.org")
    assert not is_unprotected("https://run.example.org")


@pytest.mark.parametrize(
    ("answer", "fault", "sentence"),
    [
        (401, UsageFault, "requires a token"),
        (500, NobodyReachable, "it answered 500"),
        (b"<html>", UsageFault, "it is not JSON"),
        (b"[]", UsageFault, "it is not a JSON object"),
        (b"{}", UsageFault, "run_id or addresses are missing"),
        (b'{"run_id": "x", "addresses": []}', UsageFault, "is not a run id"),
        (json.dumps({"run_id": ONE, "addresses": ["/ip4/1.2.3.4/tcp/1"]}).encode(), UsageFault, "ends in /p2p/"),
        (b" " * (MAX_ANSWER_BYTES + 1), UsageFault, "longer than"),
    ],
)
def test_a_page_that_is_none_costs_one_sentence(answer: Any, fault: type[Exception], sentence: str) -> None:
    with page({"/api/v1/join": answer}) as url, pytest.raises(fault) as caught:
        ask_page(url)
    assert sentence in str(caught.value)


def test_nobody_there_and_wrong_addresses() -> None:
    with page({}) as url:
        pass
    with pytest.raises(NobodyReachable, match="Connection refused"):
        ask_page(url)
    for wrong in ("https://", "https://a b", "https://ada@run.example.org", "https://[::1", "https://" + "a" * 400):
        with pytest.raises(UsageFault, match="not the address of a page"):
            ask_page(wrong)


def test_a_page_that_stalls_is_not_waited_for() -> None:
    released = threading.Event()
    with page({"/api/v1/join": released}) as url:
        with pytest.raises(NobodyReachable, match="no answer"):
            ask_page(url, timeout_seconds=0.2)
        released.set()


@given(
    st.one_of(
        st.binary(max_size=200),
        st.fixed_dictionaries(
            {},
            optional={
                "run_id": st.one_of(st.text(), st.just(ONE), st.none()),
                "addresses": st.lists(st.one_of(st.text(), st.just(ADDRESS), st.integers())),
            },
        ).map(lambda fields: json.dumps(fields).encode()),
    )
)
def test_any_answer_is_a_run_or_a_sentence(content: bytes) -> None:
    try:
        says = read_answer(content, "https://run.example.org")
    except UsageFault:
        return
    assert says.run_id == ONE
    assert set(says.peers or []) <= {ADDRESS}


def test_a_page_on_this_machine_counts_if_it_shows_this_run() -> None:
    with page({"/api/v1/join": answer_of(ONE)}) as address:
        assert is_page_here(ONE, address)
        assert not is_page_here(OTHER, address)
    assert not is_page_here(ONE, address)


def test_a_page_makes_nobody_connect_to_one_host_again_and_again() -> None:
    """It could name 200 ports of the joiner's own machine."""
    here = [f"/ip4/127.0.0.{number}/tcp/{number}/p2p/{ADA.peer_id}" for number in range(1, 200)]
    names = [f"/dns/LOCALHOST/tcp/22/p2p/{ADA.peer_id}", f"/ip6/::1/tcp/22/p2p/{ADA.peer_id}"]
    content = json.dumps({"run_id": ONE, "addresses": here + names}).encode()
    assert len(read_answer(content, "http://127.0.0.1:8080").peers or []) == 2
    assert read_answer(content, "https://run.example.org").peers is None
    far = [f"/ip4/203.0.113.5/tcp/{port}/p2p/{ADA.peer_id}" for port in range(1, 200)]
    content = json.dumps({"run_id": ONE, "addresses": far}).encode()
    assert len(read_answer(content, "https://run.example.org").peers or []) == 2


def test_a_long_address_is_not_told_back() -> None:
    content = json.dumps({"run_id": ONE, "addresses": ["/ip4/" + "9" * 3000]}).encode()
    with pytest.raises(UsageFault, match="more than 300 characters") as caught:
        read_answer(content, "https://run.example.org")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "http://127.0.0.1:1/x", "http://192.168.1.1/x", "file:///x"])
def test_a_page_leads_to_no_other_server(place: str) -> None:
    with page({"/api/v1/join": place}) as url, pytest.raises(UsageFault, match=r"is not followed .* use it instead"):
        ask_page(url)


def test_the_page_that_a_manifest_names_is_public() -> None:
    with page({"/api/v1/join": answer_of(ONE)}) as url, pytest.raises(UsageFault, match="private network"):
        ask_page(url, of_manifest=True)
