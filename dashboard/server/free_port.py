"""Check whether the page's port is free, before loading the server, which takes a second."""

from __future__ import annotations

import errno
import socket

from dht.ground.errors import UsageFault


def check_free(host: str, port: int) -> None:
    """Refuse a port in use, and a host that is not this machine.

    Raises:
        UsageFault: the page cannot be served there.
    """
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise cannot_serve(host, port, error) from error


def cannot_serve(host: str, port: int, error: OSError) -> UsageFault:
    """Return the error for an address where no page can be served."""
    if error.errno == errno.EADDRINUSE:
        return UsageFault(f"port {port} of {host} is in use by another program; choose another port with --port")
    return UsageFault(
        f"cannot serve at {host} port {port} ({error.strerror or error}); expected an address of this machine and a "
        "port that you may use; choose others with --host and --port"
    )
