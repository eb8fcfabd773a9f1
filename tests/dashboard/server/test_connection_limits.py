"""The page under those who hold connections and give nothing: slow heads, slow readers, floods, garbage."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from dashboard.app import Serving, bound_port, start_site
from dashboard.log_limits import MAX_REASON_LENGTH, OncePerMinute
from dashboard.observe.dashboard_state import fold
from dashboard.observe.listed_peers import Look
from dashboard.server.connection_limits import DoorLimits, Doors, client_address, limits_for
from dashboard.server.handler_context import SITE
from dashboard.server.live_updates import Live
from tests.kit.clock import Clock
from tests.kit.dashboard.records import NOW, PEERS, bare_record, history_of, record_of, state_with
from tests.kit.dashboard.scene import contributor_of
from tests.kit.dashboard.serving import in_memory
from tests.kit.waiting import LOOK_SECONDS

FEW = DoorLimits(num_connections=8, num_per_address=6, idle_seconds=30.0, send_seconds=30.0)
GET = b"GET /%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LARGE = b"x" * 4_000_000
"""More than both kernels' buffers hold: of the page's side they are as small as can be."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Scene:
    """One page, and connections to it from any address of this machine."""

    def __init__(self, serving: Serving, doors: Doors, live: Live) -> None:
        self.port = bound_port(serving)
        self.doors = doors
        self.live = live
        self._site = serving.runner.app[SITE]
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, sent: bytes = b"", address: str = "127.0.0.1", *, is_slow: bool = False) -> Streams:
        connection = socket.socket()
        if is_slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.bind((address, 0))
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
        self._writers.append(writer)
        if is_slow:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        if sent:
            writer.write(sent)
        return reader, writer

    async def status(self, path: str = "", address: str = "127.0.0.1") -> int:
        """Of an answer; 0: the connection was closed without one."""
        reader, writer = await self.open(GET % path.encode(), address)
        try:
            head = await asyncio.wait_for(reader.readline(), 30)
        except ConnectionError:
            return 0
        finally:
            writer.close()
        return int(head.split()[1]) if head else 0

    async def until(self, is_so: Callable[[], bool], pause_seconds: float = LOOK_SECONDS) -> None:
        async with asyncio.timeout(120):
            while not is_so():  # noqa: ASYNC110 (what the kernel does sets no event)
                await asyncio.sleep(pause_seconds)

    @property
    def num_open(self) -> int:
        return len(self.doors._places)

    @property
    def num_downloads(self) -> int:
        return self._site.downloads.total()

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def scene(limits: DoorLimits, **how: object) -> AsyncIterator[Scene]:
    doors = Doors(limits, asyncio.get_running_loop().time, **how)  # type: ignore[arg-type]

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=LARGE)

    async with in_memory(state_with(record_of(PEERS[0])), clock=lambda: NOW, doors=doors) as (live, app):
        app.router.add_get("/large", large)
        serving = await start_site(app, "127.0.0.1", 0)
        for listening in serving.listener.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what it accepts has the same
        found = Scene(serving, doors, live)
        try:
            yield found
        finally:
            await found.close()
            await serving.cleanup()


def in_scene(check: Callable[[Scene], Awaitable[None]], limits: DoorLimits = FEW, **how: object) -> None:
    async def run() -> None:
        async with scene(limits, **how) as found:
            await check(found)

    asyncio.run(run())


# --- connections that send too little ---


@pytest.mark.parametrize(
    "sent", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: b", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET"]
)
def test_who_sends_no_whole_request_in_time_is_closed(sent: bytes) -> None:
    async def check(page: Scene) -> None:
        reader, writer = await page.open(sent)
        # It ends without a word from us, whatever else trickles in.
        while True:
            with contextlib.suppress(ConnectionError):
                writer.write(b"a" if sent else b"")
            try:
                if not await asyncio.wait_for(reader.read(1000), 30):
                    break
            except ConnectionError:
                break
        await page.until(lambda: not page.num_open)

    in_scene(check, replace(FEW, idle_seconds=0.1))


def test_slow_connections_of_one_address_do_not_keep_it_out_nor_others() -> None:
    async def check(page: Scene) -> None:
        slow = [await page.open(b"GET / HT") for _ in range(FEW.num_per_address * 3)]
        assert page.num_open <= FEW.num_per_address
        for address in ("127.0.0.1", "127.0.0.2"):
            for path in ("", "healthz", "api/v1/run", "metrics"):
                assert await page.status(path, address) == 200
        assert len(slow) == 18

    in_scene(check)


