"""The API over HTTP: queries are checked against `api_schema`, answers are made once per look."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from dashboard.facts import ContributorRow, ContributorView, HistoryPoint
from dashboard.history.trend import thinned
from dashboard.server import api
from dashboard.server.api_schema import ENDPOINTS, ID_PATTERN, PREFIX, BadQuery, Endpoint, openapi, read_query
from dashboard.server.exporting import contributors_csv, export_lines
from dashboard.server.metrics import CONTENT_TYPE
from dashboard.server.site import SITE, Site, problem, respond

MAX_DOWNLOADS: Final = 8
"""Proofs and exports under way; each reads the file page by page as fast as its reader takes it."""
MAX_DOWNLOADS_EACH: Final = 2
"""Of them, for one address."""
SEND_SECONDS: Final = 30.0
"""A reader that takes nothing for so long is gone."""
RECENT_ROUNDS: Final = 20

_ID = re.compile(ID_PATTERN)

log = logging.getLogger(__name__)

Values = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_api(app: web.Application) -> None:
    """Every address of the table, `/metrics`, and what a browser asks before it asks another page's API."""
    for endpoint in ENDPOINTS:
        app.router.add_get(PREFIX + endpoint.path, _checked(endpoint, _HANDLERS[endpoint.name]))
        app.router.add_route("OPTIONS", PREFIX + endpoint.path, _preflight)
    app.router.add_get("/metrics", _metrics)


async def find_contributor(site: Site, contributor_id: str) -> ContributorView | None:
    """A contributor with curve and newest rounds; None: there is none."""
    row = find_row(site, contributor_id)
    if row is None or site.history is None or site.reader is None:
        return None if row is None else ContributorView(row)
    nums = site.history.machine_nums(row)
    if not nums:
        return ContributorView(row)
    curve = await site.reader.curve(nums)
    rounds = await site.reader.rounds_of(nums, RECENT_ROUNDS)
    return ContributorView(row, tuple(curve), tuple(rounds))


def find_row(site: Site, contributor_id: str) -> ContributorRow | None:
    """A contributor by its id or by one of its machines."""
    if not _ID.fullmatch(contributor_id):
        return None
    if site.history is not None:
        return site.history.contributor(contributor_id)
    rows = site.live.history.contributors
    return next((row for row in rows if row.contributor_id == contributor_id), None)


def _checked(endpoint: Endpoint, handler: Callable[[web.Request, Values], Awaitable[web.StreamResponse]]) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            values = read_query(endpoint, list(request.query.items()))
        except BadQuery as error:
            return problem(request, 400, "Bad Request", str(error))
        return await handler(request, values)

    return answer


def cors(site: Site) -> dict[str, str]:
    """A public page's figures may be read by any other page; a private page's by none."""
    return {} if site.access is not None else {"Access-Control-Allow-Origin": "*"}


async def _preflight(request: web.Request) -> web.Response:
    headers = cors(request.app[SITE])
    if headers:
        headers |= {
            "Access-Control-Allow-Methods": "GET, HEAD",
            "Access-Control-Allow-Headers": "If-None-Match",
            "Access-Control-Max-Age": "86400",
        }
    return web.Response(status=204, headers={"Allow": "GET, HEAD, OPTIONS"} | headers)


def _json(make: Callable[[Site, Values], Awaitable[dict[str, Any]]]) -> Callable[..., Awaitable[web.StreamResponse]]:
    async def handler(request: web.Request, values: Values) -> web.StreamResponse:
        site = request.app[SITE]
        key = json.dumps([request.path, values], sort_keys=True)
        answer = await site.answer(key, lambda: make(site, values))
        return respond(request, answer, cors(site) | {"Access-Control-Expose-Headers": "ETag"})

    return handler


async def _run(site: Site, values: Values) -> dict[str, Any]:
    return api.run_json(site.live.state, site.live.history)


async def _peers(site: Site, values: Values) -> dict[str, Any]:
    return api.peers_json(site.live.state)


async def _rounds(site: Site, values: Values) -> dict[str, Any]:
    limit, before = values["limit"], values["before"]
    state = site.live.state
    found = await site.reader.rounds(limit, before) if site.reader is not None else []
    answer = api.rounds_json(state, found, limit)
    if not found and before is None:
        answer["rounds"] = api.reported_rounds(state, limit)
    return answer


async def _contributors(site: Site, values: Values) -> dict[str, Any]:
    return api.contributors_json(site.live.state, site.live.history, **values)


async def _fragments(site: Site, values: Values) -> dict[str, Any]:
    return api.fragments_json(site.live.state, site.live.history)


