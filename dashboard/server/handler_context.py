"""State that the handlers of one dashboard share, and their answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from pydantic import BaseModel

from dashboard.history.history import History
from dashboard.history.reading import HistoryReader
from dashboard.page.assets import Assets, load_assets
from dashboard.page.page import Frame, render_missing
from dashboard.server.api_queries import Problem
from dashboard.server.connection_bound import ConnectionBound, own_bound
from dashboard.server.live_updates import Live
from dashboard.server.page_access import PageAccess
from dashboard.share.card_text import Card
from dht.ground.bounds import Newest

MAX_ANSWERS: Final = 64
"""Kept until the next look; each has at most a few hundred rows."""
MAX_CARDS: Final = 64
"""Kept: 30 kB each."""
CARD_SECONDS: Final = 300.0
"""How long a card is good; services keep theirs for days."""
HUNG_SECONDS: Final = 60.0
"""A look ends within some 40 s even when every call of it times out; later than this the observer hangs."""


@dataclass
class Site:
    """A dashboard as its handlers see it.

    Attributes:
        clock: unix seconds.
        bound: of the connections to the server; one for all of its runs.
        access: who may read; None: everybody.
        base: of the addresses of this run's pages, such as ``/r/RUN``; empty where it is the only one.
        proof_line: a stored signed commit as a line of a proof.
        page_address: the page's own address as its owner gives it; empty: that of each request.
    """

    live: Live
    history: History
    reader: HistoryReader
    clock: Callable[[], float] = time.time
    bound: ConnectionBound = field(default_factory=own_bound)
    access: PageAccess | None = None
    proof_line: Callable[[bytes], str] = bytes.hex
    page_address: str = ""
    assets: Assets = field(default_factory=load_assets)
    base: str = ""
    num_downloads: int = 0
    """Downloads of proofs under way."""
    num_requests: Counter[str] = field(default_factory=Counter)
    """Answers by class of status: ``2xx`` and so on."""
    _answers: Newest[str, tuple[int, bytes]] = field(default_factory=lambda: Newest(MAX_ANSWERS))
    _answering: asyncio.Lock = field(default_factory=asyncio.Lock)
    _cards: Newest[str, tuple[float, bytes]] = field(default_factory=lambda: Newest(MAX_CARDS))
    _drawing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, key: str, make: Callable[[], Awaitable[BaseModel | str]]) -> bytes:
        """Return the result of `make`, encoded; the same for all requests of `key` before the next look."""
        async with self._answering:
            published, content = self._answers.get(key, (-1, b""))
            if published != self.live.num_published:
                published = self.live.num_published
                made = await make()
                text = made if isinstance(made, str) else made.model_dump_json(ensure_ascii=True)
                content = text.encode()
                self._answers[key] = published, content
            return content

    async def card(self, name: str, card: Card) -> bytes:
        """Return the picture of this name, drawn from `card` unless there is a new one.

        One is drawn at a time, in a thread: a flood of requests costs the page nothing else.
        """
        async with self._drawing:
            made_at, png = self._cards.get(name, (0.0, b""))
            if not png or self.clock() - made_at >= CARD_SECONDS:
                from dashboard.share.card_drawing import card_png  # loads Pillow

                png = await asyncio.to_thread(card_png, card)
                self._cards[name] = self.clock(), png
            return png

    @property
    def frame(self) -> Frame:
        """Of a page that others have no link to."""
        return Frame(self.clock(), self.assets)

    @property
    def is_well(self) -> bool:
        """Whether the observer still looks and the history is written."""
        return self.look_age_seconds < HUNG_SECONDS and not self.history.problem

    @property
    def look_age_seconds(self) -> float:
        """Since the newest look."""
        return max(0.0, self.clock() - self.live.state.now)


SITE: Final = web.AppKey("site", Site)


def html_answer(html: str) -> web.Response:
    """A whole page, compressed; browsers ask again each time."""
    response = web.Response(
        text=html, content_type="text/html", headers={"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    )
    response.enable_compression()
    return response


def problem(request: web.Request, status: int, title: str, detail: str = "") -> web.Response:
    """An error as a JSON problem (RFC 9457) under /api/; else one plain line, or for a browser's 404 a page."""
    if "/api/" in request.path:
        content = Problem(title=title, status=status, detail=detail or title).model_dump()
        return web.json_response(content, status=status, content_type="application/problem+json")
    if status == 404 and "text/html" in request.headers.get("Accept", ""):
        response = html_answer(render_missing(detail, request.app[SITE].frame))
        response.set_status(404)
        return response
    text = f"{status} {title}. {detail or 'The page is at /'}\n"
    return web.Response(status=status, text=text)
