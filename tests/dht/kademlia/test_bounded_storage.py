"""What a DHT member lets in and keeps: limits, the order of records, and the one place where each belongs."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.ground.store import MAX_ENTRIES_PER_DICTIONARY, PeerKey
from dht.identity.keys import Identity, make_run_id, public_key_of
from dht.records.key_levels import MAX_LEVEL, key_at, keys_for, num_keys, peers_key, shard_of
from dht.records.peer_record import PeerRecord, encode_peer_record
from dht.records.profiles import Profile, encode_profile, profiles_key
from dht.records.signed_manifest import encode_run_record, run_key, sign_run_record
from tests.kit.clock import Clock
from tests.kit.records import make_record

# Importing hivemind warns, and here warnings are errors; this import is exempt.
pytest.importorskip("hivemind")

from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from dht.kademlia.bounded_storage import (
    MAX_DICTIONARY_BYTES,
    BoundedStorage,
)
from dht.kademlia.dht_guards import (
    MAX_CALLS_PER_PEER,
    MAX_KEYS_PER_REQUEST,
    MAX_KEYS_SOUGHT,
    MAX_VALUE_BYTES,
    RECORD_BYTES,
    RECORDS_AT_ONCE,
    SECONDS_PER_RECORD,
    Gate,
    GateRefusal,
    SignedRecords,
    _check_size,
    key_id_of,
    node_id_of,
    pack_value,
)
from tests.simulator.virtual_time import run_virtual

# hivemind's dictionaries look at the real clock, so the test's clock stands far in the future.
NOW = 4_000_000_000.0
KEY = key_id_of("some key")
OTHER_KEY = key_id_of("other key")
ALICE, BOB, OWNER = Identity.generate(), Identity.generate(), Identity.generate()
RUN_ID = make_run_id("tiny", OWNER.public_key)


def peer_record(identity: Identity, **changes: Any) -> PeerRecord:
    record = make_record(
        identity.peer_id,
        run_id=RUN_ID,
        expires_at=NOW + 90,
        started_at=NOW,
    )
    return dataclasses.replace(record, **changes)


def run_value(revision: int) -> bytes:
    manifest = b'{"revision":%d}' % revision
    return pack_value(run_key(RUN_ID), encode_run_record(sign_run_record(RUN_ID, manifest, OWNER)))


def test_a_refused_older_value_does_not_shorten_the_newer_ones_life() -> None:
    clock = Clock(NOW)
    storage = BoundedStorage(clock)
    assert storage.store(KEY, b"new", NOW + 100)
    assert not storage.store(KEY, b"old", NOW + 10)
    assert storage.store_subkey(OTHER_KEY, "alice", b"new", NOW + 100)
    assert not storage.store_subkey(OTHER_KEY, "alice", b"old", NOW + 10)
    clock.now = NOW + 50
    assert storage.get(KEY).value == b"new"
    assert dict(storage.get(OTHER_KEY).value.items())["alice"].value == b"new"
    clock.now = NOW + 101
    assert storage.get(KEY) is None
    assert storage.get(OTHER_KEY) is None
    assert len(storage) == 0


@settings(deadline=None)
@given(stores=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=30))
def test_each_entry_is_the_one_with_the_latest_expiry(stores: list[tuple[str, int]]) -> None:
    storage = BoundedStorage(Clock(NOW))
    latest: dict[str, int] = {}
    for name, life_seconds in stores:
        accepted = storage.store_subkey(KEY, name, str(life_seconds).encode(), NOW + life_seconds)
        assert accepted == (life_seconds > latest.get(name, 0))
        latest[name] = max(latest.get(name, 0), life_seconds)
    item = storage.get(KEY)
    found = {name: entry.value for name, entry in item.value.items()} if item else {}
    assert found == {name: str(life_seconds).encode() for name, life_seconds in latest.items()}
    if item:
        assert item.expiration_time == NOW + max(latest.values())


def test_a_dictionary_is_bounded_in_entries() -> None:
    storage = BoundedStorage(Clock(NOW))
    for number in range(MAX_ENTRIES_PER_DICTIONARY):
        assert storage.store_subkey(KEY, f"peer {number}", b"x", NOW + 10)
    assert not storage.store_subkey(KEY, "one more", b"x", NOW + 99)
    assert storage.store_subkey(KEY, "peer 7", b"refreshed", NOW + 11)


def test_a_dictionary_is_bounded_in_bytes() -> None:
    storage = BoundedStorage(Clock(NOW))
    assert storage.store_subkey(KEY, "a", bytes(MAX_DICTIONARY_BYTES // 2), NOW + 10)
    assert not storage.store_subkey(KEY, "b", bytes(MAX_DICTIONARY_BYTES // 2), NOW + 10)
    assert storage.store_subkey(KEY, "a", bytes(10), NOW + 11)
    assert storage.store_subkey(KEY, "b", bytes(MAX_DICTIONARY_BYTES // 2), NOW + 10)


def test_the_whole_storage_is_bounded_and_room_comes_back() -> None:
    clock = Clock(NOW)
    storage = BoundedStorage(clock, max_keys=2, max_bytes=100)
    assert storage.store(KEY, bytes(60), NOW + 10)
    assert not storage.store(OTHER_KEY, bytes(60), NOW + 20)
    assert storage.store(OTHER_KEY, bytes(40), NOW + 20)
    assert storage.num_bytes == 100
    assert not storage.store(key_id_of("third"), b"", NOW + 20)
    clock.now = NOW + 11
    assert storage.store(key_id_of("third"), bytes(60), NOW + 20)
    assert {key for key, _ in storage.items()} == {OTHER_KEY, key_id_of("third")}


def foreign_value(number: int) -> bytes:
    owner = Identity.from_seed(number.to_bytes(32, "big"))
    run_id = make_run_id("other", owner.public_key)
    record = encode_run_record(sign_run_record(run_id, b'{"revision":1}', owner))
    return pack_value(run_key(run_id), record)


def test_a_thousand_runs_of_a_stranger_leave_this_run_its_room() -> None:
    clock = Clock(NOW)
    records = SignedRecords(clock)
    storage = BoundedStorage(
        clock, records.rank_of, lambda value: records.run_of(value) != RUN_ID, max_keys=8, max_bytes=10_000
    )
    stored = [storage.store(key_id_of(f"run {number}"), foreign_value(number), NOW + 10) for number in range(1, 20)]
    assert stored == 4 * [True] + 15 * [False]
    # Under a key that a stranger has already it may renew what it said, and nothing else.
    assert storage.store(key_id_of("run 1"), foreign_value(1), NOW + 11)
    own = [storage.store(key_id_of(f"own {number}"), run_value(1), NOW + 10) for number in range(5)]
    assert own == 4 * [True] + [False]
    clock.now = NOW + 12
    assert [storage.store(key_id_of(f"own {number}"), run_value(1), NOW + 99) for number in range(9)].count(True) == 8
    assert not storage.store(KEY, foreign_value(3), NOW + 99)


def test_bytes_of_other_runs_are_bounded_too() -> None:
    storage = BoundedStorage(Clock(NOW), lambda value: 0, lambda value: value.startswith(b"foreign"), max_bytes=100)
    assert storage.store(KEY, b"foreign" + bytes(40), NOW + 10)
    assert not storage.store(OTHER_KEY, b"foreign" + bytes(10), NOW + 10)
    assert storage.store(OTHER_KEY, bytes(50), NOW + 10)


def test_a_value_and_a_dictionary_do_not_replace_each_other() -> None:
    storage = BoundedStorage(Clock(NOW))
    assert storage.store(KEY, b"value", NOW + 10)
    assert not storage.store_subkey(KEY, "a", b"x", NOW + 99)
    assert storage.store_subkey(OTHER_KEY, "a", b"x", NOW + 10)
    assert not storage.store(OTHER_KEY, b"value", NOW + 99)


def profile_value(person: Identity, sequence: int, life_seconds: float) -> tuple[str, bytes, bytes, float]:
    """(key, subkey, value, expiry) of a contributor's profile."""
    expires_at = NOW + life_seconds
    profile = Profile(RUN_ID, person.peer_id, sequence, NOW, expires_at, "", "", True, ())
    key = profiles_key(RUN_ID, shard_of(person.peer_id))
    subkey: bytes = MSGPackSerializer.dumps(person.peer_id)
    return key, subkey, pack_value(key, encode_profile(profile, person)), expires_at


