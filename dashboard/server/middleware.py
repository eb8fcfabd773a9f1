"""Middleware of all handlers: access, security headers, and errors as answers (401, 503 and others)."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from dashboard.page.page import rooted
from dashboard.server.handler_context import SITE, Site, problem
from dashboard.server.page_access import OPEN_PATHS

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


log = logging.getLogger(__name__)


@web.middleware
async def guard(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """Refuse unauthorised readers, add security headers, and turn errors into a JSON problem (RFC 9457) or a
    sentence.
    """
    if request.match_info.apps[-1] is not request.app:
        return await handler(request)  # the sub-application guards its own pages
    return await guarded(request, handler, request.app[SITE])


async def guarded(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], site: Site
) -> web.StreamResponse:
    """Do the same for a page of `site`."""
    response = _admitted(request, site)
    if response is None:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = problem(request, error.status, error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except sqlite3.Error as error:
            log.warning("the history cannot be read: %s", error)
            detail = "the history cannot be read at present; the page itself still works"
            response = problem(request, 503, "Service Unavailable", detail)
    site.num_requests[f"{response.status // 100}xx"] += 1
    if not response.prepared:
        response.headers.update(SECURITY_HEADERS)
        if site.base and isinstance(response, web.Response):
            return _rooted(response, site.base)
    return response


def _rooted(response: web.Response, base: str) -> web.Response:
    """Return the response with links and redirects below `base`."""
    place = response.headers.get("Location", "")
    if place.startswith("/") and not place.startswith(f"{base}/"):
        response.headers["Location"] = base + place
    if response.content_type != "text/html" or response.text is None:
        return response
    headers = {name: value for name, value in response.headers.items() if not name.startswith("Content-T")}
    again = web.Response(
        text=rooted(response.text, base), status=response.status, content_type="text/html", headers=headers
    )
    again.enable_compression()
    return again


def _path(request: web.Request, site: Site) -> str:
    return request.path.removeprefix(site.base)


def _admitted(request: web.Request, site: Site) -> web.StreamResponse | None:
    """Return None to continue, or the answer to a stranger, or the exchange of a token for a cookie."""
    if site.access is None or _path(request, site) in OPEN_PATHS:
        return None
    if not site.access.allows(request):
        detail = "this page is private; open it with ?token=TOKEN once, or send the header Authorization: Bearer TOKEN"
        response = problem(request, 401, "Unauthorized", detail)
        response.headers["WWW-Authenticate"] = "Bearer"
        return response
    return site.access.exchange(request)
