"""The aiohttp application: page, live events, JSON API, health. Read-only: no form, no control, nothing to upload."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from dashboard.api import peers_json, rounds_json, run_json
from dashboard.assets import Assets, load_assets
from dashboard.live import RETRY_MILLISECONDS, Live
from dashboard.page import render_page
from dashboard.page_charts import render_charts
from dashboard.state import DashboardState

MAX_VIEWERS: Final = 1000
"""Open event streams; the next one is told to come back later."""
PING_SECONDS: Final = 15.0
"""Proxies commonly drop a stream that is silent for a minute."""
SEND_SECONDS: Final = 30.0
"""A viewer that takes nothing for so long is gone; it connects again if it is not."""
STALLED_SECONDS: Final = 60.0
"""A look ends within some 40 s even when every call of it times out; later than this the observer hangs."""

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

log = logging.getLogger(__name__)


@dataclass
class _Site:
    live: Live
    clock: Callable[[], float]
    assets: Assets
    num_viewers: int = 0


_SITE = web.AppKey("site", _Site)


def make_app(live: Live, *, clock: Callable[[], float] = time.time) -> web.Application:
    """The application over one `Live`; `clock` gives unix seconds."""
    app = web.Application(middlewares=[_guard], client_max_size=1024)
    app[_SITE] = _Site(live, clock, load_assets())
    app.router.add_get("/", _page)
    app.router.add_get("/events", _events)
    app.router.add_get("/healthz", _health)
    app.router.add_get("/favicon.ico", _asset)
    app.router.add_get("/assets/{name}", _asset)
    for name, as_json in (("run", run_json), ("peers", peers_json), ("rounds", rounds_json)):
        app.router.add_get(f"/api/v1/{name}", _api(as_json))
    app.on_shutdown.append(_end_streams)
    return app


@web.middleware
async def _guard(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """Security headers on every answer; errors as a JSON problem (RFC 9457) or one plain sentence."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        response = _problem(request, error.status, error.reason)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
    if not response.prepared:
        response.headers.update(SECURITY_HEADERS)
    return response


def _problem(request: web.Request, status: int, reason: str) -> web.Response:
    if request.path.startswith("/api/"):
        problem = {"type": "about:blank", "title": reason, "status": status}
        return web.json_response(problem, status=status, content_type="application/problem+json")
    return web.Response(status=status, text=f"{status} {reason}. The page is at /\n")


async def _page(request: web.Request) -> web.Response:
    site = request.app[_SITE]
    live = site.live
    html = render_page(
        live.state.run_id,
        live.sections,
        render_charts(live.history),
        now=site.clock(),
        snapshot_id=live.snapshot_id,
        assets=site.assets,
    )
    return web.Response(text=html, content_type="text/html", headers={"Cache-Control": "no-cache"})


async def _asset(request: web.Request) -> web.Response:
    name = request.match_info.get("name", "favicon.svg")
    asset = request.app[_SITE].assets.files.get(name)
    if asset is None:
        raise web.HTTPNotFound
    headers = {
        # Other names than the icon's and the licences' change with their content.
        "Cache-Control": "public, max-age=31536000, immutable" if "-" in name else "no-cache",
        "Vary": "Accept-Encoding",
    }
    content = asset.content
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        content, headers["Content-Encoding"] = asset.compressed, "gzip"
    return web.Response(body=content, content_type=asset.content_type, charset="utf-8", headers=headers)


def _api(as_json: Callable[[DashboardState], dict[str, Any]]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        content = as_json(request.app[_SITE].live.state)
        return web.json_response(content, headers={"Cache-Control": "no-cache", "Access-Control-Allow-Origin": "*"})

    return answer


async def _health(request: web.Request) -> web.Response:
    """Whether the observer still looks; what it sees is another question."""
    site = request.app[_SITE]
    state = site.live.state
    age_seconds = max(0.0, site.clock() - state.now)
    is_well = age_seconds < STALLED_SECONDS
    content = {
        "status": "ok" if is_well else "stalled",
        "phase": state.phase,
        "last_look_seconds": round(age_seconds, 1),
    }
    return web.json_response(content, status=200 if is_well else 503, headers={"Cache-Control": "no-store"})


async def _events(request: web.Request) -> web.StreamResponse:
    site = request.app[_SITE]
    live = site.live
    if live.is_closed or site.num_viewers >= MAX_VIEWERS:
        raise web.HTTPServiceUnavailable(reason="Too many viewers")
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Type": "text/event-stream"}
    response = web.StreamResponse(headers=headers | SECURITY_HEADERS)
    version = live.version_of(request.headers.get("Last-Event-ID") or request.query.get("after", ""))
    site.num_viewers += 1
    try:
        await response.prepare(request)
        await response.write(f"retry: {RETRY_MILLISECONDS}\n\n".encode())
        while not live.is_closed:
            newest = live.version
            events = live.since(version)
            async with asyncio.timeout(SEND_SECONDS):
                await response.write(events + _tick(site.clock()))
            version = newest
            await live.wait_newer(version, PING_SECONDS)
    except (ConnectionResetError, TimeoutError):
        log.debug("a viewer went away")
    finally:
        site.num_viewers -= 1
    return response


def _tick(now: float) -> bytes:
    """The server's clock, by which the page counts ages; it also keeps a silent stream open."""
    return f"event: tick\ndata: {json.dumps(round(now, 1))}\n\n".encode()


async def _end_streams(app: web.Application) -> None:
    app[_SITE].live.close()
