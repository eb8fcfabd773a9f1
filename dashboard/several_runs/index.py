"""Several runs behind one address: an index at ``/``, and the pages of each run below ``/r/RUN/``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from aiohttp import web

from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState, Phase
from dashboard.page.goal_progress import progress_of
from dashboard.page.page import Frame, document
from dashboard.server.handler_context import SITE, Site, html_answer
from dashboard.server.middleware import guarded
from dashboard.server.routes import send_asset

PHASE_WORDS: Final = {"no run": "run not found", "looking": "looking for the swarm", "empty": "waiting for people"}


@dataclass(frozen=True, slots=True)
class RunCard:
    """A run on the index."""

    run_id: str
    path: str
    """Path of its page; empty: it has none."""
    name: str
    phase: Phase = "starting"
    what: str = ""
    description: str = ""
    """Description by its owner."""
    tokens: int = 0
    """Committed so far."""
    num_people: int = 0
    validation_loss: float | None = None
    loss_unit: str = ""
    share: float | None = None
    """Share of the way to its goal; None: no goal."""
    problem: str = ""
    """Why the run is not observed, as a sentence."""


SITES: Final = web.AppKey("sites", tuple[Site, ...])
MISSING: Final = web.AppKey("missing", tuple[RunCard, ...])


def run_path(run_id: str) -> str:
    """Return the path of a run's page on a server with several runs, without a slash at the end."""
    return f"/r/{run_id}"


def card_of(state: DashboardState, history: HistoryView) -> RunCard:
    """Return the card of an observed run."""
    progress, view = progress_of(state, history), state.view
    return RunCard(
        run_id=state.run_id,
        path=f"{run_path(state.run_id)}/",
        name=state.run_id.partition(".")[0],
        phase=state.phase,
        what=state.run.what if state.run is not None else "",
        description=state.run.description if state.run is not None else "",
        tokens=view.committed_tokens,
        num_people=history.num_people,
        validation_loss=None if view.evaluation is None else view.evaluation.loss,
        loss_unit=state.run.loss_unit if state.run is not None else "",
        share=None if progress is None else progress.share,
        problem=state.problem,
    )


def render_index(runs: Sequence[RunCard], frame: Frame) -> str:
    """Return the whole index page."""
    return document("index.html", {"runs": runs, "phase_words": PHASE_WORDS, "stream_path": ""}, frame)


def make_index(apps: Sequence[web.Application], missing: Mapping[str, str]) -> web.Application:
    """Combine several applications, each made by `make_app` with the base `run_path` of its run.

    Args:
        missing: reason by run id for runs that cannot be shown.
    """
    root = web.Application(middlewares=[_guard], client_max_size=1024)
    # Limits and access are the same for all runs.
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
    # A run's application guards its own pages.
    if request.path.startswith("/r/"):
        return await handler(request)
    return await guarded(request, handler, request.app[SITE])


async def _index(request: web.Request) -> web.Response:
    return html_answer(render_index(_cards(request), request.app[SITE].frame))


async def _runs(request: web.Request) -> web.Response:
    return web.json_response({"runs": [asdict(card) for card in _cards(request)]})


async def _health(request: web.Request) -> web.Response:
    """Return success while all displayed runs are observed and written; each run also has its own /healthz."""
    well = [site.is_well for site in request.app[SITES]]
    content = {"status": "ok" if all(well) else "stalled", "runs_well": sum(well), "runs": len(well)}
    return web.json_response(content, status=200 if all(well) else 503)
