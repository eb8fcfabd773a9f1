"""HTTP and HTTPS requests without credentials that follow only expected redirects and are limited in time.

Cookies, netrc files and tokens from the environment are not used. A proxy from the environment is, since some networks
have no other way out.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult, urljoin, urlsplit

from dht.ground.fields import clean_text
from peer.version import software

TIMEOUT_SECONDS: Final = 30.0
"""Longest wait for the next byte: longer than a slow server needs, and acceptable to a waiting person."""
WINDOW_SECONDS: Final = 60.0
"""Interval at which the rate is checked: a connection that pauses for a while is not ended."""
SLOWEST_BYTES_PER_SECOND: Final = 10_000
"""Slower transfers end: a shard of 32 MB would take an hour, and no run can be trained over such a connection."""
CHUNK_BYTES: Final = 1 << 18
BROKEN: Final = (OSError, http.client.HTTPException, ValueError)
"""Exceptions of a request whose connection breaks, whose redirect is refused, or whose response is invalid."""

_MAX_REDIRECTS: Final = 5

RedirectRule = Callable[[SplitResult, SplitResult], str | None]
"""Returns why a redirect from the first address to the second is refused, or None to follow it."""


def to_same_scheme(here: SplitResult, there: SplitResult) -> str | None:
    """Refuse a redirect to another scheme: plain http, files, or a device in the reader's home."""
    scheme = f"{there.scheme}:" if there.scheme else "no address"
    return (
        None
        if scheme == f"{here.scheme}:" and there.hostname
        else f"it redirects to {scheme} instead of {here.scheme}:"
    )


def to_same_host(here: SplitResult, there: SplitResult) -> str | None:
    """Refuse a redirect to another server. A server may redirect from http to its own https."""
    schemes, ports = (here.scheme, there.scheme), (_port(here), _port(there))
    is_same = schemes[0] == schemes[1] and ports[0] == ports[1]
    is_safer = schemes == ("http", "https") and ports[1] in (443, ports[0])
    return None if here.hostname == there.hostname and (is_same or is_safer) else "it redirects to another server"


def _port(parts: SplitResult) -> int | None:
    return parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def is_internal(address: str) -> bool:
    """Return whether an IP address belongs to this machine or to a private network."""
    try:
        found: Any = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        try:
            found = ipaddress.ip_address(socket.inet_aton(address))  # 127.1 and other short forms
        except (OSError, ValueError):
            return False
    if found.version == 6:
        # An IPv4 address in another form; 64:ff9b::/96 is the prefix of NAT64 translators.
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        found = inner or found
    return not found.is_global or found.is_multicast


class WebAnswer:
    """A server's response: `status`, `headers`, and a body with a minimum transfer rate."""

    def __init__(self, response: Any, watch: _Watch) -> None:
        self._response = response
        self._watch = watch
        self.status: int = response.status
        self.headers: Any = response.headers

    def chunks(self, max_bytes: int) -> Iterator[bytes]:
        """Yield the body, up to `max_bytes` of it.

        Raises:
            OSError, HTTPException, ValueError: the transfer broke off or was too slow.
        """
        while max_bytes > 0:
            with self._watch.named():
                chunk: bytes = self._response.read1(min(CHUNK_BYTES, max_bytes))
            self._watch.check()
            if not chunk:
                return
            self._watch.count(len(chunk))
            max_bytes -= len(chunk)
            yield chunk

    def read(self, max_bytes: int, seconds: float = WINDOW_SECONDS) -> bytes:
        """Return the body, up to `max_bytes` of it, received within `seconds`.

        Raises:
            OSError, HTTPException, ValueError: as for `chunks`.
        """
        content, ends_at = b"", time.monotonic() + seconds
        for chunk in self.chunks(max_bytes):
            content += chunk
            if time.monotonic() > ends_at:
                raise TimeoutError(f"it took more than {seconds:.0f} s")
        return content


@contextlib.contextmanager
def web_answer(
    url: str,
    *,
    redirects: RedirectRule,
    headers: Mapping[str, str] | None = None,
    secret_headers: Mapping[str, str] | None = None,
    is_own: bool = False,
    timeout_seconds: float = TIMEOUT_SECONDS,
    window_seconds: float = WINDOW_SECONDS,
) -> Iterator[WebAnswer]:
    """Request `url`.

    Args:
        redirects: rule for the redirects to follow.
        secret_headers: headers for the first server only, not for redirects.
        is_own: whether the volunteer named the address, so that it may be in a private network. Addresses named by
            others, and redirects of a public server, may not.
        window_seconds: how long a transfer may stay below `SLOWEST_BYTES_PER_SECOND`.

    Raises:
        OSError, HTTPException, ValueError: the request failed; `HTTPError` has the status of the response.
    """
    request = urllib.request.Request(url, headers={"User-Agent": software(), **(headers or {})})
    for name, value in (secret_headers or {}).items():
        request.add_unredirected_header(name, value)
    watch = _Watch(window_seconds)
    way = _Way(watch, may_be_internal=is_own)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(redirects),
        _Connections(way),
    ):
        opener.add_handler(handler)
    try:
        with watch.named():
            response: Any = opener.open(request, timeout=timeout_seconds)
        with response:
            yield WebAnswer(response, watch)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, PrivateAddress):
            raise error.reason from None  # the library wraps one in another
        raise
    finally:
        watch.end()


