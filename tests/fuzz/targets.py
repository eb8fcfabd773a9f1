"""Everything that reads bytes of others, or of a disk, as functions that a fuzzer can call.

A target takes any bytes and may raise what its decoder documents: `PeerFault` or `LocalFault`, or ValueError where the
decoder says so and its callers turn that into one of the two. Everything else is a finding. Where a signature stands
before the decoder, a second target signs the bytes first: an attacker signs its own garbage, too.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from averaging.codec.blocks import EncodedBlocks
from averaging.codec.digests import digest_of
from averaging.signing.receipt_file import ReceiptFault, RunFrame, line_of, open_receipt, read_line, receipt_of
from averaging.signing.round_signatures import Checker, Scope
from averaging.transfer import messages as state_messages
from averaging.transfer.server import StateServer
from averaging.wire import frames as wire
from averaging.wire.field_checks import Limits
from averaging.wire.messages import Commit
from dht.admission import tickets
from dht.admission.dated_proofs import make_proof, open_proof
from dht.admission.handshake_frames import AccessRule, check_hello, check_reply, make_hello, make_welcome, proof_in
from dht.ground.delimited import MessageError
from dht.ground.errors import LocalFault, PeerFault
from dht.ground.fields import pack
from dht.identity import multiaddr
from dht.identity.keys import Identity, make_run_id, peer_id_bytes, peer_id_of_bytes, split_run_id
from dht.pylibp2p.protobuf_clash import make_room_for_libp2p
from dht.pylibp2p.yamux import Yamux
from dht.records import profiles
from dht.records.peer_record import decode_peer_record, encode_peer_record
from dht.records.signed_manifest import decode_run_record, encode_run_record, sign_run_record
from dht.streams.framing import FramedStream, frame_header
from peer.checkpoint.checked_files import read_json, write_json
from peer.checkpoint.checkpoint_facts import Metadata
from peer.checkpoint.kept_commits import unpacked_commits
from peer.checkpoint.tensor_files import TensorSpec, open_arrays, write_raw
from peer.config.allowed_files import FileSection
from peer.config.manifest import RunManifest
from peer.events.event_log import from_json, to_json
from peer.events.peer_events import Event, RunChanged
from peer.export.formats.model_header import DIGEST_NAME, config_digest, read_header
from peer.network.membership.invite_users import INVITE_USERS_NAME, read_users
from tests.fuzz.messages import one_of_each_kind
from tests.kit.records import make_record
from tests.kit.rounds.donor_scene import MemoryFiles

ALICE, BOB, OWNER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
RUN_ID = make_run_id("tiny", OWNER.public_key)
NOW = 1_800_000_000.0
ADDRESS = f"/ip4/203.0.113.5/tcp/4001/p2p/{ALICE.peer_id}"
LIMITS = Limits((40, 1000, 8), max_payload_bytes=600)
RULE = AccessRule(RUN_ID, bytes(32), "0.1.0")
MAX_FRAME_BYTES = 4096
_FAULTS = (PeerFault, LocalFault)


@dataclass(frozen=True, slots=True)
class Target:
    """`read` takes any bytes; `seeds` are valid ones; `allowed` is what it may raise.

    Attributes:
        most_seconds: of processor time for one input. A thousand times what the slowest decoder takes; on a busy
            machine a process may be put aside for a tenth of it.
        most_bytes: of one input.
    """

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    allowed: tuple[type[Exception], ...] = _FAULTS
    most_seconds: float = 1.0
    most_bytes: int = 4096

    def take(self, data: bytes) -> None:
        """Read once; what is allowed is over, what is not goes up."""
        with contextlib.suppress(*self.allowed):
            self.read(data)


def all_targets() -> dict[str, Target]:
    """By name, those of an optional extra only where it is installed."""
    # Commands, which load hivemind, may come after py-libp2p in this process.
    with contextlib.suppress(LocalFault):
        make_room_for_libp2p()
    made = [*_wire(), *_records(), *_membership(), *_addresses(), *_streams(), *_files()]
    with contextlib.suppress(ImportError):
        made += _libp2p()
    return {target.name: target for target in made}


def _wire() -> list[Target]:
    frames = [wire.encode(message) for message in one_of_each_kind(*sorted((ALICE.peer_id, BOB.peer_id)))]
    run = RunFrame(RUN_ID, bytes(32), (40, 1000, 8))
    receipts = tuple(receipt_of(run, frame) for frame in (frames[0], frames[-1]))
    return [
        Target("wire", lambda data: wire.decode(data, BOB.peer_id, LIMITS), tuple(frames)),
        Target(
            "wire_header",
            # The prefix is right, so that all of it goes into the header.
            lambda data: wire.decode(frames[0][:1] + len(data).to_bytes(4, "big") + data, BOB.peer_id, LIMITS),
            tuple(frame[5:] for frame in frames),
        ),
        Target("state_message", lambda data: state_messages.unpack(data, BOB.peer_id, 6), (state_messages.NONE,)),
        Target("state_request", _answer_request, tuple(map(pack, _REQUESTS))),
        Target(
            "file_header",
            lambda data: state_messages.file_header_in(data, BOB.peer_id, 3),
            (state_messages.NONE, pack(["file-header", bytes(96)])),
        ),
        Target(
            "receipt",
            lambda data: open_receipt(RUN_ID, data),
            receipts,
            (ReceiptFault,),
        ),
        Target(
            "receipt_line",
            # Whatever is signed: the fuzzer shall get past the signatures.
            lambda data: read_line(data.decode("utf-8", "replace"), lambda *_: True),
            (line_of(frames[0], run).encode(),),
            (ReceiptFault,),
        ),
        Target(
            "encoded_blocks",
            lambda data: EncodedBlocks.unpack("int4", 8, data[0] if data else 0, data[1:]),
            (bytes([16]) + bytes(12),),
            (ValueError,),
        ),
    ]


_FILE = bytes(range(256))
_REQUESTS: list[list[Any]] = [
    ["digest", 0, 1],
    ["log", 0, 1],
    ["header", 0],
    ["chunks", 0, 1, bytes(32), 0, 1],
    ["file-header", digest_of(_FILE)],
    ["file-chunks", digest_of(_FILE), 0, 1],
]
"""One of each kind that a donor answers."""


class _Donor:
    """What `StateServer` needs: a host that keeps the handler, an open door, a state of which nothing is there."""

    remote = BOB.peer_id
    bytes_sent = 0

    def __init__(self) -> None:
        self.serve: Any = None
        self._frames: list[bytes] = []
        StateServer(*(self, self, self, 2), files=MemoryFiles(_FILE))  # type: ignore[arg-type]

    def handle(self, protocol: str, handler: Any) -> None:
        self.serve = handler

    def admit(self, remote: str, hello: bytes) -> str:
        return "observer"

    def welcome(self, remote: str, hello: bytes) -> bytes:
        return b""

    async def snapshot(self, fragment: int) -> None:
        return None

    def digest_at(self, fragment: int, version: int) -> bytes:
        return b""

    def commit_frames(self, fragment: int, version: int) -> tuple[bytes, ...]:
        return ()

    def begin(self, frame: bytes) -> None:
        """The remote sends this, after its hello."""
        self._frames = [b"hello", frame, state_messages.ACKNOWLEDGE]

    async def receive(self, max_bytes: int) -> bytes:
        return self._frames.pop(0)

    async def send(self, frame: bytes) -> None:
        assert len(frame) <= 1 << 20


@cache
def _donor() -> tuple[_Donor, asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return _Donor(), loop


def _answer_request(data: bytes) -> None:
    donor, loop = _donor()
    donor.begin(data[: state_messages.MAX_REQUEST_BYTES])
    loop.run_until_complete(donor.serve(donor))


def _records() -> list[Target]:
    record = make_record(
        ALICE.peer_id,
        run_id=RUN_ID,
        sequence=7,
        expires_at=NOW + 60,
        name="Ada",
        inner_steps=5,
        tokens=80,
        rounds_contributed=1,
        tokens_per_second=10.0,
        upload_bits_per_second=1e6,
        train_loss=2.0,
        versions=(1, 2),
        digests=(bytes(8), bytes(8)),
        lineage_tokens=(3, 4),
        started_at=NOW - 10,
    )
    peer = encode_peer_record(record, ALICE)
    manifest = RunManifest(name="tiny").to_bytes()
    file = FileSection(name="tokenizer.json", bytes=2**21, digest="ab" * 32)
    with_file = RunManifest(name="tiny", files=(file,)).to_bytes()
    run = encode_run_record(sign_run_record(RUN_ID, manifest, OWNER))
    profile = profiles.Profile(RUN_ID, BOB.peer_id, 1, NOW, NOW + 60, "Bob", "NL", False, (ALICE.peer_id,))
    whole = profiles.encode_profile(profile, BOB)

    def signed(domain: bytes, who: Identity, body: bytes) -> bytes:
        return who.sign(domain + who.public_key + body) + who.public_key + body

    def read_run_manifest(data: bytes) -> object:
        # The owner's key is stolen, or the owner careless: what is signed is any bytes.
        message = b"murmuration run record\0" + RUN_ID.encode() + b"\0" + data
        body: bytes = msgpack.packb([1, RUN_ID, data])
        found = decode_run_record(OWNER.sign(message) + OWNER.public_key + body, run_id=RUN_ID)
        return RunManifest.from_bytes(found.manifest)

    return [
        Target("peer_record", lambda data: decode_peer_record(data, run_id=RUN_ID, now=NOW), (peer,)),
        Target(
            "peer_record_signed",
            lambda data: decode_peer_record(signed(b"murmuration peer record\0", ALICE, data), run_id=RUN_ID, now=NOW),
            (peer[96:],),
        ),
        Target("run_record", lambda data: decode_run_record(data, run_id=RUN_ID), (run,)),
        Target("run_record_signed", read_run_manifest, (manifest,), (*_FAULTS, ValueError)),
        Target("manifest", RunManifest.from_bytes, (manifest, with_file), (ValueError,)),
        Target("profile", lambda data: profiles.decode_profile(data, run_id=RUN_ID, now=NOW), (whole,)),
        Target(
            "profile_signed",
            lambda data: profiles.decode_profile(signed(b"murmuration profile\0", BOB, data), run_id=RUN_ID, now=NOW),
            (whole[96:],),
        ),
        Target("run_id", lambda data: split_run_id(data.decode("utf-8", "replace")), (RUN_ID.encode(),)),
    ]


def _membership() -> list[Target]:
    seed = b"s" * 32
    once = tickets.issue_ticket(OWNER, RUN_ID, "once", Identity.from_seed(seed).public_key, 2**35, b"12345678")
    invite = tickets.encode_invite(tickets.Invite(RUN_ID, (ADDRESS,), OWNER.public_key, once, seed))
    packed = base64.urlsafe_b64decode(invite.removeprefix(tickets.INVITE_PREFIX) + "==")[:-4]
    held = tickets.encode_pass(tickets.bind_ticket(RUN_ID, once, seed, ALICE.peer_id))
    proof = make_proof(ALICE, RUN_ID, BOB.peer_id, "stream", NOW, bytes(16), held)
    hello = make_hello(RULE, ALICE.peer_id, "trainer", proof)

    def read_packed_invite(data: bytes) -> object:
        checked = data + hashlib.sha256(data).digest()[:4]
        text = base64.urlsafe_b64encode(checked).decode().rstrip("=")
        found = tickets.decode_invite(tickets.INVITE_PREFIX + text)
        if found.ticket is not None and found.ticket.kind == "once":
            tickets.bind_ticket(found.run_id, found.ticket, found.secret, BOB.peer_id)
        return found

    return [
        Target("invite", lambda data: tickets.decode_invite(data.decode("utf-8", "replace")), (invite.encode(),)),
        Target("invite_packed", read_packed_invite, (packed,)),
        Target("pass", tickets.decode_pass, (held,), (ValueError,)),
        Target(
            "proof",
            lambda data: open_proof(data, RUN_ID, ALICE.peer_id, BOB.peer_id, "stream"),
            (proof,),
            (ValueError,),
        ),
        Target("hello", lambda data: check_hello(RULE, ALICE.peer_id, data), (hello,)),
        Target("proof_in_hello", proof_in, (hello,)),
        Target("reply", lambda data: check_reply(BOB.peer_id, data), (make_welcome(),)),
    ]


def _addresses() -> list[Target]:
    plain = b"/dns4/example.org/tcp/4001"
    encoded = multiaddr.parse_multiaddr("/ip6/2001:db8::1/udp/4001/quic-v1").to_bytes()
    return [
        Target("multiaddr", lambda data: multiaddr.parse_multiaddr(data.decode("utf-8", "replace")), (plain,)),
        Target(
            "peer_multiaddr",
            lambda data: multiaddr.parse_peer_multiaddr(data.decode("utf-8", "replace")),
            (ADDRESS.encode(), f"{ADDRESS}/p2p-circuit/p2p/{BOB.peer_id}".encode()),
        ),
        Target("multiaddr_bytes", multiaddr.multiaddr_from_bytes, (encoded,), (*_FAULTS, ValueError)),
    ]


class _Channel:
    """What a remote sent, and nowhere to answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def readexactly(self, num_bytes: int) -> bytes:
        if num_bytes > len(self._data):
            raise asyncio.IncompleteReadError(self._data, num_bytes)
        taken, self._data = self._data[:num_bytes], self._data[num_bytes:]
        return taken

    async def read_some(self, max_bytes: int) -> bytes:
        if not self._data:
            raise asyncio.IncompleteReadError(b"", 1)
        return await self.readexactly(min(max_bytes, len(self._data)))

    async def read(self, max_bytes: int) -> bytes:
        return await self.readexactly(min(max_bytes, len(self._data)))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