def test_when_all_places_are_taken_who_waits_longest_makes_room() -> None:
    async def check(page: Scene) -> None:
        for place in range(FEW.num_connections):
            await page.open(b"GET / HT", f"127.0.1.{1 + place % 4}")
        await page.until(lambda: page.num_open == FEW.num_connections)
        for _ in range(3):
            assert await page.status("", "127.0.0.9") == 200
        assert page.num_open <= FEW.num_connections

    in_scene(check)


def test_streams_leave_room_for_the_page_and_are_not_closed_for_it() -> None:
    async def check(page: Scene) -> None:
        streams = []
        for place in range(FEW.num_viewers):
            streams.append(await page.open(b"GET /events/stream HTTP/1.1\r\nHost: x\r\n\r\n", f"127.0.2.{1 + place}"))
        for reader, _ in streams:
            assert b"200" in await asyncio.wait_for(reader.readline(), 30)
        assert await page.status("events/stream", "127.0.0.9") == 503
        for _ in range(5):
            assert await page.status("", "127.0.0.9") == 200
        assert page.num_open >= FEW.num_viewers

    in_scene(check)


def test_addresses_that_hold_all_streams_make_room_for_one_that_has_none() -> None:
    async def check(page: Scene) -> None:
        async def opened(address: str) -> tuple[int, asyncio.StreamReader]:
            reader, _ = await page.open(b"GET /events/stream HTTP/1.1\r\nHost: x\r\n\r\n", address)
            return int((await asyncio.wait_for(reader.readline(), 30)).split()[1]), reader

        readers = []
        for address in range(4):
            for _ in range(3):
                status, reader = await opened(f"127.0.4.{1 + address}")
                assert status == 200
                readers.append(reader)
        assert (await opened("127.0.4.1"))[0] == 503
        visitors = [await opened(f"127.0.5.{1 + number}") for number in range(8)]
        assert [status for status, _ in visitors] == [200] * 8
        # The oldest of an address goes first, and each keeps one: sharing goes no further.
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(readers[0].read(), 30)
        assert [(await opened(f"127.0.{net}.1"))[0] for net in (4, 5, 6)] == [503] * 3
        assert not any(reader.at_eof() for _, reader in visitors)

    in_scene(check, replace(FEW, num_connections=16))


def test_one_address_that_holds_streams_gets_no_more_and_others_do() -> None:
    async def check(page: Scene) -> None:
        streams = [await page.open(b"GET /events/stream HTTP/1.1\r\nHost: x\r\n\r\n", "127.0.3.1") for _ in range(3)]
        for reader, _ in streams:
            assert b"200" in await asyncio.wait_for(reader.readline(), 30)
        assert await page.status("", "127.0.3.1") == 0
        assert await page.status("", "127.0.0.9") == 200

    in_scene(check, replace(FEW, num_connections=16, num_per_address=3))


# --- connections that take too little ---


@pytest.mark.parametrize("path", ["large", "events/stream"])
def test_who_takes_nothing_is_cut_off(path: str) -> None:
    async def check(page: Scene) -> None:
        await page.open(GET % path.encode(), is_slow=True)
        await page.until(lambda: page.num_open == 1)
        step = 0

        def is_gone() -> bool:
            # Streams get what changes; everybody has another name in every look.
            nonlocal step
            step += 1
            if path != "large" and step < 400 and page.num_open:
                now = NOW + 10 * step
                records = [replace(bare_record(f"p{n}", now=now), name=f"{step}" * 10) for n in range(300)]
                state = fold(page.live.state, Look(now=now, num_members=1, records=records))
                page.live.publish(state, history_of(state))
            return not page.num_open

        await page.until(is_gone, 0.0)
        assert await page.status("healthz") == 200

    in_scene(check, replace(FEW, send_seconds=0.3))


def test_slow_readers_of_exports_are_cut_off_and_take_no_others_turn() -> None:
    async def check(page: Scene) -> None:
        rows = [replace(contributor_of(0), contributor_id=f"c{number}") for number in range(4_000)]
        page.live.history = replace(page.live.history, contributors=tuple(rows))
        export = GET % b"api/v1/export.jsonl"
        slow = [await page.open(export, "127.0.5.1", is_slow=True) for _ in range(2)]
        await page.until(lambda: page.num_downloads == 2)
        assert await page.status("api/v1/export.jsonl", "127.0.5.1") == 503
        assert await page.status("api/v1/export.jsonl", "127.0.5.2") == 200
        await page.until(lambda: not page.num_downloads)
        await page.until(lambda: not page.num_open)
        assert len(slow) == 2

    in_scene(check, replace(FEW, send_seconds=2.0))


