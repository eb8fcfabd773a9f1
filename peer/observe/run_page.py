"""The answer of a run's page to joiners: `peer join https://run.example.org`.

The module loads HTTP, which most command lines do not need: import it where it is used.

A page is only trusted to identify a run. The run's id is the fingerprint of its owner's key, and a joiner checks the
signed manifest against it. So a page can lead to a different run, but never to a changed one. Therefore every caller
prints the run that the page returned.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from dht.ground.errors import LocalFault, NobodyReachable, UsageFault
from dht.ground.fields import printable
from dht.ground.quantities import plural
from dht.identity.join_link import MAX_LINK_ADDRESSES, join_link
from dht.identity.keys import split_run_id
from dht.identity.multiaddr import is_this_machine, parse_multiaddr
from peer.network.membership.way_out import CONNECT, NO_NETWORK, has_way_to
from peer.observe.ended_run import NamedRun, end_on_page
from peer.sources.web_request import BROKEN, PrivateAddress, RedirectRefused, to_same_host, web_answer

JOIN_PATH: Final = "api/v1/join"
MAX_ANSWER_BYTES: Final = 64 * 1024
"""Twice the size of `MAX_LINK_ADDRESSES` of the longest addresses as JSON."""
PAGE_SECONDS: Final = 10.0
"""Time limit for an answer of a few hundred bytes; a page on a slow home connection needs two seconds."""
MAX_URL_LENGTH: Final = 300
MAX_ADDRESSES_OF_HOST: Final = 2
"""Limit that keeps a page from making a joiner connect to one host repeatedly."""
MAX_ADDRESS_LENGTH: Final = 300
"""Length limit of a peer's address; a relayed address has 150 characters."""
_NUM_PARENTS: Final = 3
"""Number of levels that the page of a person, or of a tab, is below the page of its run."""


def is_unprotected(url: str) -> bool:
    """Return whether a third party could change the page's answer on its way."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme.lower() == "http" and not is_this_machine(parts.hostname or "")


def ask_page(url: str, timeout_seconds: float = PAGE_SECONDS, *, of_manifest: bool = False) -> NamedRun:
    """Ask the page at `url`, whose path selects one of several runs. Blocks.

    Args:
        of_manifest: whether the address is from a manifest instead of the volunteer; it must then be a public server.

    Raises:
        UsageFault: this is not the address of a run's page, or it requires a token.
        NobodyReachable: no server answers there, or the certificate is not valid for the page.
    """
    ends_at = time.monotonic() + timeout_seconds
    for place in _candidates(url):
        answer = _within(ends_at, url, partial(_get, place, url, timeout_seconds, is_own=not of_manifest))
        if answer is not None:
            return read_answer(answer, url)
    raise UsageFault(
        f"{url} is not the page of a run: it has nothing at /{JOIN_PATH}; expected a page of `peer dashboard`; copy "
        "the address of the run's page with its path, or pass the run id and --peers."
    )


def read_answer(content: bytes, url: str) -> NamedRun:
    """Parse a page's response, which is untrusted.

    Raises:
        UsageFault: the response is not from `peer dashboard`; the message gives the invalid part.
    """
    try:
        fields: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise no_answer(url, f"it is not JSON ({type(error).__name__})") from error
    if not isinstance(fields, dict):
        raise no_answer(url, "it is not a JSON object")
    run_id, addresses = fields.get("run_id"), fields.get("addresses")
    if not isinstance(run_id, str) or not isinstance(addresses, list):
        raise no_answer(url, "run_id or addresses are missing")
    texts = [one for one in addresses if isinstance(one, str)][:MAX_LINK_ADDRESSES]
    if any(len(text) > MAX_ADDRESS_LENGTH for text in texts):
        raise no_answer(url, f"it has an address of more than {MAX_ADDRESS_LENGTH} characters")
    try:
        split_run_id(run_id)
        link = join_link(
            run_id, _few_of_each_host(texts, is_here=is_this_machine(urllib.parse.urlsplit(url).hostname or ""))
        )
    except UsageFault as fault:
        raise no_answer(url, str(fault)) from fault
    end = end_on_page(link.run_id, url, is_served=bool(link.addresses)) if fields.get("has_ended") is True else None
    return NamedRun(link.run_id, list(link.addresses) or None, end, fields.get("is_private") is True)


def in_words(says: NamedRun, url: str) -> str:
    """Return a sentence about the run of a page, for the person who gave the page's address."""
    how_many = f"with {plural(len(says.peers), 'address')}" if says.peers else "and no address"
    ended = "; according to the page, the run has ended" if says.end is not None else ""
    return f"{printable(urllib.parse.urlsplit(url).netloc)} refers to the run {says.run_id}, {how_many}{ended}."