def _streams() -> list[Target]:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)

    def read_frames(data: bytes) -> None:
        async def receive() -> None:
            channel: Any = _Channel(data)
            stream = FramedStream(channel, BOB.peer_id)
            while True:
                frame = await stream.receive(MAX_FRAME_BYTES)
                assert len(frame) <= MAX_FRAME_BYTES

        loop.run_until_complete(receive())

    def read_yamux(data: bytes) -> None:
        async def receive() -> None:
            muxer = Yamux(_Channel(data))
            said = await muxer.run()
            assert isinstance(said, str)

        loop.run_until_complete(receive())

    opened = bytes([0, 1]) + (1).to_bytes(2, "big") + (1).to_bytes(4, "big") + bytes(4)
    sent = bytes([0, 0]) + bytes(2) + (1).to_bytes(4, "big") + (5).to_bytes(4, "big") + b"hello"
    ping = bytes([0, 2]) + (1).to_bytes(2, "big") + bytes(8)
    return [
        Target("frames", read_frames, (frame_header(5) + b"hello" + frame_header(0),)),
        Target("yamux", read_yamux, (opened + sent + ping, ping + opened)),
    ]


def _files() -> list[Target]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    json_path, tensor_path, users = folder / "x.json", folder / "x.safetensors", folder / INVITE_USERS_NAME
    part = {"num_bytes": 1, "digest": "0" * 64}
    counts = ("num_values", "version", "lineage_tokens", "unsent_tokens", "unsent_steps", "unsent_base_version")
    fragment = dict.fromkeys(counts, 1) | {"own_share": 0.5, "shown_share": 0.5, "digest": "0" * 64}
    fragment |= {"contribution": None, "has_velocity": False, "file": part}
    facts = {"format_version": 2, "number": 1, "run_id": RUN_ID, "peer_id": ALICE.peer_id, "manifest_hash": "0" * 64}
    facts |= {"layout_digest": "0" * 64, "software": "x", "is_last": True, "totals": {}, "fragments": [fragment]}
    facts["trainer"] = part
    write_json(folder / "good.json", facts)
    spec = TensorSpec("live.a", "F32", (2, 2))
    write_raw(folder / "good.safetensors", [spec], [np.zeros(spec.num_bytes, dtype=np.uint8)])
    event = Event(NOW, ALICE.peer_id, RunChanged(revision=2, changes="nothing"))
    use = {"serial": "00" * 8, "peer_id": ALICE.peer_id, "expires_at": 2**40}

    commit = next(one for one in one_of_each_kind(*sorted((ALICE.peer_id, BOB.peer_id))) if isinstance(one, Commit))
    commits = msgpack.packb([wire.encode(commit)])

    def read_kept_commits(data: bytes) -> object:
        # Whatever is signed: the fuzzer shall get past that.
        checker = Checker(Scope(RUN_ID, bytes(32)), lambda *_: True)
        return unpacked_commits(data, commit.fragment, commit.version + 1, LIMITS.fragment_sizes, checker)

    def read_facts(data: bytes) -> object:
        json_path.write_bytes(data)
        return read_json(json_path)

    def read_checked_facts(data: bytes) -> object:
        content: Mapping[str, Any] = json.loads(data)
        return Metadata.model_validate_json(json.dumps(content))

    def read_tensors(data: bytes) -> object:
        tensor_path.write_bytes(data)
        file = open_arrays(tensor_path)
        file.check(spec)
        return file.get("live.a").tobytes()

    def read_used(data: bytes) -> object:
        users.write_bytes(data)
        return read_users(users)

    return [
        *_model_headers(),
        Target("checkpoint_json", read_facts, ((folder / "good.json").read_bytes(),), (ValueError,)),
        Target("checkpoint_facts", read_checked_facts, (json.dumps(facts).encode(),), (ValueError, RecursionError)),
        Target("checkpoint_commits", read_kept_commits, (commits,), (ValueError,)),
        Target("checkpoint_tensors", read_tensors, ((folder / "good.safetensors").read_bytes(),), (ValueError,)),
        Target("event", from_json, (to_json(event).encode(),), (ValueError,)),
        Target("used_invites", read_used, (json.dumps(use).encode() + b"\n",)),
    ]


