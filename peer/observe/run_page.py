"""What the page of a run says to those who want to join: `peer join https://run.example.org`.

A page is believed nothing but which run it means. The run's id is the fingerprint of its owner's key, and a joiner
checks the signed manifest against it. So a page can lead to another run, and never to a changed one. That is why every
caller prints which run the page named.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dht.errors import LocalFault, NobodyReachable, UsageFault
from dht.fields import printable
from dht.identity.join_link import MAX_LINK_ADDRESSES, join_link
from dht.identity.keys import split_run_id
from peer.version import SOFTWARE

JOIN_PATH: Final = "api/v1/join"
MAX_ANSWER_BYTES: Final = 64 * 1024
"""Twice what `MAX_LINK_ADDRESSES` of the longest addresses take, as JSON."""
PAGE_SECONDS: Final = 10.0
"""For one answer of a few hundred bytes: a page at home behind a slow line has it in two."""
MAX_URL_LENGTH: Final = 300
_NUM_PARENTS: Final = 3
"""The page of a person, or of a tab, lies so far below that of its run."""


@dataclass(frozen=True, slots=True)
class PageSays:
    """Which run the page at `url` means, and where it can be joined."""

    run_id: str
    addresses: tuple[str, ...]
    url: str = ""
    is_private: bool = False
    """Whether an invite is needed, as the page says."""
    has_ended: bool = False
    """Whether the owner has ended the run and its last version is reached, as the page says."""


def is_page(text: str) -> bool:
    """Whether somebody means a page by it."""
    return text[:8].lower().startswith(("https://", "http://"))


def is_unprotected(url: str) -> bool:
    """Whether somebody between here and the page could change what it says."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme.lower() == "http" and not _is_this_machine(parts.hostname or "")


def ask_page(url: str, timeout_seconds: float = PAGE_SECONDS) -> PageSays:
    """What the page at `url` says; its path names one of several runs. Blocks.

    Raises:
        UsageFault: this is not the address of a run's page, or it asks for a token.
        NobodyReachable: nobody answers there, or the certificate is not that of the page.
    """
    ends_at = time.monotonic() + timeout_seconds
    for place in _candidates(url):
        answer = _within(ends_at, url, partial(_get, place, url, timeout_seconds))
        if answer is not None:
            return read_answer(answer, url)
    raise UsageFault(
        f"{url} is no page of a run: it has nothing at /{JOIN_PATH}; expected what `peer dashboard` serves; copy the "
        "address from the run's page, with its path, or give the run id and --peers."
    )


def read_answer(content: bytes, url: str) -> PageSays:
    """The answer of a page, which may be anybody's.

    Raises:
        UsageFault: it is not what `peer dashboard` answers; the sentence says which part is wrong.
    """
    try:
        fields: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _no_answer(url, f"it is not JSON ({type(error).__name__})") from error
    if not isinstance(fields, dict):
        raise _no_answer(url, "it is not a JSON object")
    run_id, addresses = fields.get("run_id"), fields.get("addresses")
    if not isinstance(run_id, str) or not isinstance(addresses, list):
        raise _no_answer(url, "run_id or addresses are missing")
    try:
        split_run_id(run_id)
        link = join_link(run_id, [one for one in addresses if isinstance(one, str)][:MAX_LINK_ADDRESSES])
    except UsageFault as fault:
        raise _no_answer(url, str(fault)) from fault
    return PageSays(link.run_id, link.addresses, url, fields.get("is_private") is True, fields.get("has_ended") is True)


def in_words(says: PageSays, url: str) -> str:
    """Which run a page named, for the person who gave its address."""
    count = len(says.addresses)
    how_many = "and no address" if not count else "with 1 address" if count == 1 else f"with {count} addresses"
    ended = "; it says that the run has ended" if says.has_ended else ""
    return f"{printable(urllib.parse.urlsplit(url).netloc)} names the run {says.run_id}, {how_many}{ended}."


def _candidates(url: str) -> list[str]:
    """Where the answer may be: below the address itself, then below the folders that it lies in."""
    if len(url) > MAX_URL_LENGTH or not url.isascii() or any(character.isspace() for character in url):
        raise UsageFault(
            f"{url[:80]!a} is no address of a page; expected at most {MAX_URL_LENGTH} characters of ASCII such as "
            "https://run.example.org."
        )
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageFault(
            f"{url!a} is no address of a page ({error}); expected https://HOST or https://HOST/PATH."
        ) from error
    if not host or parts.username is not None or port == 0:
        raise UsageFault(f"{url!a} is no address of a page; expected one such as https://run.example.org.")
    folders = [folder for folder in parts.path.split("/") if folder]
    paths = ["/".join(folders[:count]) for count in range(len(folders), -1, -1)][: _NUM_PARENTS + 1]
    start = f"{parts.scheme.lower()}://{parts.netloc}"
    return [f"{start}/{path}/{JOIN_PATH}" if path else f"{start}/{JOIN_PATH}" for path in paths]


def _within(ends_at: float, url: str, get: Callable[[], bytes | None]) -> bytes | None:
    """What `get` gives; a server that sends a byte now and then is not waited for beyond `ends_at`."""
    outcome: list[bytes | BaseException | None] = []

    def run() -> None:
        try:
            outcome.append(get())
        except BaseException as error:  # noqa: BLE001 (raised again in the thread that waits)
            outcome.append(error)

    asking = threading.Thread(target=run, name="ask page", daemon=True)
    asking.start()
    asking.join(max(0.0, ends_at - time.monotonic()))
    if not outcome:
        raise _unreachable(url, "no answer in time")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


class _SameOrSafer(urllib.request.HTTPRedirectHandler):
    """Follows a page that has moved, but never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https://") and not newurl.startswith("https://"):
            raise UsageFault(f"{req.full_url} leads to {newurl[:120]!a}, which is not protected; expected https.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _get(place: str, url: str, timeout_seconds: float) -> bytes | None:
    """What is there; None: nothing."""
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
                raise UsageFault(
                    f"{url} asks for a token ({error.code}); expected a page that everybody may read; ask its owner "
                    "for the run id and an address, and give --peers."
                ) from error
            raise _unreachable(url, f"it answers {error.code}") from error
    except urllib.error.URLError as error:
        raise _unreachable(url, _reason(error.reason)) from error
    except TimeoutError as error:
        raise _unreachable(url, f"no answer within {timeout_seconds:.0f} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(url, f"what answers there does not speak HTTP ({type(error).__name__})") from error
    if len(content) > MAX_ANSWER_BYTES:
        raise _no_answer(url, f"it is longer than {MAX_ANSWER_BYTES} bytes")
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


def _unreachable(url: str, reason: str) -> LocalFault:
    return NobodyReachable(
        f"{url} cannot be asked for the run: {printable(reason)}; expected the page of a run; check the address and "
        "this machine's network, or give the run id and --peers."
    )


def _no_answer(url: str, reason: str) -> UsageFault:
    return UsageFault(
        f"{url} does not say how to join: {printable(reason)[:300].rstrip('.')}; expected what `peer dashboard` "
        "answers; check the address, or give the run id and --peers."
    )


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
