"""Requests for what a manifest names: no credentials, no private network, no redirect elsewhere, no trickle."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from peer.sources import web_request as module
from peer.sources.web_request import (
    BROKEN,
    PrivateAddress,
    RedirectRefused,
    is_internal,
    to_same_host,
    to_same_scheme,
    web_answer,
)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """(address, heads of the requests) of a server that answers so."""
    heads: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            heads.append({name.lower(): value for name, value in self.headers.items()})
            self.close_connection = True
            answer(self)

        def log_message(self, *_: object) -> None: ...

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}", heads
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def to(location: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", location)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def plain(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "2")
    handler.end_headers()
    handler.wfile.write(b"ok")


def read(url: str, **choices: Any) -> bytes:
    with web_answer(url, **{"redirects": to_same_scheme, "is_own": True, **choices}) as answer:
        return answer.read(1 << 20)


def test_nothing_of_the_home_or_environment_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("default login ada password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with server(plain) as (url, heads):
        assert read(url) == b"ok"
    assert set(heads[0]) == {"accept-encoding", "host", "user-agent", "connection"}


def test_secret_headers_go_to_the_first_server_alone() -> None:
    with server(plain) as (there, seen), server(to(f"{there}/x")) as (here, asked):
        assert read(here, secret_headers={"Authorization": "Bearer hf_secret"}) == b"ok"
    assert asked[0]["authorization"] == "Bearer hf_secret"
    assert "authorization" not in seen[0]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_body_of_a_redirect_is_not_read(status: int) -> None:
    """`urllib` reads all of it into memory, and it may have no end."""
    sent = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/there":
            plain(handler)
            return
        handler.send_response(status)
        handler.send_header("Location", "/there")
        handler.end_headers()
        while sum(sent) < 100 << 20:
            try:
                sent.append(handler.wfile.write(bytes(1 << 20)))
            except OSError:
                break

    with server(answer) as (url, _):
        assert read(url) == b"ok"
    assert sum(sent) < 50 << 20


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
        ),
        *("::1", "fe80::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "::"),
        *("127.1", "2130706433", "0x7f.1", "64:ff9b::a00:1", "224.0.0.1", "ff02::1"),
    ],
)
def test_addresses_of_a_private_network(address: str) -> None:
    assert is_internal(address)


def test_addresses_of_the_internet() -> None:
    assert not any(map(is_internal, ("1.1.1.1", "2606:4700::1111", "64:ff9b::101:101", "example.org")))


def test_what_somebody_else_names_is_on_a_public_server() -> None:
    with server(plain) as (url, heads):
        for name in (url, url.replace("127.0.0.1", "localhost"), url.replace("127.0.0.1", "127.1")):
            with pytest.raises(PrivateAddress, match="in a private network"):
                read(name, is_own=False)
    assert heads == []


def test_a_proxy_is_not_asked_for_a_private_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(plain) as (url, heads):
        monkeypatch.setenv("http_proxy", url)
        assert read("http://example.org/", is_own=False) == b"ok"
        dotted = ("http://localhost./", "http://page.localhost/", "http://10.0.0.1./")
        for name in ("http://localhost/", "http://10.0.0.1/", "http://[::1]:80/", *dotted):
            with pytest.raises(PrivateAddress):
                read(name, is_own=False)
    assert len(heads) == 1


def test_a_public_server_leads_to_no_private_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not by another answer for its own name (`is_internal` says so of the second connection alone)."""
    answers = iter([False, True, True, True, True])
    monkeypatch.setattr(module, "is_internal", lambda address: next(answers))
    with server(plain) as (there, seen), server(to(f"{there}/x")) as (here, _), pytest.raises(PrivateAddress):
        read(here)
    assert seen == []


@pytest.mark.parametrize(
    ("here", "there", "is_followed"),
    [
        ("http://page.org/a", "http://page.org/b", True),
        ("http://page.org/a", "https://page.org/b", True),
        ("http://page.org:8080/a", "https://page.org:8080/b", True),
        ("http://page.org", "http://page.org:80/b", True),
        ("https://page.org/a", "http://page.org/b", False),
        ("http://page.org/a", "http://www.page.org/b", False),
        ("http://page.org/a", "http://page.org:22/b", False),
        ("http://page.org/a", "https://page.org:22/b", False),
        ("http://page.org/a", "http://192.168.1.1/", False),
        ("http://page.org/a", "ftp://page.org/b", False),
        ("http://page.org/a", "file:///etc/passwd", False),
        ("http://page.org/a", "//other.org/b", False),
    ],
)
def test_redirects_of_a_page_stay_on_its_server(here: str, there: str, is_followed: bool) -> None:
    assert (to_same_host(urlsplit(here), urlsplit(there)) is None) == is_followed


@pytest.mark.parametrize(
    "location", ["ftp://127.0.0.1/x", "file:///etc/passwd", "https://127.0.0.1:1/", "data:,x", "http://a:b@127.0.0.1/"]
)
def test_a_refused_redirect_is_not_followed(location: str) -> None:
    with server(to(location)) as (url, heads), pytest.raises(RedirectRefused):
        read(url)
    assert len(heads) == 1


def trickle(after_head: bytes) -> Answer:
    """A byte now and then for ever, after `after_head`; it ends when nobody listens."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        try:
            handler.wfile.write(after_head)
            while True:
                handler.wfile.write(b"1")
                handler.wfile.flush()
                time.sleep(0.02)
        except OSError:
            pass

    return answer


@pytest.mark.parametrize(
    "after_head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;name=",
        b"HTTP/1.1 200 OK\r\nX-Name: ",
        b"",
    ],
    ids=["body", "chunk length", "chunk", "head", "status"],
)
def test_a_trickle_ends_wherever_it_is(after_head: bytes) -> None:
    started = time.monotonic()
    with server(trickle(after_head)) as (url, _), pytest.raises(BROKEN, match="slower than 10 kB per second"):
        read(url, window_seconds=0.3)
    assert time.monotonic() - started < 10


def test_all_of_a_small_file_comes_in_its_time() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        try:
            while True:
                handler.wfile.write(bytes(10_000))
                time.sleep(0.01)
        except OSError:
            pass

    with (
        server(answer) as (url, _),
        web_answer(url, redirects=to_same_scheme, is_own=True) as found,
        pytest.raises(TimeoutError, match="more than 0 s"),
    ):
        found.read(1 << 30, 0.2)