def _model_headers() -> list[Target]:
    """What a model file says of itself; whoever writes one can write a digest that fits, too."""
    manifest = RunManifest(name="tiny")
    fragment = dict.fromkeys(("index", "version", "lineage_tokens", "num_values", "num_confirmed"), 1)
    told: dict[str, Any] = {
        "schema": 2,
        "run_id": RUN_ID,
        "software": "0.1.0",
        "exported_at": NOW,
        "origin": "a run",
        "manifest_hash": manifest.hash.hex(),
        "manifest": json.loads(manifest.to_bytes()),
        "versions": [1],
        "tokens": 9,
        "fragments": [{**fragment, "digest": "0" * 64}],
        "validation_loss": 1.5,
        "validation_version": 1,
        "parameters_sha256": "0" * 64,
    }

    def read(data: bytes) -> object:
        return read_header(Path("model"), data.decode("utf-8", "replace"))

    def read_with_digest(data: bytes) -> object:
        try:
            config = json.loads(data)
        except (ValueError, RecursionError):
            return read(data)
        if isinstance(config, dict):
            config[DIGEST_NAME] = config_digest(config)
        return read(json.dumps(config).encode())

    whole = json.dumps({**told, DIGEST_NAME: config_digest(told)}).encode()
    return [
        Target("model_header", read, (whole,)),
        Target("model_header_signed", read_with_digest, (whole,)),
    ]


def _libp2p() -> list[Target]:
    from libp2p.identity.identify.pb.identify_pb2 import Identify
    from libp2p.kad_dht.pb.kademlia_pb2 import Message

    from dht.pylibp2p import messages

    answer = Message(type=Message.FIND_NODE, key=b"k")
    address = multiaddr.parse_multiaddr("/ip4/203.0.113.5/tcp/4001").to_bytes()
    answer.closerPeers.add(id=peer_id_bytes(BOB.peer_id), addrs=[address])
    identify = Identify(protocols=["/a/1"]).SerializeToString()
    allowed = (*_FAULTS, MessageError)
    return [
        Target("identify", messages.decode_identify, (identify,), allowed),
        Target("closer_peers", messages.decode_closer_peers, (answer.SerializeToString(),), allowed),
        Target("peer_id_bytes", peer_id_of_bytes, (peer_id_bytes(ALICE.peer_id),), (ValueError,)),
    ]
