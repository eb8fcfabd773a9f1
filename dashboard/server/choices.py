"""What whoever runs a dashboard may choose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dashboard.server.doors import Network
from dht.observer.backend import HostBackend


@dataclass(frozen=True, slots=True)
class Choices:
    """One dashboard's place, files and rules.

    Attributes:
        db: the history's file; None: in memory.
        token_file: makes the page private.
        join_addresses: members' addresses that the page shows to everybody.
        backend: what carries the connections to the swarm.
        proxies: reverse proxies in front of the page, whose word on who asks is believed.
        is_rebuilding: make all credit again from the signed commits in `db` before anything is shown.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    db: Path | None = None
    token_file: Path | None = None
    join_addresses: tuple[str, ...] = ()
    backend: HostBackend = "p2pd"
    proxies: tuple[Network, ...] = ()
    is_rebuilding: bool = False
