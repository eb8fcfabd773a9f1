"""The dashboard: what is folded from hostile records, what the page shows, how viewers are kept up to date."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from dashboard.history.trend import Trend
from dashboard.history_facts import HistoryView
from dashboard.observe.dashboard_state import DashboardState, fold
from dashboard.observe.listed_peers import Look
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.ground.store import LEVEL_0_KEYS, PeerKey
from dht.identity.keys import Identity, make_run_id
from dht.records.evaluation import Evaluation
from dht.records.peer_record import PeerRecord, encode_peer_record
from dht.records.profiles import Profile
from dht.records.signed_manifest import encode_run_record, sign_run_record

OWNER = Identity.generate()
RUN_ID = make_run_id("tinybytes", OWNER.public_key)
MANIFEST = json.dumps(
    {
        "revision": 3,
        "description": "Bytes of the standard library",
        "licence": "MIT",
        "training": {"schedule": {"tokens": 500_000_000}},
        "model": {"num_layers": 4, "d_model": 128},
        "averaging": {"mode": "carry", "codec": "int4", "num_fragments": 2},
        "changes": [{"at_version": 0, "note": "raised H to 40", "noted_at": 1_899_970_000}],
    }
).encode()
RUN_RECORD = sign_run_record(RUN_ID, MANIFEST, OWNER)
MANIFEST_HASH = hashlib.sha256(MANIFEST).digest()
NOW = 1_900_000_000.0
HOSTILE_NAME = '<script>alert("x")</script>'
PEERS = [Identity.generate() for _ in range(4)]


def record_of(identity: Identity, *, sequence: int = 1, now: float = NOW, **changes: Any) -> PeerRecord:
    fields: dict[str, Any] = {
        "run_id": RUN_ID,
        "peer_id": identity.peer_id,
        "session": 7,
        "sequence": sequence,
        "expires_at": now + 38.0,
        "manifest_hash": MANIFEST_HASH,
        "state": "training",
        "role": "trainer",
        "device": "RTX 4090",
        "name": "",
        "software": "0.1.0",
        "reachable": True,
        "inner_steps": 40,
        "tokens": 40_960,
        "rounds_contributed": 2,
        "tokens_per_second": 1000.0,
        "upload_bits_per_second": 4e6,
        "train_loss": 2.5,
        "evaluation": Evaluation(2.75, 5),
        "versions": (3, 2),
        "digests": (b"a" * 8, b"b" * 8),
        "lineage_tokens": (9000, 7000),
        "started_at": now - 60.0,
    }
    return PeerRecord(**{**fields, **changes})


def profile_of(contributor_id: str, *machines: str, **changes: Any) -> Profile:
    """What the person with this key says in the run."""
    ids = tuple(map(PeerId, machines))
    profile = Profile(RUN_ID, PeerId(contributor_id), 1, NOW, NOW + 86_400, "Ada", "DE", False, ids)
    return replace(profile, **changes)


def bare_record(peer_id: str, *, now: float = NOW) -> PeerRecord:
    return replace(record_of(PEERS[0], now=now), peer_id=PeerId(peer_id))


def empty_state(now: float = NOW) -> DashboardState:
    return DashboardState(run_id=RUN_ID, started_at=now, now=now)


def state_with(*records: PeerRecord, now: float = NOW) -> DashboardState:
    return fold(empty_state(now), Look(now=now, num_members=3, records=records))


def history_of(state: DashboardState) -> HistoryView:
    """What a history that begins with this look says."""
    trend = Trend()
    trend.look(state, 0, 0.0, ())
    return HistoryView(state.now, state.started_at, points=tuple(trend.points))


class FakeStore:
    """A `RecordStore` of what the test puts in; `fault` is raised by every operation."""

    def __init__(self) -> None:
        self.num_members = 1
        self.run: bytes | None = encode_run_record(RUN_RECORD)
        self.peers: dict[str, bytes] = {}
        self.fault: PeerFault | None = None
        self.dialled: list[list[str]] = []

    def put(self, identity: Identity, **changes: Any) -> None:
        self.peers[identity.peer_id] = encode_peer_record(record_of(identity, **changes), identity)

    async def publish_run(self, run_id: str, record: bytes, expires_at: float) -> int:
        raise AssertionError("an observer publishes nothing")

    async def publish_peer(
        self, run_id: str, peer_id: PeerId, record: bytes, expires_at: float, levels: Sequence[int] = (0,)
    ) -> int:
        raise AssertionError("an observer publishes nothing")

    async def fetch_run(self, run_id: str) -> bytes | None:
        return self.run

    async def fetch_peers(
        self, run_id: str, keys: Sequence[PeerKey] = LEVEL_0_KEYS, num_holders: int = 2
    ) -> list[bytes]:
        if self.fault is not None:
            raise self.fault
        return list(self.peers.values())

    async def publish_profile(self, run_id: str, contributor_id: PeerId, record: bytes, expires_at: float) -> int:
        raise AssertionError("an observer publishes nothing")

    async def fetch_profiles(self, run_id: str) -> list[bytes]:
        return []

    async def bootstrap(self, multiaddrs: list[str]) -> int:
        self.dialled.append(multiaddrs)
        return self.num_members

    async def close(self) -> None: ...


class TextOnly(HTMLParser):
    """Collects tag names, attributes and text, as a browser without scripts sees them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


# State
