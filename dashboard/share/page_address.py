"""The address under which visitors see the page: from the owner, or from the request. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from dht.identity.multiaddr import is_this_machine

_HOST: Final = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"
)
MAX_ADDRESS_LENGTH: Final = 200


def checked_address(text: str) -> str:
    """Return a page's address from its owner, without a slash at its end.

    Raises:
        ValueError: the text is not an address; the message gives the expected form.
    """
    parts = urlsplit(text)
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
    is_path = re.fullmatch(r"[A-Za-z0-9/._~-]*", parts.path) is not None
    if not (len(text) <= MAX_ADDRESS_LENGTH and parts.scheme in ("http", "https") and is_plain and is_path):
        raise ValueError("expected an address such as https://run.example.org")
    if not _HOST.fullmatch(parts.netloc):
        raise ValueError("expected the name of a host in it, as in https://run.example.org")
    return text.rstrip("/")


def path_of(address: str) -> str:
    """Return the path of a checked address, such as ``/starlings``, or an empty text."""
    return urlsplit(address).path.rstrip("/")


def origin_of(asked: str, scheme: str, host: str) -> str:
    """Return ``https://run.example.org``: `asked` if the owner gave it, otherwise from the request; empty if that has
    no valid host.

    Args:
        scheme: scheme of the request, or the one that a proxy reports.
        host: its Host header, which a visitor may have invented.
    """
    if asked:
        return asked
    return f"{'https' if scheme == 'https' else 'http'}://{host}" if _HOST.fullmatch(host) else ""


def is_for_others(origin: str) -> bool:
    """Return whether another machine may open the page: the address is known and not loopback."""
    try:
        host = urlsplit(origin).hostname or "localhost"
    except ValueError:
        return False
    return not is_this_machine(host)