def test_an_older_profile_never_replaces_a_newer_one_however_long_it_lives() -> None:
    storage = BoundedStorage(Clock(NOW), SignedRecords(Clock(NOW)).rank_of)
    for sequence, life_seconds, is_taken in ((5, 100, True), (4, 200, False), (5, 150, True), (6, 160, True)):
        _, subkey, value, expires_at = profile_value(OWNER, sequence, life_seconds)
        assert storage.store_subkey(KEY, subkey, value, expires_at) == is_taken


def test_a_profile_is_valid_in_its_own_place_only() -> None:
    other = Identity.generate()
    key, subkey, value, expires_at = profile_value(OWNER, 1, 100)

    def is_valid(key: str, subkey: bytes, value: bytes, expires_at: float) -> bool:
        record = DHTRecord(key_id_of(key).to_bytes(), subkey, value, expires_at)
        return SignedRecords(Clock(NOW)).validate(record)

    assert is_valid(key, subkey, value, expires_at)
    assert not is_valid(key, MSGPackSerializer.dumps(other.peer_id), value, expires_at)
    assert not is_valid(f"{RUN_ID}/peers/0", subkey, value, expires_at)
    assert not is_valid(key, subkey, value, expires_at + 10)
    assert not is_valid(key, subkey, value[:-1] + b"!", expires_at)