def _candidates(url: str) -> list[str]:
    """Return possible addresses of the answer: below the given address, then below its parent folders."""
    if len(url) > MAX_URL_LENGTH or not url.isascii() or any(character.isspace() for character in url):
        raise UsageFault(
            f"{url[:80]!a} is not the address of a page; expected at most {MAX_URL_LENGTH} characters of ASCII such as "
            "https://run.example.org."
        )
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageFault(
            f"{url!a} is not the address of a page ({error}); expected https://HOST or https://HOST/PATH."
        ) from error
    if not host or parts.username is not None or port == 0:
        raise UsageFault(f"{url!a} is not the address of a page; expected one such as https://run.example.org.")
    folders = [folder for folder in parts.path.split("/") if folder]
    paths = ["/".join(folders[:count]) for count in range(len(folders), -1, -1)][: _NUM_PARENTS + 1]
    start = f"{parts.scheme.lower()}://{parts.netloc}"
    return [f"{start}/{path}/{JOIN_PATH}" if path else f"{start}/{JOIN_PATH}" for path in paths]


def unreachable(url: str, reason: str) -> LocalFault:
    """Return the fault for a page that does not answer."""
    if not has_way_to([urllib.parse.urlsplit(url).hostname or ""]):
        return NobodyReachable(f"{NO_NETWORK}, so {url} cannot be reached; {CONNECT}.")
    return NobodyReachable(
        f"{url} cannot be reached: {printable(reason)}; expected the page of a run; check the address and "
        "this machine's network, or pass the run id and --peers."
    )


def no_answer(url: str, reason: str) -> UsageFault:
    """Return the fault for a page with an invalid answer."""
    return UsageFault(
        f"{url} gave no valid answer: {printable(reason)[:300].rstrip('.')}; expected the answer of `peer "
        "dashboard`; check the address, or pass the run id and --peers."
    )


def _few_of_each_host(addresses: Sequence[str], *, is_here: bool) -> list[str]:
    """Return the first addresses of each host; addresses of this machine only if the page is on this machine."""
    kept, counts = [], Counter[str]()
    for address in addresses:
        host = parse_multiaddr(address).parts[0][1].lower().rstrip(".")
        if is_this_machine(host):
            host = "localhost"
        counts[host] += 1
        if counts[host] <= MAX_ADDRESSES_OF_HOST and (is_here or host != "localhost"):
            kept.append(address)
    return kept


def _within(ends_at: float, url: str, ask: Callable[[], bytes | None]) -> bytes | None:
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


def _get(place: str, url: str, timeout_seconds: float, *, is_own: bool) -> bytes | None:
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
                f"{url} requires a token ({error.code}); expected a public page; ask its owner "
                "for the run id and an address, and pass them with --peers."
            ) from error
        raise unreachable(url, f"it answered {error.code}") from error
    except RedirectRefused as error:
        raise UsageFault(
            f"{url} redirects to {printable(error.target)[:120]!a}, which is not followed ({error.reason}); expected "
            "the page itself; if you trust that address, use it instead."
        ) from error
    except PrivateAddress as error:
        raise UsageFault(
            f"{url} was not opened ({error.reason}); expected a public page, because you did not choose this address; "
            "if you trust it, pass it to `peer join` yourself."
        ) from error
    except urllib.error.URLError as error:
        raise unreachable(url, _reason(error.reason)) from error
    except TimeoutError as error:
        raise unreachable(url, f"no answer within {timeout_seconds:.0f} s") from error
    except BROKEN as error:
        raise unreachable(url, f"the server there does not use HTTP ({type(error).__name__})") from error
    if len(content) > MAX_ANSWER_BYTES:
        raise no_answer(url, f"it is longer than {MAX_ANSWER_BYTES} bytes")
    return content if kind == "application/json" else None


def _reason(reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({reason.verify_message})"
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, ssl.SSLError):
        return "it does not use TLS; is it an http:// address?"
    if isinstance(reason, OSError):
        return reason.strerror or type(reason).__name__
    return str(reason)
