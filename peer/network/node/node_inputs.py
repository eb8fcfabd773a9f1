"""Identity of a node, and the ports that it gets."""

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
"""Pause between two looks at the outbox: far below an inner step of any model worth training here."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Key, run and role of this peer, and what it says about itself."""

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
    """Everything that differs between real life and simulation."""

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
    """Waits between two looks into the mailbox; the simulator knows when there is something to see."""
    verified: VerifiedRecords | None = None
    """Records known to be good; None begins with none. The peers of a simulation share theirs."""
    owner_public_key: bytes = bytes(32)
    serve_bits_per_second: float = math.inf  # most upload for newcomers that fetch state
    line: Pace | None = None  # None: rounds do not pace themselves
    max_queued_bytes: int = MAX_QUEUED_BYTES  # per lane to a remote
    parts: RoundParts = HONEST  # what rounds are made of
    files: FileSource | None = None  # of the run; None: it has none