def test_a_whole_dictionary_is_taken_entry_by_entry() -> None:
    storage = BoundedStorage(Clock(NOW))
    storage.store_subkey(KEY, "a", b"newer", NOW + 50)
    handed_over = DictionaryDHTValue()
    handed_over.store("a", b"older", NOW + 20)
    handed_over.store("b", b"other", NOW + 30)
    storage.store(KEY, handed_over, NOW + 50)
    found = {name: entry.value for name, entry in storage.get(KEY).value.items()}
    assert found == {"a": b"newer", "b": b"other"}


def test_an_older_revision_never_replaces_a_newer_one() -> None:
    storage = BoundedStorage(Clock(NOW), SignedRecords(Clock(NOW)).rank_of)
    assert storage.store(KEY, run_value(2), NOW + 10)
    assert not storage.store(KEY, run_value(1), NOW + 1000)
    assert storage.store(KEY, run_value(3), NOW + 5)
    assert storage.get(KEY).value == run_value(3)
    assert storage.store(KEY, run_value(3), NOW + 20)


def is_valid(key: str, subkey: Any, value: bytes, expires_at: float) -> bool:
    subkey_bytes = MSGPackSerializer.dumps(subkey)
    record = DHTRecord(key_id_of(key).to_bytes(), subkey_bytes, value, expires_at)
    return SignedRecords(Clock(NOW)).validate(record)


def alice_at(key: str) -> bytes:
    return pack_value(key, encode_peer_record(peer_record(ALICE), ALICE))


ALICE_PLACE = key_at(ALICE.peer_id, 0)
ALICE_KEY = peers_key(RUN_ID, ALICE_PLACE)