def test_who_reads_slowly_but_reads_gets_everything() -> None:
    async def check(page: Scene) -> None:
        reader, _ = await page.open(GET % b"large")
        num_bytes = 0
        while part := await asyncio.wait_for(reader.read(100_000), 30):
            num_bytes += len(part)
        assert num_bytes > len(LARGE)

    in_scene(check)


# --- requests ---


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"b" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 20_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00" + b"\x00" * 600,
        b"rubbish\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["long line", "long field", "many fields", "TLS", "rubbish", "length", "chunk"],
)
def test_a_malformed_request_is_refused_in_one_short_line(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    quiet = OncePerMinute()
    logger = logging.getLogger("dashboard.http")
    logger.addFilter(quiet)

    async def check(page: Scene) -> None:
        for _ in range(20):
            reader, writer = await page.open(request_)
            with contextlib.suppress(ConnectionError):
                answer = await asyncio.wait_for(reader.read(100), 30)
                assert not answer or b" 400 " in answer or b" 200 " in answer
            writer.close()
        assert await page.status() == 200

    try:
        in_scene(check)
    finally:
        logger.removeFilter(quiet)
    lines = [caplog.handler.format(record) for record in caplog.records if record.name == "dashboard.http"]
    assert len(lines) <= 1
    assert all(len(line) < 300 and "\n" not in line for line in lines)


def test_a_body_that_nobody_reads_holds_nobody() -> None:
    async def check(page: Scene) -> None:
        reader, _ = await page.open(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nabc")
        assert b"200" in await asyncio.wait_for(reader.readline(), 30)
        while await asyncio.wait_for(reader.read(100_000), 30):
            pass
        await page.until(lambda: not page.num_open)

    in_scene(check)


def test_too_many_requests_of_one_address_are_refused_and_others_served() -> None:
    async def check(page: Scene) -> None:
        statuses = [await page.status("api/v1/run", "127.0.4.1") for _ in range(8)]
        assert statuses == [200] * 5 + [429] * 3
        assert await page.status("healthz", "127.0.4.1") == 200
        assert await page.status("api/v1/run", "127.0.4.2") == 200

    in_scene(check, replace(FEW, requests_per_second=1e-9, num_burst=5))


def test_who_sends_too_many_requests_on_one_connection_loses_it() -> None:
    """So that those sent at once are not all answered, one refusal after the other."""

    async def check(page: Scene) -> None:
        one = b"GET /api/v1/run HTTP/1.1\r\nHost: x\r\n\r\n"
        reader, _ = await page.open(one * 50, "127.0.4.3")
        answers = (await asyncio.wait_for(reader.read(), 30)).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"200"] * 5 + [b"429"]
        assert b"\r\nConnection: close\r\n" in answers[-1]
        assert b"\r\nRetry-After: 10\r\n" in answers[-1]
        await page.until(lambda: not page.num_open)

    in_scene(check, replace(FEW, requests_per_second=1e-9, num_burst=5))


LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]


def test_behind_a_proxy_those_count_whom_it_names() -> None:
    async def check(page: Scene) -> None:
        async def status(forwarded: bytes) -> int:
            head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Forwarded-For: " + forwarded + b"\r\n\r\n"
            reader, writer = await page.open(head)
            line = await asyncio.wait_for(reader.readline(), 30)
            writer.close()
            return int(line.split()[1])

        # What a visitor invents stands before what the proxy adds.
        assert [await status(b"198.51.100.%d, 203.0.113.5" % n) for n in range(4)] == [200, 200, 429, 429]
        assert await status(b"203.0.113.6") == 200
        # The proxy itself may hold all places.
        for _ in range(FEW.num_connections):
            await page.open(b"GET / HT")
        await page.until(lambda: page.num_open == FEW.num_connections)

    in_scene(check, replace(FEW, requests_per_second=1e-9, num_burst=2, num_per_address=2), proxies=LOOPBACK)


