"""Shared state of one dashboard's handlers, and their answers."""

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
from dashboard.page.assets import Assets, load_assets
from dashboard.page.page import Frame, render_missing
from dashboard.server.api_queries import Problem
from dashboard.server.connection_bound import ConnectionBound, own_bound
from dashboard.server.live_updates import Live
from dashboard.server.page_access import PageAccess
from dashboard.share.card_text import Card
from dht.ground.bounds import Newest

MAX_ANSWERS: Final = 64
"""Answers kept until the next observation; each has at most a few hundred rows."""
MAX_CARDS: Final = 64
"""Preview pictures kept: 30 kB each."""
CARD_SECONDS: Final = 300.0
"""Lifetime of a preview picture; services keep theirs for days."""
HUNG_SECONDS: Final = 60.0
"""An observation ends within some 40 s even if all its calls time out; after this time the observer hangs."""


@dataclass
class Site:
    """A dashboard from its handlers' point of view.

    Attributes:
        clock: returns unix seconds.
        bound: limits of the server's connections, shared by all its runs.
        access: check of a private page's readers; None: public.
        base: path of this run's pages, such as ``/r/RUN``; empty if it is the only run.
        proof_line: returns a stored signed commit as a line of a proof.
        page_address: the page's address according to its owner; empty: the address of each request.
    """

    live: Live
    history: History
    clock: Callable[[], float] = time.time
    bound: ConnectionBound = field(default_factory=own_bound)
    access: PageAccess | None = None
    proof_line: Callable[[bytes], str] = bytes.hex
    page_address: str = ""
    assets: Assets = field(default_factory=load_assets)
    base: str = ""
    num_downloads: int = 0
    """Number of concurrent downloads of proofs."""
    num_requests: Counter[str] = field(default_factory=Counter)
    """Number of answers by class of status: ``2xx`` and so on."""
    _answers: Newest[str, tuple[int, bytes]] = field(default_factory=lambda: Newest(MAX_ANSWERS))
    _answering: asyncio.Lock = field(default_factory=asyncio.Lock)
    _cards: Newest[str, tuple[float, bytes]] = field(default_factory=lambda: Newest(MAX_CARDS))
    _drawing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, key: str, make: Callable[[], Awaitable[BaseModel | str]]) -> bytes:
        """Return the encoded result of `make`, the same for all requests of `key` before the next observation."""
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
        """Return the picture with this name, drawing it from `card` unless a recent one exists.

        One picture is drawn at a time, in a thread, so a flood of requests does not slow the page.
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
        """Frame of a page without a preview of its link."""
        return Frame(self.clock(), self.assets)

    @property
    def is_well(self) -> bool:
        """Whether the observer is running and the history is written."""
        return self.look_age_seconds < HUNG_SECONDS and not self.history.problem

    @property
    def look_age_seconds(self) -> float:
        """Seconds since the newest observation."""
        return max(0.0, self.clock() - self.live.state.now)


SITE: Final = web.AppKey("site", Site)


def html_answer(html: str) -> web.Response:
    """Return a whole page, compressed, which browsers revalidate each time."""
    response = web.Response(
        text=html, content_type="text/html", headers={"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    )
    response.enable_compression()
    return response


def problem(request: web.Request, status: int, title: str, detail: str = "") -> web.Response:
    """Return an error as a JSON problem (RFC 9457) under /api/, otherwise as one line of text or, for a browser's 404,
    as a page.
    """
    if "/api/" in request.path:
        content = Problem(title=title, status=status, detail=detail or title).model_dump()
        return web.json_response(content, status=status, content_type="application/problem+json")
    if status == 404 and "text/html" in request.headers.get("Accept", ""):
        response = html_answer(render_missing(detail, request.app[SITE].frame))
        response.set_status(404)
        return response
    text = f"{status} {title}. {detail or 'The page is at /'}\n"
    return web.Response(status=status, text=text)
