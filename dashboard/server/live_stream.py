"""Live updates over HTTP: one stream of events for each viewer, cut off where nobody reads it."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Final

from aiohttp import web

from dashboard.server.handler_context import SITE
from dashboard.server.live_updates import RETRY_MILLISECONDS
from dashboard.server.middleware import SECURITY_HEADERS
from dashboard.server.shared_compression import HEAD, PackedEnd, packed

MAX_VIEWERS: Final = 2000
"""Open event streams; the next one is told to come back later. `benchmarks/bench_dashboard.py` measures 1000. With few
descriptors there are less (`DoorLimits.num_viewers`)."""
PING_SECONDS: Final = 15.0
"""Proxies commonly drop a stream that is silent for a minute."""
SEND_SECONDS: Final = 30.0
"""A viewer that takes nothing for this long is gone; it connects again if it is not."""

log = logging.getLogger(__name__)


async def send_events(request: web.Request) -> web.StreamResponse:
    """What changes on the page, as server-sent events, until the viewer goes or takes nothing for too long."""
    site = request.app[SITE]
    live = site.live
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Type": "text/event-stream"}
    headers["Vary"] = "Accept-Encoding"
    is_packed = "gzip" in request.headers.get("Accept-Encoding", "")
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    tab, end = request.query.get("tab", ""), PackedEnd()
    is_whole = request.query.get("whole", "") == "1"
    response = web.StreamResponse(headers=headers | SECURITY_HEADERS)
    version = live.version_of(request.headers.get("Last-Event-ID") or request.query.get("after", ""))
    doors, stream = site.doors, request.transport
    most = min(MAX_VIEWERS, doors.limits.num_viewers)
    if live.is_closed or stream is None or not doors.viewers.admit(doors.client_of(request), stream, most):
        raise web.HTTPServiceUnavailable(reason="Too many viewers")
    try:
        await response.prepare(request)
        first = f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        await response.write(HEAD + packed(first) if is_packed else first)
        end.took(first)
        while not live.is_closed:
            newest = live.version
            (events, packed_events), tick = live.since(version, tab, is_whole=is_whole), _tick(site.clock())
            piece = packed_events + packed(tick) if is_packed else events + tick
            is_whole = False
            async with asyncio.timeout(SEND_SECONDS):
                await response.write(piece)
            end.took(events)
            end.took(tick)
            version = newest
            await live.wait_newer(version, PING_SECONDS)
        if is_packed:
            await response.write(end.tail())
    except (ConnectionResetError, TimeoutError):
        log.debug("a viewer went away")
    finally:
        doors.viewers.leave(stream)
    return response


def _tick(now: float) -> bytes:
    """The server's clock, by which the page counts ages; it also keeps a silent stream open."""
    return f"event: tick\ndata: {json.dumps(round(now, 1))}\n\n".encode()


async def end_streams(app: web.Application) -> None:
    """Every viewer's stream ends."""
    app[SITE].live.close()
