"""The aiohttp application: page, live events, JSON API, health. Read-only: no forms, controls or uploads."""

from __future__ import annotations

from aiohttp import web

from dashboard.page.page import STREAM_PATH, render_page
from dashboard.page.ranking import render_people
from dashboard.server.api_queries import BadQuery, ContributorsQuery, PageQuery, read_query
from dashboard.server.api_routes import add_api
from dashboard.server.contributor_search import found_contributors
from dashboard.server.handler_context import SITE, Site, html_answer, problem
from dashboard.server.live_stream import end_streams, send_events
from dashboard.server.middleware import guard
from dashboard.server.person_routes import add_person_routes, frame_of


def make_app(site: Site) -> web.Application:
    """Return the application of one `Site`, at the root."""
    app = web.Application(middlewares=[guard], client_max_size=1024)
    app[SITE] = site
    app.router.add_get("/", _page)
    app.router.add_get("/people", _people)
    app.router.add_get("/events", send_events)
    app.router.add_get(STREAM_PATH, send_events)
    app.router.add_get("/healthz", _health)
    app.router.add_get("/favicon.ico", send_asset)
    app.router.add_get("/assets/{name}", send_asset)
    add_person_routes(app)
    add_api(app)
    app.on_shutdown.append(end_streams)
    return app


def also_below_its_base(app: web.Application) -> web.Application:
    """Return `app` at the root and below its site's base: a reverse proxy may remove the path or keep it."""
    site = app[SITE]
    if site.base:
        app.add_subapp(f"{site.base}/", make_app(site))
    return app


async def _page(request: web.Request) -> web.Response:
    site = request.app[SITE]
    live = site.live
    try:
        # Links by others may have further parameters, and the script has its own.
        known = ((name, text) for name, text in request.query.items() if name in PageQuery.model_fields)
        query = read_query(PageQuery, known)
    except BadQuery as error:
        return problem(request, 400, "Bad Request", str(error))
    html = render_page(
        live.state,
        live.sections,
        live.history,
        frame_of(request, "/", "run", live.snapshot_id),
        tab=query.tab,
        found=await _found(site, query) if query.is_asking else None,
    )
    return html_answer(html)


async def _people(request: web.Request) -> web.Response:
    """Return the contributors of a search or sorting as HTML; made once for each observation."""
    site = request.app[SITE]
    try:
        query = read_query(ContributorsQuery, request.query.items())
    except BadQuery as error:
        return problem(request, 400, "Bad Request", str(error))

    return html_answer(await _found(site, query))


async def _found(site: Site, query: ContributorsQuery) -> str:
    asked = query.model_dump(include=set(ContributorsQuery.model_fields))

    async def make() -> str:
        history = site.live.history
        return render_people(site.live.state, found_contributors(history, query), history, now=site.clock(), **asked)

    return (await site.answer(f"people {asked}", make)).decode()


async def send_asset(request: web.Request) -> web.Response:
    name = request.match_info.get("name", "favicon.svg")
    asset = request.app[SITE].assets.files.get(name)
    if asset is None:
        raise web.HTTPNotFound
    headers = {
        # All names except those of the icon and the licences change with their content.
        "Cache-Control": "public, max-age=31536000, immutable" if "-" in name else "no-cache",
        "Vary": "Accept-Encoding",
    }
    content = asset.content
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        content, headers["Content-Encoding"] = asset.compressed, "gzip"
    return web.Response(body=content, content_type=asset.content_type, charset="utf-8", headers=headers)


async def _health(request: web.Request) -> web.Response:
    """Return whether the observer is running and the history is written, whatever the state of the run."""
    site = request.app[SITE]
    state = site.live.state
    is_writing = not site.history.problem
    is_well = site.is_well
    status = "ok" if is_well else "stalled" if is_writing else "history not written"
    content: dict[str, object] = {"status": status}
    if site.access is None or site.access.allows(request):
        content |= {"phase": state.phase, "last_look_seconds": round(site.look_age_seconds, 1)}
    return web.json_response(content, status=200 if is_well else 503, headers={"Cache-Control": "no-store"})
