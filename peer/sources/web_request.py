"""Requests by HTTP and HTTPS that carry no credentials, follow only expected redirects, and end in time.

No cookie, no netrc file and no token of the environment is read. A proxy of the environment is used, since some
networks have no other way out.
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
"""Without a byte: longer than a slow server takes, short beside the patience of a person."""
WINDOW_SECONDS: Final = 60.0
"""A transfer is looked at so often: a connection that was away for a while does not end it."""
SLOWEST_BYTES_PER_SECOND: Final = 10_000
"""Slower transfers end: a shard of 32 MB would take an hour, and no run can be trained over such a connection."""
CHUNK_BYTES: Final = 1 << 18
BROKEN: Final = (OSError, http.client.HTTPException, ValueError)
"""What a request raises when a connection breaks, a redirect is refused, or a server answers nonsense."""

_MAX_REDIRECTS: Final = 5

RedirectRule = Callable[[SplitResult, SplitResult], str | None]
"""Says why a redirect from the first address to the second is refused; None: it is followed."""


def to_same_scheme(here: SplitResult, there: SplitResult) -> str | None:
    """Refuse a redirect to another scheme: plain http, files, or a device in the reader's home."""
    scheme = f"{there.scheme}:" if there.scheme else "no address"
    return (
        None if scheme == f"{here.scheme}:" and there.hostname else f"it redirects to {scheme}, not to {here.scheme}:"
    )


def to_same_host(here: SplitResult, there: SplitResult) -> str | None:
    """Refuse a redirect to another server; from http the same server may ask for https."""
    schemes, ports = (here.scheme, there.scheme), (_port(here), _port(there))
    is_same = schemes[0] == schemes[1] and ports[0] == ports[1]
    is_safer = schemes == ("http", "https") and ports[1] in (443, ports[0])
    return None if here.hostname == there.hostname and (is_same or is_safer) else "it redirects to another server"


def _port(parts: SplitResult) -> int | None:
    return parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def is_internal(address: str) -> bool:
    """Whether an IP address is that of this machine or of a private network."""
    try:
        found: Any = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        try:
            found = ipaddress.ip_address(socket.inet_aton(address))  # 127.1 and other short forms
        except (OSError, ValueError):
            return False
    if found.version == 6:
        # An address of version 4 in another form; 64:ff9b::/96 is that of a translator.
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        found = inner or found
    return not found.is_global or found.is_multicast


class WebAnswer:
    """The answer of a server: `status`, `headers`, and a body that comes at more than a trickle."""

    def __init__(self, response: Any, watch: _Watch) -> None:
        self._response = response
        self._watch = watch
        self.status: int = response.status
        self.headers: Any = response.headers

    def chunks(self, max_bytes: int) -> Iterator[bytes]:
        """The body, up to `max_bytes` of it.

        Raises:
            OSError, HTTPException, ValueError: it broke off, or came too slowly.
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
        """The body, up to `max_bytes` of it, in so many seconds.

        Raises:
            OSError, HTTPException, ValueError: as from `chunks`.
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
    """Ask for `url`.

    Args:
        redirects: which ones are followed.
        secret_headers: sent to the first server alone, not to where it redirects.
        is_own: the volunteer named the address, so it may be one of a private network. What somebody else named, and
            what a public server redirects to, may not.
        window_seconds: how long a transfer may stay below `SLOWEST_BYTES_PER_SECOND`.

    Raises:
        OSError, HTTPException, ValueError: nothing comes from there; `HTTPError` has the status of an answer.
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
        _Http(way),
        _Https(way),
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
            raise error.reason from None  # the library has put one into another
        raise
    finally:
        watch.end()


class _Watch:
    """Ends a transfer that is slower than `SLOWEST_BYTES_PER_SECOND`, also where a library waits for more bytes."""

    def __init__(self, window_seconds: float) -> None:
        self._num_bytes = 0
        self._window = window_seconds
        self._is_slow = False
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        threading.Thread(target=self._run, name="watch download", daemon=True).start()

    def hold(self, connection: socket.socket) -> None:
        """Watch this connection from now on."""
        with self._lock:
            self._let_go()
            self._socket = connection.dup()  # TLS takes the other one over
        self.check()

    def count(self, num_bytes: int) -> None:
        """So much has come."""
        self._num_bytes += num_bytes

    def check(self) -> None:
        if self._is_slow:
            raise TimeoutError(f"less than {SLOWEST_BYTES_PER_SECOND // 1000} kB a second came")

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Around what a closed connection breaks: the reason is that it was slow."""
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
                with self._lock, contextlib.suppress(OSError):  # the other end was faster
                    if self._socket is not None:
                        self._socket.shutdown(socket.SHUT_RDWR)
                return
            seen = self._num_bytes


class _Way:
    """Connects to hosts, and to internal addresses only where that is wanted."""

    def __init__(self, watch: _Watch, *, may_be_internal: bool) -> None:
        self._watch = watch
        self._may_be_internal = may_be_internal

    def kind_for(self, request: urllib.request.Request, direct: Any, proxied: Any) -> Any:
        """What makes the connection for a request: by this way, or to a proxy, which looks names up itself.

        Raises:
            PrivateAddress: a proxy would be asked for an internal place.
        """
        asked = urlsplit(request.full_url)
        if request.host.rpartition("@")[2] == asked.netloc.rpartition("@")[2]:
            return partial(direct, way=self)
        name = (asked.hostname or "").rstrip(".")
        if not self._may_be_internal and (name.rpartition(".")[2] == "localhost" or is_internal(name)):
            raise PrivateAddress(name)
        return proxied

    def connect(self, address: tuple[str, int], timeout: float | None = None, *_: object) -> socket.socket:
        """Stands for `socket.create_connection`."""
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
            # What a public server redirects to is none of a private network.
            self._may_be_internal = self._may_be_internal and is_internal(str(place[0]))
            return connection
        assert failure is not None
        raise failure


class PrivateAddress(urllib.error.URLError):
    """An address of this machine or of a private network, which the volunteer did not name."""

    def __init__(self, host: str) -> None:
        super().__init__(f"{clean_text(host, 100)} is in a private network")


class _HttpConnection(http.client.HTTPConnection):
    def __init__(self, host: str, way: _Way, **options: Any) -> None:
        super().__init__(host, **options)
        self._create_connection = way.connect


class _HttpsConnection(http.client.HTTPSConnection):
    def __init__(self, host: str, way: _Way, **options: Any) -> None:
        super().__init__(host, **options)
        self._create_connection = way.connect


class _Http(urllib.request.HTTPHandler):
    def __init__(self, way: _Way) -> None:
        super().__init__()
        self._way = way

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._way.kind_for(req, _HttpConnection, http.client.HTTPConnection), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, way: _Way) -> None:
        super().__init__()
        self._way = way

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._way.kind_for(req, _HttpsConnection, http.client.HTTPSConnection), req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows what the rule allows; every refusal is a `URLError` with the reason."""

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
        fp.close()  # the library would read its body to an end that may never come
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _parts(base: str, location: str) -> SplitResult | None:
    """Where a redirect leads; None: it is no address."""
    try:
        parts = urlsplit(urljoin(base, location))
        _ = parts.port, parts.hostname
    except ValueError:
        return None
    return parts


class RedirectRefused(urllib.error.URLError):
    """A redirect that the rule does not allow; `target` is where it leads."""

    def __init__(self, reason: str, target: str) -> None:
        super().__init__(reason)
        self.target = target