def test_a_peer_record_is_valid_in_its_own_place_only() -> None:
    value = alice_at(ALICE_KEY)
    assert is_valid(ALICE_KEY, ALICE.peer_id, value, NOW + 90)
    assert is_valid(ALICE_KEY, ALICE.peer_id, value, NOW + 90.0005)
    assert not is_valid(ALICE_KEY, BOB.peer_id, value, NOW + 90)
    assert not is_valid(ALICE_KEY, None, value, NOW + 90)
    wrong_key = peers_key(RUN_ID, PeerKey(0, (ALICE_PLACE.shard + 1) % 4))
    assert not is_valid(wrong_key, ALICE.peer_id, value, NOW + 90)
    assert not is_valid(wrong_key, ALICE.peer_id, alice_at(wrong_key), NOW + 90)
    assert not is_valid(run_key(RUN_ID), None, alice_at(run_key(RUN_ID)), NOW + 90)
    stranger_run = make_run_id("tiny", BOB.public_key)
    elsewhere = peers_key(stranger_run, ALICE_PLACE)
    assert not is_valid(elsewhere, ALICE.peer_id, alice_at(elsewhere), NOW + 90)


@pytest.mark.parametrize("vote", range(MAX_LEVEL + 1))
def test_a_peer_record_stands_under_the_keys_of_its_vote_only(vote: int) -> None:
    record = encode_peer_record(dataclasses.replace(peer_record(ALICE), level=vote), ALICE)
    own = set(keys_for(ALICE.peer_id, vote))
    assert key_at(ALICE.peer_id, vote) in own
    for level in range(MAX_LEVEL + 1):
        place = key_at(ALICE.peer_id, level)
        beside = PeerKey(level, (place.shard + 1) % num_keys(level))
        for key, belongs in ((place, place in own), (beside, False)):
            name = peers_key(RUN_ID, key)
            assert is_valid(name, ALICE.peer_id, pack_value(name, record), NOW + 90) == belongs
    for name in (f"{RUN_ID}/peers/0/0", f"{RUN_ID}/peers/7/1", f"{RUN_ID}/peers/", f"{RUN_ID}/peers/1/-1"):
        assert not is_valid(name, ALICE.peer_id, pack_value(name, record), NOW + 90)


@pytest.mark.parametrize("expires_at", [NOW + 91, NOW + 89, math.inf, -math.inf, math.nan])
def test_a_peer_record_lives_as_long_as_it_was_signed_for(expires_at: float) -> None:
    assert not is_valid(ALICE_KEY, ALICE.peer_id, alice_at(ALICE_KEY), expires_at)


def test_an_expired_peer_record_is_refused_but_a_slow_clock_is_forgiven() -> None:
    for age_seconds, valid in ((3.0, True), (6.0, False)):
        expires_at = NOW - age_seconds
        record = encode_peer_record(peer_record(ALICE, expires_at=expires_at), ALICE)
        assert is_valid(ALICE_KEY, ALICE.peer_id, pack_value(ALICE_KEY, record), expires_at) == valid


@pytest.mark.parametrize(
    ("expires_at", "valid"), [(NOW + 7 * 86400, True), (NOW + 9 * 86400, False), (math.inf, False), (math.nan, False)]
)
def test_a_run_record_has_a_bounded_life(expires_at: float, valid: bool) -> None:
    assert is_valid(run_key(RUN_ID), None, run_value(1), expires_at) == valid


def test_a_run_record_is_valid_under_its_run_only() -> None:
    forged = encode_run_record(dataclasses.replace(sign_run_record(RUN_ID, b'{"revision":1}', OWNER), manifest=b"{}"))
    assert not is_valid(run_key(RUN_ID), None, pack_value(run_key(RUN_ID), forged), NOW + 10)
    other_run = make_run_id("other", OWNER.public_key)
    record = encode_run_record(sign_run_record(RUN_ID, b'{"revision":1}', OWNER))
    assert not is_valid(run_key(other_run), None, pack_value(run_key(other_run), record), NOW + 10)
    assert not is_valid(run_key(RUN_ID), ALICE.peer_id, run_value(1), NOW + 10)


