"""Answers that a browser has already are not sent again: ETags, 304 and compression (RFC 9110)."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from aiohttp import web
from pydantic import BaseModel

MIN_COMPRESSED_BYTES: Final = 1024
_AGES: Final = {"observed_at", "heard_at"}
"""Fields that change without anything having happened; they do not count for the ETag."""


@dataclass(frozen=True)
class Body:
    """An answer that was encoded once for everybody who asks before the next look."""

    published: int
    content: bytes
    etag: str

    @cached_property
    def compressed(self) -> bytes:
        # Level 1: half the time of the usual one for answers that live two seconds.
        return gzip.compress(self.content, 1, mtime=0)


def encoded(answer: BaseModel | str, published: int) -> Body:
    """An answer of the API, or JSON that is ready, as it stood at the look `published`."""
    if isinstance(answer, str):
        ages, lasting = "", answer
    else:
        ages = answer.model_dump_json(include=_AGES, ensure_ascii=True)[1:-1]
        lasting = answer.model_dump_json(exclude=_AGES, ensure_ascii=True)
    # Weak: the bytes may differ in the ages.
    etag = f'W/"{hashlib.sha256(lasting.encode()).hexdigest()[:20]}"'
    return Body(published, ("{" + ages + "," + lasting[1:] if ages else lasting).encode(), etag)


def respond(request: web.Request, answer: Body, headers: Mapping[str, str]) -> web.Response:
    """The answer, or 304 when the client has it already."""
    headers = {"ETag": answer.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", **headers}
    known = request.headers.get("If-None-Match", "")
    if answer.etag.removeprefix("W/") in known or known.strip() == "*":
        return web.Response(status=304, headers=headers)
    body = answer.content
    if len(body) >= MIN_COMPRESSED_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        body = answer.compressed
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)
