"""The page under those who hold connections and give nothing: slow heads, slow readers, floods, garbage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from hypothesis import given
from hypothesis import strategies as st

from dashboard.app import Serving, bound_port, start_site
from dashboard.observe.dashboard_state import fold
from dashboard.observe.listed_peers import Look
from dashboard.server.connection_bound import ConnectionBound, bound_for
from dashboard.server.handler_context import SITE
from dashboard.server.live_updates import Live
from dashboard.server.log_limits import MAX_REASON_LENGTH, OncePerMinute
from tests.kit.dashboard.records import NOW, PEERS, bare_record, history_of, record_of, state_with
from tests.kit.dashboard.serving import in_memory
from tests.kit.waiting import LOOK_SECONDS

NUM_CONNECTIONS = 8
GET = b"GET /%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LARGE = b"x" * 4_000_000
"""More than both kernels' buffers hold: of the page's side they are as small as can be."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Scene:
    """One page, and connections to it from any address of this machine."""

    def __init__(self, serving: Serving, live: Live) -> None:
        self.port = bound_port(serving)
        self.live = live
        self.site = serving.runner.app[SITE]
        self._server = serving.runner.server
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
        assert self._server is not None
        return len(self._server.connections)

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def scene(num_connections: int, **how: float) -> AsyncIterator[Scene]:
    bound = ConnectionBound(num_connections)

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=LARGE)

    async with in_memory(state_with(record_of(PEERS[0])), clock=lambda: NOW, bound=bound) as (live, app):
        app.router.add_get("/large", large)
        serving = await start_site(app, "127.0.0.1", 0, **how)
        for listening in serving.listener.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what it accepts has the same
        found = Scene(serving, live)
        try:
            yield found
        finally:
            await found.close()
            await serving.cleanup()


def in_scene(check: Callable[[Scene], Awaitable[None]], num_connections: int = NUM_CONNECTIONS, **how: float) -> None:
    async def run() -> None:
        async with scene(num_connections, **how) as found:
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

    in_scene(check, idle_seconds=0.1)


def test_when_all_places_are_taken_new_connections_are_closed_until_one_is_free() -> None:
    async def check(page: Scene) -> None:
        slow = [await page.open(b"GET / HT") for _ in range(NUM_CONNECTIONS)]
        await page.until(lambda: page.num_open == NUM_CONNECTIONS)
        assert await page.status("healthz") == 0
        slow[0][1].close()
        await page.until(lambda: page.num_open < NUM_CONNECTIONS)
        assert await page.status("healthz") == 200

    in_scene(check)


def test_streams_leave_room_for_the_page_and_are_not_closed_for_it() -> None:
    async def check(page: Scene) -> None:
        streams = []
        for _ in range(NUM_CONNECTIONS * 3 // 4):
            streams.append(await page.open(b"GET /events/stream HTTP/1.1\r\nHost: x\r\n\r\n"))
        for reader, _ in streams:
            assert b"200" in await asyncio.wait_for(reader.readline(), 30)
        assert await page.status("events/stream") == 503
        for _ in range(5):
            assert await page.status("") == 200
        assert page.site.bound.num_streams == len(streams)

    in_scene(check)


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

    in_scene(check, send_seconds=0.3)


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


@given(st.integers(32, 2**20))
def test_connections_never_take_all_descriptors(max_descriptors: int) -> None:
    bound = bound_for(max_descriptors)
    assert bound.num_connections <= max_descriptors - min(256, max_descriptors // 2)
    assert 2 <= bound.max_streams < bound.num_connections


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
