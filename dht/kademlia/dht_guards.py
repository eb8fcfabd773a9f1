"""Two guards around hivemind's `DHTNode`: one decides which peers may call, the other which records are accepted.

`Gate` stands between DHTNode and the daemon. The daemon has authenticated the caller's PeerId, so node ids are checked
for each call without another signature. In a private run each call and answer carries a proof of membership (in the
`auth` field of hivemind's messages). A node id must be the hash of the PeerId. If ids could be chosen, five strangers
next to a key would become its five holders.

`SignedRecords` is DHTNode's validator. Validators get only the SHA-1 of a key, so each stored value contains its key,
and the validator computes the hash again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PDaemonError, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from dht.admission.admission import Admission, NotAdmitted
from dht.admission.dated_proofs import nonce_of
from dht.ground.bounds import Allowances, Newest
from dht.ground.errors import PeerFault, UsageFault
from dht.ground.fields import pack, unpack
from dht.ground.host import PeerId
from dht.identity.keys import peer_id_of_bytes
from dht.kademlia.bounded_storage import MAX_DICTIONARY_BYTES
from dht.records.key_levels import keys_for, peers_key, shard_of
from dht.records.peer_record import decode_peer_record
from dht.records.profiles import claimed_sequence, decode_profile, profiles_key
from dht.records.signature_cache import VerifiedRecords
from dht.records.signed_manifest import decode_run_record, run_key
from dht.streams.streams_per_remote import StreamCounts

OPEN_SECONDS: Final = 5.0
"""Callers give up within this time."""
MAX_RUN_RECORD_LIFE_SECONDS: Final = 8 * 24 * 3600.0
"""Run records are published for a week at a time. Their expiry is not signed, so it needs a bound."""

CLOCK_TOLERANCE_SECONDS: Final = 5.0
"""A holder with a slower clock may still return an expired entry. hivemind drops a whole dictionary for one invalid
entry, so such an entry counts as valid here. Readers then filter by their own clock.
"""

MAX_CALLS_PER_PEER: Final = 128
"""Parallel calls of one remote: reading all peers asks for 16 keys together, of few holders, besides its own stores."""
MAX_KEYS_PER_REQUEST: Final = 1024
"""Keys in one DHT call that stores records."""
MAX_KEYS_SOUGHT: Final = 16
"""Keys in one DHT call that searches: hivemind asks for no more. Each may be answered with a whole dictionary."""
RECORD_BYTES: Final = 256
"""Least size of a record in a dictionary on the wire; checking one takes 0.15 ms."""
RECORDS_AT_ONCE: Final = 4096
"""Records of one remote checked at once: a member hands a few dictionaries to a new holder."""
SECONDS_PER_RECORD: Final = 1 / 64
"""Seconds until one more record of a remote is checked: a member publishes about one in ten seconds at each holder."""
MAX_VALUE_BYTES: Final = 2 * MAX_DICTIONARY_BYTES
"""Size of a whole dictionary with its msgpack framing in a request or answer; checking more would block the event
loop."""

MAX_PROVEN_PEERS: Final = 1024
"""Members that have proved membership to this process; other members are pinged before any other call."""

EXPIRY_ROUNDING_SECONDS: Final = 1e-3

logger = logging.getLogger(__name__)


class GateRefusal(P2PDaemonError):  # type: ignore[misc]
    """A DHT call is not allowed. hivemind sends the text to the caller."""


def node_id_of(peer_id: bytes) -> DHTID:
    """Return the only DHT node id that the owner of these PeerId bytes may use."""
    return DHTID.generate(source=peer_id)


def key_id_of(key: str) -> DHTID:
    """Return the DHT id of a key."""
    return DHTID.generate(source=key)


def pack_value(key: str, record: bytes) -> bytes:
    """Return the bytes that the DHT stores for a record under `key`."""
    return pack([key, record])


def unpack_value(value: bytes) -> tuple[str, bytes]:
    """Return (key, record) of stored bytes.

    Raises:
        ValueError: `pack_value` did not make the bytes.
    """
    content = unpack(value)
    if type(content) is not list or len(content) != 2 or type(content[0]) is not str or type(content[1]) is not bytes:
        raise ValueError("a stored value in an unknown form; expected [key, record]")
    return content[0], content[1]


class SignedRecords:
    """Validator that accepts only records valid in `dht.records`, under their own key and subkey. Never raises."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._verified = VerifiedRecords()

    def validate(self, record: Any) -> bool:
        """Return whether hivemind's `DHTRecord` may be stored or returned."""
        try:
            self.check(record.key, record.subkey, record.value, record.expiration_time)
        except (PeerFault, UsageFault, ValueError) as error:
            logger.debug("a DHT record was refused: %s", error)
            return False
        return True

    def sign_value(self, record: Any) -> bytes:
        """Return the value unchanged: hivemind calls this before storing and returning, but these records are already
        signed.
        """
        value: bytes = record.value
        return value

    strip_value = sign_value

    def check(self, key_id: bytes, subkey: bytes, value: bytes, expires_at: float) -> None:
        """Raise PeerFault, UsageFault or ValueError unless the record is valid under this key and subkey."""
        key, data = unpack_value(value)
        if key_id_of(key).to_bytes() != key_id:
            raise ValueError(f"a record of key {key[:80]!r} under another key")
        run_id, _, kind = key.partition("/")
        now = self._now() - CLOCK_TOLERANCE_SECONDS
        if kind == "run":
            decode_run_record(data, run_id=run_id, verified=self._verified)
            if not (math.isfinite(expires_at) and now < expires_at <= now + MAX_RUN_RECORD_LIFE_SECONDS):
                raise ValueError(f"a run record that expires at {expires_at}; expected at most eight days from now")
            expected_key, expected_subkey = run_key(run_id), MSGPackSerializer.dumps(None)
        elif kind.startswith("profiles/"):
            profile = decode_profile(data, run_id=run_id, now=now)
            if not abs(profile.expires_at - expires_at) <= EXPIRY_ROUNDING_SECONDS:
                raise ValueError(f"a profile signed until {profile.expires_at} and stored until {expires_at}")
            expected_key = profiles_key(run_id, shard_of(profile.contributor_id))
            expected_subkey = MSGPackSerializer.dumps(profile.contributor_id)
        else:
            record = decode_peer_record(data, run_id=run_id, now=now, verified=self._verified)
            if not abs(record.expires_at - expires_at) <= EXPIRY_ROUNDING_SECONDS:
                raise ValueError(f"a record signed until {record.expires_at} and stored until {expires_at}")
            own_keys = [peers_key(run_id, own) for own in keys_for(record.peer_id, record.level)]
            expected_key = key if key in own_keys else own_keys[-1]
            expected_subkey = MSGPackSerializer.dumps(record.peer_id)
        if key != expected_key or subkey != expected_subkey:
            raise ValueError(f"a record under {key[:80]!r}; expected {expected_key!r} and its own subkey")

    def run_of(self, value: bytes) -> str:
        """Return the run id in stored bytes that were validated before."""
        return unpack_value(value)[0].partition("/")[0]

    def rank_of(self, value: bytes) -> int:
        """Return the rank of validated bytes: revision of a run record, sequence of a profile; 0 for peer records."""
        key, data = unpack_value(value)
        if "/profiles/" in key:
            return claimed_sequence(data)
        if not key.endswith("/run"):
            return 0
        return decode_run_record(data, run_id=key.partition("/")[0], verified=self._verified).revision