async def _events(site: Site, values: Values) -> dict[str, Any]:
    after = values["after"]
    found = await site.reader.events(after, values["limit"]) if site.reader is not None else []
    return api.events_json(site.live.state, found, after)


async def _points(site: Site, values: Values) -> dict[str, Any]:
    points: list[HistoryPoint] = list(thinned(site.live.history.points, values["max"]))
    if site.reader is not None and values["max"] > len(points):
        points = await site.reader.points(0.0, values["max"]) or points
    return api.points_json(site.live.state, site.live.history, points, values["x"])


async def _contributor(request: web.Request, values: Values) -> web.StreamResponse:
    site = request.app[SITE]
    contributor_id = request.match_info["id"]
    view = await find_contributor(site, contributor_id)
    if view is None:
        return _nobody(request, contributor_id)

    async def make() -> dict[str, Any]:
        return api.contributor_page_json(site.live.state, view)

    answer = await site.answer(request.path, make)
    return respond(request, answer, cors(site) | {"Access-Control-Expose-Headers": "ETag"})


async def _proof(request: web.Request, values: Values) -> web.StreamResponse:
    site = request.app[SITE]
    contributor_id = request.match_info["id"]
    row = find_row(site, contributor_id)
    if row is None:
        return _nobody(request, contributor_id)
    nums = site.history.machine_nums(row) if site.history is not None else []
    if site.reader is None or not nums:
        return problem(request, 404, "Not Found", "no signed commit names this contributor yet; look again later")
    reader = site.reader

    async def lines() -> AsyncIterator[bytes]:
        waiting: list[str] = []
        async for raw in reader.proof(nums):
            waiting.append(site.proof_line(raw))
            if len(waiting) == 100:
                yield ("\n".join(waiting) + "\n").encode()
                waiting.clear()
        yield "".join(f"{line}\n" for line in waiting).encode()

    return await _download(request, lines(), "application/jsonl", f"proof-{row.contributor_id[-8:]}.jsonl")


async def _export_csv(request: web.Request, values: Values) -> web.StreamResponse:
    site = request.app[SITE]
    table = site.csv(lambda: contributors_csv(site.live.history.contributors))
    headers = cors(site) | {"Content-Disposition": 'attachment; filename="contributors.csv"'}
    return web.Response(body=table, content_type="text/csv", charset="utf-8", headers=headers)


async def _export_jsonl(request: web.Request, values: Values) -> web.StreamResponse:
    site = request.app[SITE]
    lines = export_lines(site.live.state, site.live.history, site.reader)
    return await _download(request, lines, "application/jsonl", "history.jsonl")


async def _openapi(request: web.Request, values: Values) -> web.StreamResponse:
    site = request.app[SITE]

    async def make() -> dict[str, Any]:
        return openapi()

    return respond(request, await site.answer("openapi", make), cors(site))


async def _metrics(request: web.Request) -> web.Response:
    text = request.app[SITE].metrics.text()
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


async def _download(
    request: web.Request, chunks: AsyncIterator[bytes], content_type: str, name: str
) -> web.StreamResponse:
    site = request.app[SITE]
    client = site.client_of(request)
    if site.downloads.total() >= MAX_DOWNLOADS or (client and site.downloads[client] >= MAX_DOWNLOADS_EACH):
        detail = f"{site.downloads.total()} downloads are under way, {site.downloads[client]} of them yours"
        return problem(request, 503, "Busy", f"{detail}; try again in a minute")
    headers = cors(site) | {
        "Content-Type": content_type,
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
    }
    response = web.StreamResponse(headers=headers)
    site.downloads[client] += 1
    try:
        async for chunk in chunks:
            if not response.prepared:
                await response.prepare(request)
            async with asyncio.timeout(SEND_SECONDS):
                await response.write(chunk)
            if site.live.is_closed:
                break
    except (ConnectionResetError, TimeoutError):
        log.debug("a reader went away")
        request.protocol.force_close()
    finally:
        site.downloads[client] -= 1
        if not site.downloads[client]:
            del site.downloads[client]
    return response


def _nobody(request: web.Request, contributor_id: str) -> web.Response:
    detail = f"nobody is known as {contributor_id[:40]!a}; expected a key that /api/v1/contributors lists"
    return problem(request, 404, "Not Found", detail)


_HANDLERS: Final[dict[str, Callable[[web.Request, Values], Awaitable[web.StreamResponse]]]] = {
    "run": _json(_run),
    "peers": _json(_peers),
    "rounds": _json(_rounds),
    "contributors": _json(_contributors),
    "contributor": _contributor,
    "proof": _proof,
    "fragments": _json(_fragments),
    "events": _json(_events),
    "points": _json(_points),
    "export.csv": _export_csv,
    "export.jsonl": _export_jsonl,
    "openapi": _openapi,
}
