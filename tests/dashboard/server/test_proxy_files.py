"""The configuration of nginx and Caddy that organisers copy fits the server behind it."""

from __future__ import annotations

import asyncio
import gzip
import re
import shutil
import zlib
from pathlib import Path

import pytest
from aiohttp import ClientSession

from dashboard.app import Choices, bound_port, start_site
from dashboard.server.live_stream import PING_SECONDS
from tests.kit.dashboard.records import NOW, PEERS, record_of, state_with
from tests.kit.dashboard.serving import in_memory
from tests.kit.documents import ROOT
from tests.kit.processes.process_swarm import free_port

FOLDER = ROOT / "docs" / "organiser"
NGINX, CADDY = (shutil.which(name) for name in ("nginx", "caddy"))


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile"])
def test_the_proxy_asks_where_the_page_is_by_default(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert re.findall(r"127\.0\.0\.1:\d+", text) == [f"{Choices().host}:{Choices().port}"]
    assert (FOLDER / "dashboard.md").read_text(encoding="utf-8").count(f"({name})") == 1


def test_nginx_waits_longer_than_a_stream_is_silent() -> None:
    text = (FOLDER / "nginx.conf").read_text(encoding="utf-8")
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", text)
    assert int(seconds) > 2 * PING_SECONDS


@pytest.mark.skipif(CADDY is None, reason="no Caddy here")
def test_caddy_takes_its_file() -> None:
    async def run() -> None:
        assert CADDY is not None
        validate = (CADDY, "validate", "--adapter", "caddyfile", "--config", str(FOLDER / "Caddyfile"))
        process = await asyncio.create_subprocess_exec(*validate)
        assert await process.wait() == 0

    asyncio.run(run())


@pytest.mark.skipif(NGINX is None, reason="no nginx here")
def test_nginx_serves_page_and_stream_and_refuses_a_flood(tmp_path: Path) -> None:
    """The shipped file, but for its certificate and ports."""

    async def run() -> None:
        assert NGINX is not None
        async with in_memory(state_with(record_of(PEERS[0])), clock=lambda: NOW) as (_, app):
            serving = await start_site(app, "127.0.0.1", 0)
            port = free_port()
            server = (FOLDER / "nginx.conf").read_text(encoding="utf-8")
            server = re.sub(r" +(ssl_.*|listen \[.*)\n", "", server).replace("443 ssl http2", f"127.0.0.1:{port}")
            server = server.replace(":8080", f":{bound_port(serving)}")
            config = tmp_path / "nginx.conf"
            config.write_text(
                f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}}\n"
                f"http {{ access_log off; client_body_temp_path {tmp_path}; proxy_temp_path {tmp_path};\n"
                f"fastcgi_temp_path {tmp_path}; uwsgi_temp_path {tmp_path}; scgi_temp_path {tmp_path};\n{server}}}\n",
                encoding="utf-8",
            )
            process = await asyncio.create_subprocess_exec(
                NGINX, "-e", str(tmp_path / "log"), "-c", str(config), "-p", str(tmp_path)
            )
            try:
                await _check(f"http://127.0.0.1:{port}")
            finally:
                process.terminate()
                await process.wait()
                await serving.cleanup()

    asyncio.run(run())


async def _check(url: str) -> None:
    accept = {"Accept-Encoding": "gzip", "Host": "run.example.org"}
    async with asyncio.timeout(60), ClientSession(auto_decompress=False, headers=accept) as client:
        for _ in range(100):
            try:
                async with client.get(url) as answer:
                    assert b'content="http://run.example.org/"' in gzip.decompress(await answer.read())
                    break
            except OSError:
                await asyncio.sleep(0.1)  # nginx is not up yet
        async with client.get(f"{url}/events/stream") as stream:
            assert stream.headers["Content-Encoding"] == "gzip"
            reader, text = zlib.decompressobj(zlib.MAX_WBITS | 16), b""
            while b"event: tick" not in text:
                text += reader.decompress(await stream.content.readany())
        flood = [client.get(f"{url}/healthz") for _ in range(600)]
        statuses = {answer.status for answer in await asyncio.gather(*flood)}
        assert statuses == {200, 429}