def test_behind_a_proxy_one_reader_has_a_part_of_the_streams() -> None:
    async def check(page: Scene) -> None:
        async def status(forwarded: bytes) -> int:
            reader, _ = await page.open(
                b"GET /events/stream HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: " + forwarded + b"\r\n\r\n"
            )
            return int((await asyncio.wait_for(reader.readline(), 30)).split()[1])

        assert [await status(b"203.0.113.5") for _ in range(4)] == [200, 200, 200, 503]
        assert await status(b"203.0.113.6") == 200

    in_scene(check, replace(FEW, num_connections=16), proxies=LOOPBACK)


def test_a_line_that_the_proxy_adds_below_the_visitors_counts() -> None:
    class Transport:
        def get_extra_info(self, name: str, otherwise: object = None) -> object:
            return ("127.0.0.1", 1) if name == "peername" else otherwise

    headers = CIMultiDict([("X-Forwarded-For", "198.51.100.1"), ("X-Forwarded-For", "203.0.113.5")])
    request = make_mocked_request("GET", "/", headers, transport=Transport())
    assert Doors(FEW, Clock(NOW), LOOPBACK).client_of(request) == "203.0.113.5"


@pytest.mark.parametrize(
    ("remote", "forwarded", "expected"),
    [
        ("198.51.100.7", "203.0.113.5", "198.51.100.7"),
        ("127.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("127.0.0.1", "198.51.100.1, 203.0.113.5", "203.0.113.5"),
        ("127.0.0.1", "203.0.113.5, 127.0.0.1", "203.0.113.5"),
        ("::ffff:127.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("127.0.0.1", "", ""),
        ("127.0.0.1", "unknown", ""),
        ("127.0.0.1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
    ],
)
def test_the_proxys_word_counts_and_nobody_elses(remote: str, forwarded: str, expected: str) -> None:
    class Transport:
        def get_extra_info(self, name: str, otherwise: object = None) -> object:
            return (remote, 1) if name == "peername" else otherwise

    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    request = make_mocked_request("GET", "/", headers, transport=Transport())
    assert Doors(FEW, Clock(NOW), LOOPBACK).client_of(request) == expected


def test_counted_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.server.connection_limits.MAX_CLIENTS", 40)
    doors = Doors(FEW, Clock(NOW), LOOPBACK)

    class Transport:
        def get_extra_info(self, name: str, otherwise: object = None) -> object:
            return ("127.0.0.1", 1) if name == "peername" else otherwise

    for number in range(90):
        address = str(ipaddress.ip_address(0x0A000000 + number))
        assert doors.begin(make_mocked_request("GET", "/", {"X-Forwarded-For": address}, transport=Transport()))
    assert len(doors._buckets) == 40


@given(st.integers(32, 2**20))
def test_connections_never_take_all_descriptors(max_descriptors: int) -> None:
    limits = limits_for(max_descriptors)
    assert limits.num_connections <= max_descriptors - min(256, max_descriptors // 2)
    assert 2 <= limits.num_per_address <= limits.num_connections
    assert limits.num_viewers < limits.num_connections


@given(st.text(max_size=50) | st.ip_addresses().map(str))
def test_any_text_is_an_address_or_none(text: str) -> None:
    found = client_address(text)
    assert not found or ipaddress.ip_network(found)


# --- the log ---


def record_at(
    at: float, message: str = "Error handling request from %s", error: Exception | None = None
) -> logging.LogRecord:
    info = (type(error), error, None) if error is not None else None
    record = logging.LogRecord("dashboard.http", logging.ERROR, "", 1, message, ("203.0.113.5",), info)
    record.created = at
    return record


def test_one_line_per_kind_and_minute_with_how_many_there_were() -> None:
    quiet = OncePerMinute()
    bad = BadHttpMessage("Bad status line\n  'aaa" + "a" * 5000)
    kept = [record for second in range(200) for record in [record_at(NOW + second, error=bad)] if quiet.filter(record)]
    assert len(kept) == 4
    assert all(record.exc_info is None and len(record.getMessage()) < 2 * MAX_REASON_LENGTH for record in kept)
    assert "\n" not in kept[0].getMessage()
    assert kept[1].getMessage().endswith("(and 59 more like it before)")
    # A fault of ours is told in full, whatever else there is.
    ours = record_at(NOW + 1, error=KeyError("x"))
    assert quiet.filter(ours)
    assert ours.exc_info is not None
    full = record_at(NOW + 2, "socket.accept() out of system resource\nsocket: %s", OSError(24, "Too many open files"))
    assert quiet.filter(full)
    assert full.getMessage() == "socket.accept() out of system resource: Too many open files"


# --- the real command ---
