"""Several runs behind one address: an index at ``/``, and each run's own pages below ``/r/RUN/``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from dashboard.server.handler_context import SITE, Site, html_answer
from dashboard.server.middleware import guarded
from dashboard.server.routes import send_asset
from dashboard.several_runs.cards import RunCard, card_of, render_index, run_path

SITES: Final = web.AppKey("sites", tuple[Site, ...])
MISSING: Final = web.AppKey("missing", tuple[RunCard, ...])


def make_index(apps: Sequence[web.Application], missing: Mapping[str, str]) -> web.Application:
    """One application of several, each made by `make_app` with the base `run_path` of its run.

    Args:
        missing: by run id, why a run cannot be shown.
    """
    root = web.Application(middlewares=[_guard], client_max_size=1024)
    # Bound and access are one for all runs.
    root[SITE] = apps[0][SITE]
    root[SITES] = tuple(app[SITE] for app in apps)
    root[MISSING] = tuple(
        RunCard(run_id, "", run_id.partition(".")[0], problem=problem) for run_id, problem in missing.items()
    )
    root.router.add_get("/", _index)
    root.router.add_get("/api/v1/runs", _runs)
    root.router.add_get("/healthz", _health)
    root.router.add_get("/favicon.ico", send_asset)
    root.router.add_get("/assets/{name}", send_asset)
    for app in apps:
        root.add_subapp(run_path(app[SITE].live.state.run_id) + "/", app)
    return root


def _cards(request: web.Request) -> list[RunCard]:
    watched = [card_of(site.live.state, site.live.history) for site in request.app[SITES]]
    return [*watched, *request.app[MISSING]]


@web.middleware
async def _guard(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    # A run's own application guards its own pages.
    if request.path.startswith("/r/"):
        return await handler(request)
    return await guarded(request, handler, request.app[SITE])


async def _index(request: web.Request) -> web.Response:
    return html_answer(render_index(_cards(request), request.app[SITE].frame))


async def _runs(request: web.Request) -> web.Response:
    return web.json_response({"runs": [asdict(card) for card in _cards(request)]})


async def _health(request: web.Request) -> web.Response:
    """Well while every run that is shown is looked at and written; each has a /healthz of its own."""
    well = [site.is_well for site in request.app[SITES]]
    content = {"status": "ok" if all(well) else "stalled", "runs_well": sum(well), "runs": len(well)}
    return web.json_response(content, status=200 if all(well) else 503)
