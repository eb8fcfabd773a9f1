"""The API over HTTP: queries are checked, answers are made once for each observation, and proofs are sent in pieces."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, get_type_hints

from aiohttp import web
from pydantic import BaseModel

from dashboard.credit.work_log import curve_of, leaders_of
from dashboard.history_facts import ContributorRow, ContributorView
from dashboard.server import api_answers
from dashboard.server.api_queries import ID_PATTERN, PREFIX, BadQuery, Endpoint, Query, openapi, read_query
from dashboard.server.connection_bound import SEND_SECONDS
from dashboard.server.handler_context import SITE, Site, problem
from dashboard.server.metrics import CONTENT_TYPE, metrics_text

MAX_DOWNLOADS: Final = 8
"""Concurrent downloads of proofs; each reads the file page by page as fast as its reader receives it."""
RECENT_ROUNDS: Final = 20

_ID = re.compile(ID_PATTERN)

log = logging.getLogger(__name__)


def add_api(app: web.Application) -> None:
    """Add all endpoints, `/metrics`, and the preflight requests of browsers for other pages' scripts."""
    for endpoint in ENDPOINTS:
        app.router.add_get(PREFIX + endpoint.path, _checked(endpoint))
        app.router.add_route("OPTIONS", PREFIX + endpoint.path, _preflight)
    app.router.add_get("/metrics", _metrics)


async def find_contributor(site: Site, contributor_id: str) -> ContributorView | None:
    """Return a contributor with curve and newest rounds, or None."""
    row = find_row(site, contributor_id)
    if row is None:
        return None
    logs = site.history.ledger.logs_of(row)
    by_rank = {one.rank: one for one in site.live.history.contributors if one.rank}
    view = ContributorView(
        row,
        num_ranked=len(by_rank),
        days=site.history.ledger.days_of(machine.peer_id for machine in row.machines),
        above=by_rank.get(row.rank - 1),
        below=by_rank.get(row.rank + 1) if row.rank else None,
    )
    if not logs:
        return view
    return replace(
        view,
        curve=tuple(curve_of(logs, row.first_at, site.live.state.now)),
        rounds=tuple(await site.history.rounds_of(logs, RECENT_ROUNDS)),
        num_witnesses=len(leaders_of(logs).difference(machine.peer_id for machine in row.machines)),
    )


def find_row(site: Site, contributor_id: str) -> ContributorRow | None:
    """Return a contributor by its id or by one of its machines."""
    return site.live.history.contributor(contributor_id) if _ID.fullmatch(contributor_id) else None


def cors(site: Site) -> dict[str, str]:
    """Return headers that let all other pages read a public page's data, and none read a private page's."""
    return {} if site.access is not None else {"Access-Control-Allow-Origin": "*"}


def _checked(endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            query = read_query(endpoint.query, request.query.items())
        except BadQuery as error:
            return problem(request, 400, "Bad Request", str(error))
        return await endpoint.handler(request, query)

    return answer


async def _preflight(request: web.Request) -> web.Response:
    headers = cors(request.app[SITE])
    if headers:
        headers |= {
            "Access-Control-Allow-Methods": "GET, HEAD",
            "Access-Control-Max-Age": "86400",
        }
    return web.Response(status=204, headers={"Allow": "GET, HEAD, OPTIONS"} | headers)


def _json(make: Callable[[Site, Any], Awaitable[BaseModel]]) -> Endpoint:
    """Return an endpoint named after the function, described by its docstring and annotations."""
    name, hints = make.__name__, get_type_hints(make)

    async def handler(request: web.Request, query: Query) -> web.StreamResponse:
        site = request.app[SITE]
        return await _respond(request, f"{request.path} {query!r}", lambda: make(site, query))

    return Endpoint(name, f"/{name}", str(make.__doc__), handler, hints["return"], hints["query"])


async def _respond(
    request: web.Request, key: str, make: Callable[[], Awaitable[BaseModel | str]]
) -> web.StreamResponse:
    site = request.app[SITE]
    content = await site.answer(key, make)
    response = web.Response(body=content, content_type="application/json", charset="utf-8", headers=cors(site))
    response.headers["Cache-Control"] = "no-cache"
    response.enable_compression()
    return response


async def _contributor(request: web.Request, query: Query) -> web.StreamResponse:
    site = request.app[SITE]
    view = await find_contributor(site, request.match_info["id"])
    if view is None:
        return _nobody(request)

    async def make() -> api_answers.ContributorPage:
        return api_answers.contributor(site, view)

    return await _respond(request, request.path, make)


async def _proof(request: web.Request, query: Query) -> web.StreamResponse:
    site = request.app[SITE]
    row = find_row(site, request.match_info["id"])
    if row is None:
        return _nobody(request)
    logs = site.history.ledger.logs_of(row)
    if not logs:
        return problem(request, 404, "Not Found", "no signed commit contains this contributor yet; try again later")
    if site.num_downloads >= MAX_DOWNLOADS:
        return problem(request, 503, "Busy", f"{site.num_downloads} downloads are in progress; try again in a minute")
    headers = cors(site) | {
        "Content-Type": "application/jsonl",
        "Content-Disposition": f'attachment; filename="proof-{row.contributor_id[-8:]}.jsonl"',
        "Cache-Control": "no-store",
    }
    response = web.StreamResponse(headers=headers)
    site.num_downloads += 1
    try:
        async for raw in site.history.proof(logs):
            if not response.prepared:
                await response.prepare(request)
            async with asyncio.timeout(SEND_SECONDS):
                await response.write(f"{site.proof_line(raw)}\n".encode())
            if site.live.is_closed:
                break
    except (ConnectionResetError, TimeoutError):
        log.debug("a reader disconnected")
        request.protocol.force_close()
    finally:
        site.num_downloads -= 1
    return response


async def _openapi(request: web.Request, query: Query) -> web.StreamResponse:
    async def make() -> str:
        return json.dumps(openapi(ENDPOINTS), separators=(",", ":"))

    return await _respond(request, "openapi", make)


async def _metrics(request: web.Request) -> web.Response:
    site = request.app[SITE]
    return web.Response(body=metrics_text(site), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


def _nobody(request: web.Request) -> web.Response:
    got = f"{request.match_info['id'][:40]!a}"
    detail = f"no contributor has the key {got}; expected a key from /api/v1/contributors"
    return problem(request, 404, "Not Found", detail)


_JSONL: Final = "application/jsonl"
_PROOF: Final = "The signed commits behind a contributor's credit, one JSON object per line."
_PAGE: Final = "One contributor: machines, curve and newest rounds."

ENDPOINTS: Final = (
    *(
        _json(api_answers.run),
        _json(api_answers.join),
        _json(api_answers.peers),
        _json(api_answers.rounds),
        _json(api_answers.contributors),
    ),
    Endpoint("contributor", "/contributors/{id}", _PAGE, _contributor, api_answers.ContributorPage),
    Endpoint("proof", "/contributors/{id}/proof", _PROOF, _proof, media_type=_JSONL),
    *(
        _json(api_answers.points),
        _json(api_answers.samples),
        _json(api_answers.evaluations),
    ),
    Endpoint("openapi", "/openapi.json", "This description.", _openapi),
)
