"""Pages about one person (profile and certificate), and preview pictures for links."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from aiohttp import web

from dashboard.history_facts import ContributorView
from dashboard.page.contributor import render_certificate, render_contributor, shown_name
from dashboard.page.environment import contributor_path
from dashboard.page.page import Frame
from dashboard.people.ranking_words import share_words
from dashboard.server.api_routes import find_contributor
from dashboard.server.handler_context import SITE, Site, html_answer
from dashboard.share.card_text import Card
from dashboard.share.page_address import is_for_others, origin_of
from dht.ground.quantities import plural, words_text
from dht.identity.speakable import speakable_name

CACHED_SECONDS: Final = 60
"""Time for which caches may show an old picture."""


def add_person_routes(app: web.Application) -> None:
    """Add all addresses of this module."""
    app.router.add_get("/c/{id}", _contributor)
    app.router.add_get("/c/{id}/certificate", _certificate)
    app.router.add_get("/card/{name}.png", _card)


def frame_of(request: web.Request, path: str, card: str, snapshot_id: str = "") -> Frame:
    """Return the frame of the page at `path`; a private page has no public picture."""
    site = request.app[SITE]
    scheme = request.headers.get("X-Forwarded-Proto", request.scheme)
    origin = origin_of(site.page_address, scheme, request.headers.get("Host", ""))
    origin = origin and origin + site.base
    is_public = site.access is None
    return Frame(
        site.clock(),
        site.assets,
        snapshot_id,
        origin,
        path,
        image=f"/card/{card}.png" if is_public else "",
        is_for_others=is_public and is_for_others(origin),
    )


async def _contributor(request: web.Request) -> web.Response:
    site = request.app[SITE]
    view = await _view(request)
    row, key = view.row, quote(view.row.contributor_id, safe="")
    frame = frame_of(request, contributor_path(row.contributor_id), key, site.live.snapshot_id)
    return html_answer(render_contributor(site.live.state, view, frame, site.live.history.contributors))


async def _certificate(request: web.Request) -> web.Response:
    site = request.app[SITE]
    view = await _view(request)
    key = quote(view.row.contributor_id, safe="")
    frame = frame_of(request, f"/c/{key}/certificate", key)
    return html_answer(render_certificate(site.live.state, view, frame))


async def _card(request: web.Request) -> web.Response:
    site = request.app[SITE]
    name = request.match_info["name"]
    if name == "run":
        card = _run_card(site)
    else:
        view = await find_contributor(site, name)
        if view is None:
            raise web.HTTPNotFound
        name, card = view.row.contributor_id, _person_card(site, view)
    # The key includes the title, so that no stored picture shows a withdrawn name.
    png = await site.card(f"{name} {card.title}", card)
    headers = {"Cache-Control": f"public, max-age={CACHED_SECONDS}"} if site.access is None else {}
    return web.Response(body=png, content_type="image/png", headers=headers)


def _run_card(site: Site) -> Card:
    state, history = site.live.state, site.live.history
    name = state.run_id.partition(".")[0]
    what = state.run.what if state.run is not None else ""
    people = f"by {plural(history.num_people, 'person')}" if history.num_people else ""
    facts = " \u00b7 ".join(part for part in (people, what) if part)
    losses = [point.validation_loss for point in history.points if point.validation_loss is not None]
    if len(losses) < 2:
        losses = [point.train_loss for point in history.points if point.train_loss is not None]
    return Card(name, "A run", "Trained together", f"{words_text(state.view.committed_tokens)} tokens", facts, losses)


def _person_card(site: Site, view: ContributorView) -> Card:
    row = view.row
    place = f"rank {row.rank} of {max(view.num_ranked, row.rank)}" if row.rank else ""
    parts = (place, share_words(row.share), plural(row.rounds, "round"))
    return Card(
        title=shown_name(row),
        otherwise=speakable_name(row.contributor_id),
        run=site.live.state.run_id.partition(".")[0],
        figure=f"{words_text(row.tokens_witnessed)} tokens",
        facts=" \u00b7 ".join(part for part in parts if part),
        curve=[point.tokens_witnessed for point in view.curve],
    )


async def _view(request: web.Request) -> ContributorView:
    view = await find_contributor(request.app[SITE], request.match_info["id"])
    if view is None:
        raise web.HTTPNotFound
    return view
