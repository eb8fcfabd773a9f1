"""A swarm in memory of members that say and send whatever a fuzzer makes up; observers meet it instead of the daemon's.

An input is split at `SEPARATOR`: the run's manifest, then records of peers as JSON of their fields, then frames (they
begin with `FRAME`). Manifest and records are signed here, each record by another member: an attacker signs its own
garbage, too. The frames are what the members send in place of their first answers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import msgpack
import numpy as np

from averaging.outer.outer_step import anchor_digest
from averaging.transfer.messages import STATE_PROTOCOL
from averaging.transfer.server import StateServer
from averaging.transfer.snapshots import Snapshot
from dht.admission.handshake_frames import AccessRule
from dht.ground.errors import LocalFault, PeerFault
from dht.ground.host import PeerId, Stream, StreamHandler
from dht.identity.keys import Identity, make_run_id
from dht.records.evaluation import Evaluation
from dht.records.peer_record import PeerRecord, decode_peer_record, encode_peer_record
from dht.records.signed_manifest import decode_run_record
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_sizes
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.network.reachability.probe_messages import PROBE_PROTOCOL
from peer.network.reachability.probe_server import ProbeServer
from peer.observe.observer import observer_of
from tests.kit.records import make_record
from tests.simulator.network.host import MemoryHost, MemoryNetwork
from tests.simulator.virtual_time import run_virtual

NOW: Final = 1_800_000_000.0
SEPARATOR: Final = b"\n~~\n"
FRAME: Final = b"frame:"
MEMBERS = tuple(Identity.from_seed(bytes([number]) * 32) for number in (1, 4, 5))
OWNER = Identity.from_seed(bytes([3]) * 32)
RUN_ID = make_run_id("tiny", OWNER.public_key)
ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{MEMBERS[0].peer_id}"


def tiny_run() -> RunManifest:
    """A model of some thousand parameters, whose tokens are bytes."""
    return RunManifest.from_fields(
        {
            "name": "tiny",
            "model": {"num_layers": 1, "d_model": 16, "num_heads": 2, "vocab_size": 257, "context": 16},
            "training": {"batch_size": 2},
            "averaging": {"num_fragments": 2},
        }
    )


def state_of(manifest: RunManifest, fragment: int) -> Snapshot:
    """What honest members have of a fragment."""
    size = seed_sizes(manifest)[fragment]
    anchor = np.random.default_rng(fragment).standard_normal(size, dtype=np.float32) / 50
    momentum = np.zeros(size, dtype=np.float32)
    return Snapshot(5 + fragment, 1000 + fragment, anchor, momentum, anchor_digest(anchor, momentum))


def honest_record(manifest: RunManifest) -> PeerRecord:
    """Of a member with that state."""
    states = [state_of(manifest, fragment) for fragment in range(manifest.averaging.num_fragments)]
    return make_record(
        MEMBERS[0].peer_id,
        run_id=RUN_ID,
        sequence=7,
        expires_at=NOW + 60,
        manifest_hash=manifest.hash,
        name="Ada",
        inner_steps=5,
        tokens=80,
        rounds_contributed=1,
        tokens_per_second=10.0,
        upload_bits_per_second=1e6,
        train_loss=2.0,
        evaluation=Evaluation(3.0, 11),
        versions=tuple(state.version for state in states),
        digests=tuple(state.digest[:8] for state in states),
        lineage_tokens=tuple(state.lineage_tokens for state in states),
        started_at=NOW - 10,
    )


def fields_of(record: PeerRecord, **changes: Any) -> bytes:
    """A record as JSON; digests in hexadecimal."""
    fields = asdict(replace(record, **changes))
    fields["digests"] = [digest.hex() for digest in fields["digests"]]
    return json.dumps({name: value.hex() if type(value) is bytes else value for name, value in fields.items()}).encode()


_BYTES = [name for name, value in asdict(honest_record(tiny_run())).items() if type(value) is bytes]
"""Fields of a record that are hexadecimal here, beside the digests."""


def _record_of(data: bytes, who: Identity) -> bytes | None:
    """The record with these fields, signed; None when no member could sign it."""
    try:
        fields = json.loads(data)
        fields["digests"] = tuple(bytes.fromhex(digest) for digest in fields["digests"])
        for name in _BYTES:
            fields[name] = bytes.fromhex(fields[name])
        made = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        made["evaluation"] = None if made["evaluation"] is None else Evaluation(**made["evaluation"])
        record = encode_peer_record(PeerRecord(**{**made, "peer_id": who.peer_id}), who)
        decode_peer_record(record, run_id=RUN_ID, now=NOW)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, PeerFault, LocalFault):
        return None
    return record


def run_record(manifest: bytes) -> bytes:
    """Whatever bytes, signed as the run's manifest by an owner who signs anything."""
    message = b"murmuration run record\0" + RUN_ID.encode() + b"\0" + manifest
    body: bytes = msgpack.packb([1, RUN_ID, manifest])
    return OWNER.sign(message) + OWNER.public_key + body


