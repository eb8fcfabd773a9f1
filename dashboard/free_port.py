"""Whether the port of a page is free: asked before the server is loaded, which takes a second."""

from __future__ import annotations

import errno
import socket

from dht.errors import UsageFault


def check_free(host: str, port: int) -> None:
    """Refuse a port that another program has.

    Raises:
        UsageFault: it is taken.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            # Whatever else is wrong is said by the server.
            if error.errno == errno.EADDRINUSE:
                raise UsageFault(
                    f"Port {port} of {host} is taken by another program; give another one with --port."
                ) from error
