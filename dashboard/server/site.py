"""What the handlers of one dashboard share, and how they answer."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from dashboard.history.history import History
from dashboard.history.reading import HistoryReader
from dashboard.page.assets import Assets
from dashboard.server.doors import Doors
from dashboard.server.live import Live
from dashboard.server.metrics import RunMetrics, Serving
from dashboard.server.page_access import PageAccess

MAX_ANSWERS: Final = 64
"""Kept until the next look; each has at most a few hundred rows."""
MIN_COMPRESSED_BYTES: Final = 1024

_AGES: Final = ("observed_at", "heard_at")
"""Fields that change without anything having happened; they do not count for the ETag."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A body that was encoded once for everybody who asks before the next look."""

    published: int
    body: bytes
    compressed: bytes
    etag: str


def plain_line(commit: bytes) -> str:
    """A stored signed commit as a line of JSON."""
    return json.dumps({"commit": commit.hex()})


@dataclass
class Site:
    """One dashboard as its handlers see it.

    Attributes:
        clock: unix seconds.
        history: None: only the present is known, and what needs the past answers with little.
        doors: who may ask; None: everybody as much as they like.
        proof_line: a stored signed commit as a line of a proof.
    """

    live: Live
    assets: Assets
    clock: Callable[[], float] = time.time
    history: History | None = None
    reader: HistoryReader | None = None
    access: PageAccess | None = None
    doors: Doors | None = None
    join_addresses: tuple[str, ...] = ()
    proof_line: Callable[[bytes], str] = plain_line
    num_viewers: int = 0
    downloads: Counter[str] = field(default_factory=Counter)
    """Under way, by who asked."""
    _table: tuple[int, bytes] = (-1, b"")
    """All contributors as CSV, and the look that it is of."""
    num_requests: Counter[str] = field(default_factory=Counter)
    _answers: OrderedDict[str, Answer] = field(default_factory=OrderedDict)
    _answering: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.metrics = RunMetrics(lambda: (self.live.state, self.live.history, self._serving()))

    def shut_by(self, make: Callable[[], Doors]) -> Doors:
        """The doors, made now if there are none yet."""
        self.doors = self.doors or make()
        return self.doors

    def viewer_came(self) -> None:
        """An event stream begins."""
        self.num_viewers += 1

    def viewer_left(self) -> None:
        """An event stream ends."""
        self.num_viewers -= 1

    def csv(self, make: Callable[[], str]) -> bytes:
        """All contributors as CSV, made once per look for everybody who asks."""
        if self._table[0] != self.live.num_published:
            self._table = self.live.num_published, make().encode()
        return self._table[1]

    async def answer(self, key: str, make: Callable[[], Awaitable[Mapping[str, Any]]]) -> Answer:
        """What `make` gives, encoded; the same for all who ask for `key` before the next look."""
        async with self._answering:
            found = self._answers.get(key)
            if found is None or found.published != self.live.num_published:
                published = self.live.num_published
                found = self._answers[key] = _encoded(await make(), published)
                self._answers.move_to_end(key)
                while len(self._answers) > MAX_ANSWERS:
                    self._answers.popitem(last=False)
            return found

    def client_of(self, request: web.Request) -> str:
        """Whose request it is, as it is counted."""
        return self.doors.client_of(request) if self.doors is not None else ""

    def _serving(self) -> Serving:
        age_seconds = max(0.0, self.clock() - self.live.state.now)
        return Serving(self.num_viewers, dict(self.num_requests), age_seconds)


SITE: Final = web.AppKey("site", Site)


def respond(request: web.Request, answer: Answer, headers: Mapping[str, str]) -> web.Response:
    """The answer, or 304 when the client has it already."""
    headers = {"ETag": answer.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", **headers}
    known = request.headers.get("If-None-Match", "")
    if answer.etag.removeprefix("W/") in known or known.strip() == "*":
        return web.Response(status=304, headers=headers)
    body = answer.body
    if len(body) >= MIN_COMPRESSED_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        body = answer.compressed
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)


def problem(request: web.Request, status: int, title: str, detail: str = "") -> web.Response:
    """An error as a JSON problem (RFC 9457) under /api/, else as one plain line."""
    if request.path.startswith("/api/"):
        content = {"type": "about:blank", "title": title, "status": status, "detail": detail or title}
        return web.json_response(content, status=status, content_type="application/problem+json")
    text = f"{status} {title}. {detail or 'The page is at /'}\n"
    return web.Response(status=status, text=text)


def _encoded(content: Mapping[str, Any], published: int) -> Answer:
    ages = {name: content[name] for name in _AGES if name in content}
    lasting = json.dumps(
        {name: value for name, value in content.items() if name not in _AGES}, separators=(",", ":"), allow_nan=False
    )
    # Weak: the bytes may differ in the ages.
    digest = hashlib.sha256(lasting.encode()).hexdigest()[:20]
    head = json.dumps(ages, separators=(",", ":"))[:-1] + "," if ages else "{"
    body = (head + lasting[1:]).encode()
    # Level 1: half the time of the usual one for answers that live two seconds.
    compressed = gzip.compress(body, 1, mtime=0) if len(body) >= MIN_COMPRESSED_BYTES else body
    return Answer(published, body, compressed, f'W/"{digest}"')
