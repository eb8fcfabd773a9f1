"""The address under which visitors see the page: what its owner says, or what the request was sent to. Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_HOST: Final = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"
)
MAX_ADDRESS_LENGTH: Final = 200


def checked_address(text: str) -> str:
    """A page's own address as its owner gives it, without a slash at its end.

    Raises:
        ValueError: it is none; the text says what was expected.
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
    """The path of a checked address, such as ``/starlings``; empty: it has none."""
    return urlsplit(address).path.rstrip("/")


def origin_of(asked: str, scheme: str, host: str) -> str:
    """``https://run.example.org``: `asked` if the owner gave it, else what the request says; empty if that is no host.

    Args:
        scheme: of the request, or what a proxy says of it.
        host: its Host header; a visitor may have written anything.
    """
    if asked:
        return asked
    return f"{'https' if scheme == 'https' else 'http'}://{host}" if _HOST.fullmatch(host) else ""


def is_for_others(origin: str) -> bool:
    """Whether another machine may open it: it is known, and no loopback address."""
    try:
        host = urlsplit(origin).hostname or "localhost"
    except ValueError:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.rpartition(".")[2] != "localhost"
    return not (address.is_loopback or address.is_unspecified)
