"""Access to a private page with a token. Without a token file, anyone who reaches the port may read."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from aiohttp import web

from dht.ground.errors import UsageFault, reading
from dht.ground.regular_files import read_private

MIN_TOKEN_LENGTH: Final = 16
"""Shorter tokens can be guessed over a network."""
MAX_TOKEN_BYTES: Final = 1024
COOKIE: Final = "murmuration_page"
COOKIE_SECONDS: Final = 30 * 86_400
OPEN_PATHS: Final = ("/healthz",)
"""Paths for a supervisor, without the run's data."""


class PageAccess:
    """Checks requests against one token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        # The browser's cookie is not the token itself, so a stolen cookie does not reveal the token.
        self._cookie = hmac.new(self._token, b"murmuration page cookie", hashlib.sha256).hexdigest()

    def allows(self, request: web.Request) -> bool:
        """Return whether the request contains the token, or the cookie for it."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.casefold() == "bearer" and self._is_token(given.strip()):
            return True
        if _are_equal(request.cookies.get(COOKIE, ""), self._cookie.encode()):
            return True
        return self._is_token(request.query.get("token", ""))

    def exchange(self, request: web.Request) -> web.Response | None:
        """Return, for a page opened with ``?token=``, the cookie and a redirect to the same address without the
        token.
        """
        if not self._is_token(request.query.get("token", "")) or "/api/" in request.path:
            return None
        # Exactly one slash: two would lead to another host.
        place = "/" + request.url.without_query_params("token").path_qs.lstrip("/\\")
        response = web.Response(status=303, headers={"Location": place, "Cache-Control": "no-store"})
        response.set_cookie(
            COOKIE,
            self._cookie,
            max_age=COOKIE_SECONDS,
            httponly=True,
            samesite="Strict",
            secure=request.headers.get("X-Forwarded-Proto", request.scheme) == "https",
        )
        return response

    def _is_token(self, given: str) -> bool:
        return _are_equal(given, self._token)


def _are_equal(given: str, known: bytes) -> bool:
    # Header bytes that are not UTF-8 become surrogates, which cannot be encoded.
    return hmac.compare_digest(given.encode("utf-8", "replace"), known)


def read_token(path: Path) -> str:
    """Return the token in a file: its only line.

    Raises:
        UsageFault: the file is unreadable, readable by other users, or contains no usable token.
    """
    what = f"the token file {path}"
    with reading(what, "one line of text; give another with --token-file"):
        data = read_private(path, MAX_TOKEN_BYTES, what)
    token = data.decode("ascii", "replace").strip()
    if len(data) > MAX_TOKEN_BYTES or not token.isprintable() or " " in token or "\ufffd" in token:
        raise UsageFault(
            f"the token file {path} does not contain exactly one line of letters and digits; create one with: "
            "openssl rand -hex 16"
        )
    if len(token) < MIN_TOKEN_LENGTH:
        raise UsageFault(
            f"the token in {path} has {len(token)} characters; expected at least {MIN_TOKEN_LENGTH}; create one with: "
            "openssl rand -hex 16"
        )
    return token