class _Watch:
    """Ends a transfer that is slower than `SLOWEST_BYTES_PER_SECOND`, also while a library waits for more bytes."""

    def __init__(self, window_seconds: float) -> None:
        self._num_bytes = 0
        self._window = window_seconds
        self._is_slow = False
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        threading.Thread(target=self._run, name="watch download", daemon=True).start()

    def hold(self, connection: socket.socket) -> None:
        """Start watching this connection."""
        with self._lock:
            self._let_go()
            self._socket = connection.dup()  # TLS takes over the original socket
        self.check()

    def count(self, num_bytes: int) -> None:
        """Count received bytes."""
        self._num_bytes += num_bytes

    def check(self) -> None:
        if self._is_slow:
            raise TimeoutError(f"slower than {SLOWEST_BYTES_PER_SECOND // 1000} kB per second")

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Replace errors of a connection closed by this watch with the reason that it was too slow."""
        try:
            yield
        except BROKEN:
            self.check()
            raise

    def end(self) -> None:
        self._over.set()
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _run(self) -> None:
        seen = 0
        while not self._over.wait(self._window):
            if self._num_bytes - seen < SLOWEST_BYTES_PER_SECOND * self._window:
                self._is_slow = True
                with self._lock, contextlib.suppress(OSError):  # the other end closed it first
                    if self._socket is not None:
                        self._socket.shutdown(socket.SHUT_RDWR)
                return
            seen = self._num_bytes


class _Way:
    """Connects to hosts, and to internal addresses only if allowed."""

    def __init__(self, watch: _Watch, *, may_be_internal: bool) -> None:
        self._watch = watch
        self._may_be_internal = may_be_internal

    def kind_for(self, request: urllib.request.Request, kind: type[http.client.HTTPConnection]) -> Any:
        """Return the factory of the connection for a request: direct, or to a proxy, which resolves names itself.

        Raises:
            PrivateAddress: the request to a proxy would be for an internal address.
        """
        asked = urlsplit(request.full_url)
        if request.host.rpartition("@")[2] == asked.netloc.rpartition("@")[2]:
            return partial(_connection, kind, self)
        name = (asked.hostname or "").rstrip(".")
        if not self._may_be_internal and (name.rpartition(".")[2] == "localhost" or is_internal(name)):
            raise PrivateAddress(name)
        return kind

    def connect(self, address: tuple[str, int], timeout: float | None = None, *_: object) -> socket.socket:
        """Replace `socket.create_connection`."""
        host, port = address
        failure: OSError | None = None
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
        reachable = [place for place in found if self._may_be_internal or not is_internal(str(place[4][0]))]
        if not reachable:
            raise PrivateAddress(host)
        for family, kind, protocol, _name, place in reachable:
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(timeout)
                connection.connect(place)
                self._watch.hold(connection)
            except OSError as error:
                connection.close()
                failure = error
                continue
            # A public server must not redirect into a private network.
            self._may_be_internal = self._may_be_internal and is_internal(str(place[0]))
            return connection
        assert failure is not None
        raise failure


class PrivateAddress(urllib.error.URLError):
    """An address of this machine or of a private network, which the volunteer did not name."""

    def __init__(self, host: str) -> None:
        super().__init__(f"{clean_text(host, 100)} is in a private network")


def _connection(kind: type[http.client.HTTPConnection], way: _Way, host: str, **options: Any) -> Any:
    connection: Any = kind(host, **options)
    connection._create_connection = way.connect
    return connection


class _Connections(urllib.request.AbstractHTTPHandler):
    """Opens the connections of both schemes on the way."""

    def __init__(self, way: _Way) -> None:
        super().__init__()
        self._way = way

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._way.kind_for(req, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._way.kind_for(req, http.client.HTTPSConnection), req)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows the redirects that the rule allows; every refusal is a `URLError` with the reason."""

    max_redirections = _MAX_REDIRECTS

    def __init__(self, rule: RedirectRule) -> None:
        self._rule = rule

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        here = urlsplit(req.full_url)
        there = _parts(req.full_url, headers.get("Location") or "") or urlsplit("")
        reason = self._rule(here, there)
        if reason is None and there.username is not None:
            reason = "it redirects to an address with a password"
        if reason is not None:
            fp.close()
            raise RedirectRefused(reason, there.geturl())
        fp.close()  # the library would read the body to its end, which may never come
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _parts(base: str, location: str) -> SplitResult | None:
    """Return the target of a redirect, or None if it is not an address."""
    try:
        parts = urlsplit(urljoin(base, location))
        _ = parts.port, parts.hostname
    except ValueError:
        return None
    return parts


class RedirectRefused(urllib.error.URLError):
    """A redirect that the rule does not allow; `target` is its destination."""

    def __init__(self, reason: str, target: str) -> None:
        super().__init__(reason)
        self.target = target
