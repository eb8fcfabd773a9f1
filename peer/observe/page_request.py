"""One request to a page, by HTTP or HTTPS, that ends in time."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from dht.errors import UsageFault
from peer.observe.run_page import MAX_ANSWER_BYTES, TokenAsked, no_answer, unreachable
from peer.version import SOFTWARE


def within(ends_at: float, url: str, ask: Callable[[], bytes | None]) -> bytes | None:
    """What `ask` gives; a server that sends a byte now and then is not waited for beyond `ends_at`."""
    outcome: list[bytes | BaseException | None] = []

    def run() -> None:
        try:
            outcome.append(ask())
        except BaseException as error:  # noqa: BLE001 (raised again in the thread that waits)
            outcome.append(error)

    asking = threading.Thread(target=run, name="ask page", daemon=True)
    asking.start()
    asking.join(max(0.0, ends_at - time.monotonic()))
    if not outcome:
        raise unreachable(url, "no answer in time")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


class _SameOrSafer(urllib.request.HTTPRedirectHandler):
    """Follows a page that has moved, but never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https://") and not newurl.startswith("https://"):
            raise UsageFault(f"{req.full_url} leads to {newurl[:120]!a}, which is not protected; expected https.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def get(place: str, url: str, timeout_seconds: float) -> bytes | None:
    """What is at `place`, for the page at `url`; None: nothing, or no JSON.

    Raises:
        UsageFault: it asks for a token, or gives more than an answer takes.
        NobodyReachable: nobody answers there, or the certificate is not that of the page.
    """
    request = urllib.request.Request(
        place, headers={"Accept": "application/json", "User-Agent": f"murmuration/{SOFTWARE}"}
    )
    opener = urllib.request.build_opener(_SameOrSafer)
    try:
        with opener.open(request, timeout=timeout_seconds) as response:
            content: bytes = response.read(MAX_ANSWER_BYTES + 1)
            kind = response.headers.get_content_type()
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (404, 405, 410):
                return None
            if error.code in (401, 403):
                raise TokenAsked(
                    f"{url} asks for a token ({error.code}); expected a page that everybody may read; ask its owner "
                    "for the run id and an address, and give --peers."
                ) from error
            raise unreachable(url, f"it answers {error.code}") from error
    except urllib.error.URLError as error:
        raise unreachable(url, _reason(error.reason)) from error
    except TimeoutError as error:
        raise unreachable(url, f"no answer within {timeout_seconds:.0f} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise unreachable(url, f"what answers there does not speak HTTP ({type(error).__name__})") from error
    if len(content) > MAX_ANSWER_BYTES:
        raise no_answer(url, f"it is longer than {MAX_ANSWER_BYTES} bytes")
    return content if kind == "application/json" else None


def _reason(reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not good ({reason.verify_message})"
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, ssl.SSLError):
        return "it does not speak TLS; is it an http:// address?"
    if isinstance(reason, OSError):
        return reason.strerror or type(reason).__name__
    return str(reason)
