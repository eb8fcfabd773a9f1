"""A request to a page over HTTP or HTTPS, with a time limit."""

from __future__ import annotations

import ssl
import threading
import time
import urllib.error
from collections.abc import Callable

from dht.ground.errors import UsageFault
from dht.ground.fields import printable
from peer.observe.run_page import MAX_ANSWER_BYTES, no_answer, unreachable
from peer.sources.web_request import BROKEN, PrivateAddress, RedirectRefused, to_same_host, web_answer


def within(ends_at: float, url: str, ask: Callable[[], bytes | None]) -> bytes | None:
    """Return the result of `ask`, with an overall time limit even for a server that keeps sending single bytes."""
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


def get(place: str, url: str, timeout_seconds: float, *, is_own: bool) -> bytes | None:
    """Return the content at `place`, for the page at `url`; None if there is none or it is not JSON.

    Args:
        is_own: the volunteer chose the page; see `web_answer`.

    Raises:
        UsageFault: the page requires a token, redirects elsewhere, or sends too much.
        NobodyReachable: no server answers there, or the certificate is not valid for the page.
    """
    try:
        with web_answer(
            place,
            redirects=to_same_host,
            headers={"Accept": "application/json"},
            is_own=is_own,
            timeout_seconds=timeout_seconds,
        ) as response:
            content = response.read(MAX_ANSWER_BYTES + 1, timeout_seconds)
            kind = response.headers.get_content_type()
    except urllib.error.HTTPError as error:
        if error.code in (404, 405, 410):
            return None
        if error.code in (401, 403):
            raise UsageFault(
                f"{url} asks for a token ({error.code}); expected a page that everybody may read; ask its owner "
                "for the run id and an address, and give --peers."
            ) from error
        raise unreachable(url, f"it answers {error.code}") from error
    except RedirectRefused as error:
        raise UsageFault(
            f"{url} leads to {printable(error.target)[:120]!a}, which is not followed ({error.reason}); expected the "
            "page itself; if you trust that address, give it instead."
        ) from error
    except PrivateAddress as error:
        raise UsageFault(
            f"{url} is not asked ({error.reason}); expected a public page, because you did not name this address; if "
            "you trust it, give it to `peer join` yourself."
        ) from error
    except urllib.error.URLError as error:
        raise unreachable(url, _reason(error.reason)) from error
    except TimeoutError as error:
        raise unreachable(url, f"no answer within {timeout_seconds:.0f} s") from error
    except BROKEN as error:
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