@settings(deadline=None)
@given(position=st.integers(0), flip=st.integers(1, 255))
def test_any_changed_byte_is_refused(position: int, flip: int) -> None:
    value = bytearray(alice_at(ALICE_KEY))
    value[position % len(value)] ^= flip
    assert not is_valid(ALICE_KEY, ALICE.peer_id, bytes(value), NOW + 90)


@settings(deadline=None)
@given(junk=st.binary(max_size=200), subkey=st.binary(max_size=20), key=st.binary(max_size=30))
def test_the_validator_never_raises(junk: bytes, subkey: bytes, key: bytes) -> None:
    assert not SignedRecords(Clock(NOW)).validate(DHTRecord(key, subkey, junk, NOW + 1))


def peer_bytes(identity: Identity) -> bytes:
    return bytes.fromhex("002408011220") + public_key_of(identity.peer_id)


def gate_of(identity: Identity, *members: Identity) -> Gate:
    admitted = {member.peer_id for member in members}
    p2p = SimpleNamespace(peer_id=PeerID(peer_bytes(identity)))
    return Gate(p2p, SimpleNamespace(is_private=False, is_excluded=lambda peer_id: peer_id not in admitted))


def test_the_gate_admits_members_with_their_own_node_id_only() -> None:
    gate = gate_of(ALICE, BOB)
    gate._check_remote(peer_bytes(BOB), b"")
    gate._check_remote(peer_bytes(BOB), node_id_of(peer_bytes(BOB)).to_bytes())
    with pytest.raises(GateRefusal, match="not a member"):
        gate._check_remote(peer_bytes(OWNER), b"")
    with pytest.raises(GateRefusal, match="hash of the PeerId"):
        gate._check_remote(peer_bytes(BOB), node_id_of(peer_bytes(OWNER)).to_bytes())
    for junk in (b"", b"\0" * 38, bytes(1000)):
        with pytest.raises(GateRefusal, match="not a member"):
            gate._check_remote(junk, b"")


def test_calls_wait_until_the_gate_is_open_and_are_refused_when_it_stays_closed() -> None:
    async def play() -> None:
        handlers: dict[str, Any] = {}

        async def register(name: str, handler: Any, input_type: Any) -> None:
            handlers[name] = handler

        async def answer(request: Any, context: Any) -> str:
            return "answered"

        gate = gate_of(ALICE, BOB)
        gate._p2p.add_protobuf_handler = register
        await gate.add_protobuf_handler("ping", answer, None)
        request = SimpleNamespace(peer=SimpleNamespace(node_id=b""))
        context = SimpleNamespace(remote_id=PeerID(peer_bytes(BOB)))
        with pytest.raises(GateRefusal, match="still starting; expected a started member; ask again"):
            await handlers["ping"](request, context)
        early = asyncio.create_task(handlers["ping"](request, context))
        await asyncio.sleep(0.1)
        assert not early.done()
        gate.open()
        assert await early == "answered"

    run_virtual(play())


def test_the_gate_drops_false_neighbours() -> None:
    gate = gate_of(ALICE, BOB)
    bob, owner = peer_bytes(BOB), peer_bytes(OWNER)
    pairs = [
        (node_id_of(bob).to_bytes(), bob),
        (node_id_of(owner).to_bytes(), bob),
        (node_id_of(owner).to_bytes(), owner),
        (b"", bob),
    ]
    result = SimpleNamespace(nearest_node_ids=[pair[0] for pair in pairs], nearest_peer_ids=[pair[1] for pair in pairs])
    gate._drop_false_neighbours(result)
    assert list(zip(result.nearest_node_ids, result.nearest_peer_ids, strict=True)) == pairs[:1]


