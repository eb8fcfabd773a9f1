"""The identity of a node, and the ports that it uses."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from averaging.exchange.exchange_ports import HONEST, RoundParts
from averaging.lanes.links import MAX_QUEUED_BYTES
from averaging.transfer.server import FileSource
from dht.ground.compute import Compute
from dht.ground.host import Host
from dht.ground.store import RecordStore
from dht.identity.keys import Identity
from dht.records.signature_cache import VerifiedRecords
from dht.streams.upload_and_download_limits import Pace
from peer.events.peer_events import Event
from peer.network.membership.run_handshake_policy import RunHandshakePolicy

POLL_SECONDS = 0.02
"""Pause between two polls of the outbox: far below an inner step of any model worth training here."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Key, run and role of this peer, and the facts that it announces about itself."""

    identity: Identity
    run_id: str
    session: int
    role: str
    device: str
    name: str
    software: str
    contributor_key: bytes = b""
    site: str = ""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The dependencies that differ between real life and simulation."""

    host: Host
    store: RecordStore
    handshake_policy: RunHandshakePolicy
    wall_clock: Callable[[], float]
    clock: Callable[[], float]
    compute: Compute
    emit: Callable[[Event], None]
    randomness: random.Random
    poll_seconds: float = POLL_SECONDS
    rest: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits between two polls of the mailbox; the simulator wakes it when the mailbox changes."""
    verified: VerifiedRecords | None = None
    """Records with verified signatures; None begins with none. The peers of a simulation share theirs."""
    owner_public_key: bytes = bytes(32)
    serve_bits_per_second: float = math.inf  # upload limit for newcomers that fetch state
    line: Pace | None = None  # None: rounds do not pace themselves
    max_queued_bytes: int = MAX_QUEUED_BYTES  # per lane to a remote
    parts: RoundParts = HONEST  # the implementation of rounds
    files: FileSource | None = None  # the run's files; None: the run has none
