"""Live updates over HTTP: one stream of events for each viewer, disconnected when it reads too slowly."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Final

from aiohttp import web

from dashboard.server.connection_bound import SEND_SECONDS
from dashboard.server.handler_context import SITE
from dashboard.server.live_updates import RETRY_MILLISECONDS
from dashboard.server.middleware import SECURITY_HEADERS

PING_SECONDS: Final = 15.0
"""Proxies commonly drop a stream that is silent for a minute."""

log = logging.getLogger(__name__)


async def send_events(request: web.Request) -> web.StreamResponse:
    """Send changes of the page as server-sent events, until the viewer leaves or reads nothing for too long."""
    site = request.app[SITE]
    live = site.live
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Type": "text/event-stream"}
    tab, is_whole = request.query.get("tab", ""), request.query.get("whole", "") == "1"
    response = web.StreamResponse(headers=headers | SECURITY_HEADERS)
    version = live.version_of(request.headers.get("Last-Event-ID") or request.query.get("after", ""))
    if live.is_closed or site.bound.num_streams >= site.bound.max_streams:
        raise web.HTTPServiceUnavailable(reason="Too many viewers")
    site.bound.num_streams += 1
    try:
        await response.prepare(request)
        await response.write(f"retry: {RETRY_MILLISECONDS}\n\n".encode())
        while not live.is_closed:
            newest = live.version
            piece = live.since(version, tab, is_whole=is_whole) + _tick(site.clock())
            is_whole = False
            async with asyncio.timeout(SEND_SECONDS):
                await response.write(piece)
            version = newest
            await live.wait_newer(version, PING_SECONDS)
    except (ConnectionResetError, TimeoutError):
        log.debug("a viewer disconnected")
        request.protocol.force_close()
    finally:
        site.bound.num_streams -= 1
    return response


def _tick(now: float) -> bytes:
    """Return an event with the server's time, from which the page computes ages; it also keeps a quiet stream open."""
    return f"event: tick\ndata: {json.dumps(round(now, 1))}\n\n".encode()


async def end_streams(app: web.Application) -> None:
    """End the streams of all viewers."""
    app[SITE].live.close()