@pytest.mark.parametrize(
    "request_fields",
    [
        # Each key that is looked for may be answered with a whole dictionary.
        {"keys": [b""] * (MAX_KEYS_SOUGHT + 1)},
        {"keys": [b""] * (MAX_KEYS_PER_REQUEST + 1), "values": []},
        {"keys": [b""], "values": [bytes(MAX_VALUE_BYTES + 1)]},
    ],
)
def test_the_gate_refuses_what_is_too_large(request_fields: dict[str, list[bytes]]) -> None:
    with pytest.raises(GateRefusal, match="expected at most"):
        _check_size(SimpleNamespace(**request_fields))
    _check_size(SimpleNamespace(keys=[b""] * MAX_KEYS_SOUGHT))
    _check_size(SimpleNamespace(keys=[b""] * MAX_KEYS_PER_REQUEST, values=[]))


def test_the_gate_has_so_many_records_checked_for_a_remote_and_others_have_theirs() -> None:
    async def play() -> None:
        gate, whole = gate_of(ALICE, BOB), bytes(MAX_VALUE_BYTES // 2)
        in_request = SimpleNamespace(values=[b"short"] * 100 + [whole])
        each = 100 + len(whole) // RECORD_BYTES
        for _ in range(RECORDS_AT_ONCE // each):
            gate._count_records(peer_bytes(BOB), in_request)
        with pytest.raises(GateRefusal, match="expected fewer"):
            gate._count_records(peer_bytes(BOB), in_request)
        gate._count_records(peer_bytes(OWNER), in_request)
        await asyncio.sleep(each * SECONDS_PER_RECORD)
        gate._count_records(peer_bytes(BOB), in_request)
        gate._count_records(peer_bytes(BOB), SimpleNamespace(keys=[b""]))

    run_virtual(play())


def test_an_answer_with_more_than_a_holder_keeps_counts_as_none() -> None:
    async def play() -> None:
        results = [
            dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=bytes(num_bytes))
            for num_bytes in (MAX_VALUE_BYTES, MAX_VALUE_BYTES + 1)
        ]

        async def answer(*_: Any) -> Any:
            return dht_pb2.FindResponse(results=results)

        gate = gate_of(ALICE, BOB)
        gate._p2p.call_protobuf_handler = answer
        found = await gate.call_protobuf_handler(PeerID(peer_bytes(BOB)), "find", dht_pb2.FindRequest(), None)
        assert [result.type for result in found.results] == [dht_pb2.FOUND_DICTIONARY, dht_pb2.NOT_FOUND]
        assert not found.results[1].value

    run_virtual(play())


def test_calls_of_one_remote_at_once_are_counted_and_others_are_answered() -> None:
    async def play() -> None:
        handlers: dict[str, Any] = {}
        going_on = asyncio.Event()

        async def register(name: str, handler: Any, input_type: Any) -> None:
            handlers[name] = handler

        async def answer(request: Any, context: Any) -> str:
            await going_on.wait()
            return "answered"

        gate = Gate(SimpleNamespace(peer_id=None, add_protobuf_handler=register))
        gate.open()
        await gate.add_protobuf_handler("find", answer, None)

        def call(who: Identity) -> asyncio.Task[str]:
            request = SimpleNamespace(peer=SimpleNamespace(node_id=b""))
            return asyncio.ensure_future(handlers["find"](request, SimpleNamespace(remote_id=PeerID(peer_bytes(who)))))

        calls = [call(ALICE) for _ in range(MAX_CALLS_PER_PEER + 5)]
        others = [call(BOB) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        going_on.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers[:MAX_CALLS_PER_PEER] == MAX_CALLS_PER_PEER * ["answered"]
        assert all(isinstance(refused, GateRefusal) for refused in answers[MAX_CALLS_PER_PEER:])
        assert await asyncio.gather(*others) == 3 * ["answered"]
        assert await call(ALICE) == "answered"

    asyncio.run(play())