class HostileSwarm:
    """What one input makes of the swarm."""

    def __init__(self, data: bytes) -> None:
        manifest, *rest = data.split(SEPARATOR)
        self._run = run_record(manifest)
        described = [part for part in rest if not part.startswith(FRAME)]
        made = [_record_of(part, MEMBERS[number % len(MEMBERS)]) for number, part in enumerate(described)]
        # A store returns only records that hold for themselves; their decoder is a target of its own.
        self._records = [record for record in made if record is not None]
        self._frames = [part.removeprefix(FRAME) for part in rest if part.startswith(FRAME)]

    def play(self, main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        """`asyncio.run`, in virtual time."""
        return run_virtual(main)

    @contextlib.asynccontextmanager
    async def observer_network(self, *arguments: Any, **options: Any) -> AsyncIterator[tuple[MemoryHost, Any]]:
        """In place of `dht.observer.network.observer_network`."""
        network = MemoryNetwork(1, latency_seconds=(0.001, 0.001))
        for who in MEMBERS:
            self._serve(MemoryHost(network, who.peer_id), who)
        host = MemoryHost(network, Identity.from_seed(bytes([9]) * 32).peer_id)
        yield host, self
        if network.handler_errors:
            raise network.handler_errors[0]

    @contextlib.asynccontextmanager
    async def on_errand(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        """In place of `peer.owner.owner_connection.on_errand`."""
        record = decode_run_record(run_record(tiny_run().to_bytes()), run_id=RUN_ID)
        async with self.observer_network() as (host, store):
            yield observer_of(host, store, record), None

    def _serve(self, host: MemoryHost, who: Identity) -> None:
        hosts = _Twisted(host, self._frames)
        try:
            manifest = RunManifest.from_bytes(decode_run_record(self._run, run_id=RUN_ID).manifest)
        except (ValueError, PeerFault):
            return
        door = RunHandshakePolicy(AccessRule(RUN_ID, manifest.hash, "0.1.0", manifest.rules), who.peer_id, "trainer")
        with contextlib.suppress(MemoryError, ValueError, OverflowError):
            StateServer(hosts, door, _Source(), manifest.averaging.num_fragments)  # type: ignore[arg-type]
        ProbeServer(hosts, door, _dial, wall_clock=lambda: NOW, clock=lambda: 0.0)  # type: ignore[arg-type]

    # The store that the observer reads

    @property
    def dial_faults(self) -> dict[str, str]:
        return {}

    async def bootstrap(self, multiaddrs: list[str]) -> int:
        return 1

    async def fetch_run(self, run_id: str) -> bytes | None:
        return self._run

    async def fetch_peers(self, run_id: str, keys: Sequence[Any] = (), num_holders: int = 2) -> list[bytes]:
        return list(self._records)

    async def fetch_profiles(self, run_id: str) -> list[bytes]:
        return list(self._records)


class _Source:
    """Honest states of the seeds' own run, whatever manifest was made up."""

    async def snapshot(self, fragment: int) -> Snapshot | None:
        return state_of(tiny_run(), fragment) if fragment < tiny_run().averaging.num_fragments else None

    def digest_at(self, fragment: int, version: int) -> bytes:
        state = state_of(tiny_run(), fragment) if fragment < tiny_run().averaging.num_fragments else None
        return state.digest if state is not None and state.version == version else b""

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        return ()


async def _dial(addresses: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(addresses, "")


class _Twisted:
    """A host whose streams send made-up frames first."""

    def __init__(self, host: MemoryHost, frames: list[bytes]) -> None:
        self._host = host
        self._frames = frames

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        async def serve(stream: Stream) -> None:
            await handler(_TwistedStream(stream, self._frames))  # type: ignore[arg-type]

        assert protocol in (STATE_PROTOCOL, PROBE_PROTOCOL)
        self._host.handle(protocol, serve)

    async def connections(self) -> dict[PeerId, Any]:
        return {}


class _TwistedStream:
    def __init__(self, stream: Stream, frames: list[bytes]) -> None:
        self._stream = stream
        self._frames = frames
        self._is_greeted = False

    async def send(self, frame: bytes | bytearray | memoryview) -> None:
        # The welcome is right: what comes behind it is what is looked at.
        if self._is_greeted and self._frames:
            frame = self._frames.pop(0)
        self._is_greeted = True
        await self._stream.send(frame)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