class Gate:
    """The part of hivemind's `P2P` that DHTNode uses, with checks of all callers and answers.

    Calls wait until `open`: DHTNode accepts them as soon as it has registered, before its id and storage are set.

    Args:
        p2p: the connected `hivemind.p2p.P2P`.
        admission: makes and checks the proofs of a private run; used for each call, so a revocation works at once.
            Without it all peers are members.
        now: returns the unix seconds that answers contain.
    """

    def __init__(self, p2p: Any, admission: Admission | None = None, now: Callable[[], float] = time.time) -> None:
        self._p2p = p2p
        self._now = now
        self._admission = admission
        self._proven: Newest[bytes, None] = Newest(MAX_PROVEN_PEERS)
        self._is_open = asyncio.Event()
        self._calls = StreamCounts(MAX_CALLS_PER_PEER)
        self._checks = Allowances[PeerId](RECORDS_AT_ONCE, SECONDS_PER_RECORD)
        self.peer_id = p2p.peer_id

    def open(self) -> None:
        """Open the gate: the node behind it can answer now."""
        self._is_open.set()

    async def add_protobuf_handler(
        self, name: str, handler: Callable[[Any, Any], Awaitable[Any]], input_type: Any, **options: Any
    ) -> None:
        async def guarded(request: Any, context: Any) -> Any:
            remote = context.remote_id.to_bytes()
            nonce = self._admit_caller(remote, request)
            self._check_remote(remote, request.peer.node_id)
            _check_size(request)
            self._count_records(remote, request)
            with contextlib.ExitStack() as counted:
                try:
                    counted.enter_context(self._calls.one_more(_text_of(remote)))
                except PeerFault as fault:
                    raise GateRefusal(f"{fault.what} at once; expected fewer calls; ask again") from fault
                await self._wait_open()
                response = await handler(request, context)
            if isinstance(response, dht_pb2.PingResponse):
                response.dht_time = self._now()
            if nonce:
                assert self._admission is not None
                response.auth.signature = self._admission.answer(_text_of(remote), nonce)
            return response

        await self._p2p.add_protobuf_handler(name, guarded, input_type, **options)

    def _count_records(self, remote: bytes, request: Any) -> None:
        """Count the records of a request before any is checked: all are checked in one step, which blocks everything
        else.
        """
        count = sum(max(1, len(value) // RECORD_BYTES) for value in getattr(request, "values", ()))
        if count and not self._checks.spend(_text_of(remote), asyncio.get_running_loop().time(), count):
            raise GateRefusal(f"{count} more records within a minute; expected fewer; store them later")

    async def _wait_open(self) -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._is_open.wait()
        except TimeoutError as error:
            raise GateRefusal("this member is still starting; expected a started member; ask again") from error

    async def remove_protobuf_handler(self, name: str, **options: Any) -> None:
        await self._p2p.remove_protobuf_handler(name, **options)

    async def call_protobuf_handler(self, peer_id: PeerID, name: str, request: Any, output_type: Any) -> Any:
        remote = peer_id.to_bytes()
        self._check_remote(remote, b"")
        if self._is_private and remote not in self._proven:
            # A remote that has not proved its membership gets only a ping.
            await self._call(peer_id, remote, "DHTProtocol.rpc_ping", dht_pb2.PingRequest(), dht_pb2.PingResponse)
        response = await self._call(peer_id, remote, name, request, output_type)
        self._check_remote(remote, response.peer.node_id)
        for result in getattr(response, "results", ()):
            self._drop_false_neighbours(result)
            if len(result.value) > MAX_VALUE_BYTES:
                result.type, result.value = dht_pb2.NOT_FOUND, b""
        return response

    @property
    def _is_private(self) -> bool:
        return self._admission is not None and self._admission.is_private

    async def _call(self, peer_id: PeerID, remote: bytes, name: str, request: Any, output_type: Any) -> Any:
        if self._admission is None or not self._admission.is_private:
            return await self._p2p.call_protobuf_handler(peer_id, name, request, output_type)
        proof = self._admission.prove(_text_of(remote), "dht")
        request.auth.signature = proof
        response = await self._p2p.call_protobuf_handler(peer_id, name, request, output_type)
        try:
            self._admission.check_answer(_text_of(remote), response.auth.signature, nonce_of(proof))
        except NotAdmitted as fault:
            self._proven.pop(remote, None)
            raise GateRefusal(str(fault)) from fault
        self._proven[remote] = None
        return response

    def _admit_caller(self, remote: bytes, request: Any) -> bytes:
        """Check the caller, and return the nonce for the answer; empty in an open run."""
        if self._admission is None or not self._admission.is_private:
            return b""
        try:
            nonce, _ = self._admission.admit(_text_of(remote), request.auth.signature, "dht")
        except NotAdmitted as fault:
            # hivemind sends the text to the caller.
            raise GateRefusal(fault.told) from fault
        return nonce

    def _check_remote(self, remote: bytes, node_id: bytes) -> None:
        text = _peer_text(remote)
        if self._is_private and (text is None or self._is_excluded(text)):
            raise GateRefusal("")
        if text is None or self._is_excluded(text):
            raise GateRefusal(
                f"peer {text or remote.hex()[:16]} is not a member; expected a member; ask the owner of the run"
            )
        if node_id and node_id != node_id_of(remote).to_bytes():
            raise GateRefusal(
                "a DHT node id that is not the hash of the PeerId; expected that hash; update the software"
            )

    def _is_excluded(self, remote: PeerId) -> bool:
        return self._admission is not None and self._admission.is_excluded(remote)

    def _drop_false_neighbours(self, result: Any) -> None:
        pairs = [
            (node_id, remote)
            for node_id, remote in zip(result.nearest_node_ids, result.nearest_peer_ids, strict=False)
            if self._is_member_node(node_id, remote)
        ]
        del result.nearest_node_ids[:]
        del result.nearest_peer_ids[:]
        result.nearest_node_ids.extend(node_id for node_id, _ in pairs)
        result.nearest_peer_ids.extend(remote for _, remote in pairs)

    def _is_member_node(self, node_id: bytes, remote: bytes) -> bool:
        try:
            self._check_remote(remote, node_id or b"?")
        except GateRefusal:
            return False
        return True


def _text_of(remote: bytes) -> PeerId:
    text = _peer_text(remote)
    if text is None:
        raise GateRefusal("")
    return text


def _check_size(request: Any) -> None:
    keys = getattr(request, "keys", ())
    most = MAX_KEYS_PER_REQUEST if hasattr(request, "values") else MAX_KEYS_SOUGHT
    if len(keys) > most:
        raise GateRefusal(f"{len(keys)} keys in one request; expected at most {most}")
    longest_bytes = max(map(len, getattr(request, "values", ())), default=0)
    if longest_bytes > MAX_VALUE_BYTES:
        raise GateRefusal(f"a value of {longest_bytes} bytes; expected at most {MAX_VALUE_BYTES}")


@functools.lru_cache(maxsize=4096)
def _peer_text(remote: bytes) -> PeerId | None:
    """Return the base58 of an Ed25519 PeerId; None for ids that do not contain their key."""
    try:
        return peer_id_of_bytes(remote)
    except ValueError:
        return None
