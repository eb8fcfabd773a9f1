"""Records: whatever the bytes, either the record that was signed comes back, or a PeerFault."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import PeerFault
from dht.ground.fields import clean_text
from dht.ground.host import PeerId
from dht.identity.keys import Identity, make_run_id
from dht.records.data_reading import READING_BYTES
from dht.records.evaluation import Evaluation
from dht.records.key_levels import shard_of
from dht.records.peer_record import (
    MAX_PEER_RECORD_BYTES,
    MAX_PEER_RECORD_LIFE_SECONDS,
    PEER_ROLES,
    PEER_STATES,
    PeerRecord,
    RoundTimes,
    decode_peer_record,
    encode_peer_record,
    fitting_peer_record,
)
from dht.records.signature_cache import VerifiedRecords

NOW = 1_800_000_000.0
ALICE = Identity.generate()
BOB = Identity.generate()
RUN_ID = make_run_id("tiny", BOB.public_key)
PEER_DOMAIN = b"murmuration peer record\0"


def make_record(**changes: Any) -> PeerRecord:
    record = PeerRecord(
        run_id=RUN_ID,
        peer_id=ALICE.peer_id,
        session=2**62 + 1,
        sequence=7,
        expires_at=NOW + 90.0,
        manifest_hash=bytes(range(32)),
        state="training",
        role="trainer",
        device="NVIDIA GeForce RTX 4090",
        name="Ada",
        software="0.1.0",
        reachable=True,
        inner_steps=12_345,
        tokens=98_765_432,
        rounds_contributed=41,
        tokens_per_second=51_234.5,
        upload_bits_per_second=2.0e7,
        train_loss=1.75,
        evaluation=None,
        versions=(41, 40, 41),
        digests=(b"\1" * 8, b"\2" * 8, b"\3" * 8),
        lineage_tokens=(10**9, 10**9 - 5, 10**9 + 7),
        started_at=NOW - 3600.0,
    )
    return dataclasses.replace(record, **changes)


wholes = st.integers(0, 2**63 - 1)
reals = st.floats(0, 1e18)
labels = st.text(max_size=40).map(lambda text: clean_text(text, 40))
versions, tokens = st.integers(0, 2**53), st.integers(0, 2**60)
fragment_entries = st.lists(st.tuples(versions, st.binary(min_size=8, max_size=8), tokens), max_size=12)


@st.composite
def records(draw: st.DrawFn) -> PeerRecord:
    entries = draw(fragment_entries)
    return make_record(
        session=draw(wholes),
        sequence=draw(wholes),
        expires_at=NOW + draw(st.floats(0.001, MAX_PEER_RECORD_LIFE_SECONDS)),
        manifest_hash=draw(st.binary(min_size=32, max_size=32)),
        state=draw(st.sampled_from(PEER_STATES)),
        role=draw(st.sampled_from(PEER_ROLES)),
        device=draw(labels),
        name=draw(labels),
        software=clean_text(draw(labels), 20),
        reachable=draw(st.booleans()),
        inner_steps=draw(wholes),
        tokens=draw(wholes),
        rounds_contributed=draw(wholes),
        tokens_per_second=draw(reals),
        upload_bits_per_second=draw(reals),
        train_loss=draw(st.none() | st.floats(-1e18, 1e18)),
        evaluation=draw(st.none() | st.builds(Evaluation, reals, wholes)),
        versions=tuple(entry[0] for entry in entries),
        digests=tuple(entry[1] for entry in entries),
        lineage_tokens=tuple(entry[2] for entry in entries),
        started_at=draw(reals),
        newest_round=draw(st.none() | st.builds(RoundTimes, wholes, wholes, reals, reals, reals, reals, reals)),
        reading=draw(st.sampled_from((b"", bytes(READING_BYTES), b"\0" * 8 + b"\xff" * (READING_BYTES - 8)))),
    )


def decode(data: bytes, now: float = NOW, verified: VerifiedRecords | None = None) -> PeerRecord:
    return decode_peer_record(data, run_id=RUN_ID, now=now, verified=verified)


@given(records())
def test_peer_record_round_trip(record: PeerRecord) -> None:
    data = encode_peer_record(record, ALICE)
    assert len(data) <= MAX_PEER_RECORD_BYTES
    assert decode(data) == record


@given(records(), st.data())
def test_any_changed_byte_is_a_peer_fault(record: PeerRecord, data: st.DataObject) -> None:
    encoded = bytearray(encode_peer_record(record, ALICE))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    if bytes(encoded) == encode_peer_record(record, ALICE):
        return
    with pytest.raises(PeerFault):
        decode(bytes(encoded))


@given(records(), st.data())
def test_truncated_or_extended_is_a_peer_fault(record: PeerRecord, data: st.DataObject) -> None:
    encoded = encode_peer_record(record, ALICE)
    with pytest.raises(PeerFault):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(PeerFault):
        decode(encoded + data.draw(st.binary(min_size=1, max_size=50)))


msgpack_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=40)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=16))
    | st.sampled_from([msgpack.Timestamp(0, 0)]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=12,
)


def sign_body(body: bytes, identity: Identity = ALICE) -> bytes:
    signature = identity.sign(PEER_DOMAIN + identity.public_key + body)
    return signature + identity.public_key + body


@given(msgpack_values)
def test_signed_nonsense_is_a_peer_fault(value: Any) -> None:
    with pytest.raises(PeerFault) as caught:
        decode(sign_body(msgpack.packb(value)))
    assert caught.value.peer_id == ALICE.peer_id or len(msgpack.packb(value)) > 900


def wire_items(record: PeerRecord) -> list[Any]:
    body = encode_peer_record(record, ALICE)[96:]
    items = msgpack.unpackb(body)
    assert isinstance(items, list)
    return items


@given(st.integers(0, 24), msgpack_values)
def test_any_value_in_any_field_is_checked(position: int, value: Any) -> None:
    """The signer is the attacker: a well-signed record with one field replaced is refused, or is in range."""
    items = wire_items(make_record())
    items[position] = value
    body = msgpack.packb(items)
    try:
        record = decode(sign_body(body))
    except PeerFault:
        return
    assert encode_peer_record(record, ALICE)[96:] == body


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_loss": math.nan}, "train_loss nan; expected a finite number"),
        ({"evaluation": Evaluation(math.inf, 1)}, "evaluation.loss"),
        ({"evaluation": Evaluation(2.5, -1)}, "evaluation.version -1"),
        ({"tokens_per_second": -1.0}, "tokens_per_second -1.0; expected a finite number from 0"),
        ({"upload_bits_per_second": 1e19}, "upload_bits_per_second"),
        ({"expires_at": math.inf}, "expires_at"),
        ({"started_at": math.nan}, "started_at"),
        ({"newest_round": RoundTimes(-1, 0, 0.0, 0.0, 0.0, 0.0, 0.0)}, "newest_round.fragment -1; expected a whole"),
        ({"newest_round": RoundTimes(0, 0, 0.0, math.nan, 0.0, 0.0, 0.0)}, "newest_round.compute_seconds nan"),
        ({"newest_round": RoundTimes(0, 0, 0.0, 0.0, 0.0, 0.0, -1.0)}, "newest_round.apply_seconds -1.0"),
        ({"session": -1}, "session -1; expected a whole number"),
        ({"sequence": 2**63}, "sequence"),
        ({"tokens": 1.5}, "tokens 1.5; expected a whole number"),
        ({"inner_steps": True}, "inner_steps True"),
        ({"reachable": 1}, "reachable of type int"),
        ({"state": "dancing"}, "state 'dancing'; expected one of joining, training"),
        ({"role": "observer"}, "role 'observer'"),
        ({"name": "a" * 41}, "name"),
        ({"name": "evil\u202ename"}, "name"),
        ({"device": "line\nbreak"}, "device"),
        ({"software": "\x1b[31mred"}, "software"),
        ({"software": "1" * 21}, "software"),
        ({"manifest_hash": b"short"}, "manifest_hash"),
        ({"digests": (b"\1" * 8, b"\2" * 8)}, "3 versions, 2 digests and 3 lineage tokens"),
        ({"versions": (1, 2, -3)}, "versions -3"),
        ({"digests": (b"\1" * 8, b"\2" * 7, b"\3" * 9)}, "digest"),
    ],
)
def test_out_of_range_fields(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.split(";")[0]) as caught:
        encode_peer_record(make_record(**changes), ALICE)
    assert words in str(caught.value)
    assert "; expected" in str(caught.value) or "expected" in str(caught.value)


def test_another_form_of_the_same_content_is_refused() -> None:
    items = wire_items(make_record())
    items[4] = int(items[4])
    with pytest.raises(PeerFault, match="canonical form"):
        decode(sign_body(msgpack.packb(items)))


def test_a_record_of_another_peer_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="expected its own key"):
        encode_peer_record(make_record(), BOB)
    data = encode_peer_record(make_record(), ALICE)
    with pytest.raises(PeerFault, match="a wrong signature"):
        decode(data[:64] + BOB.public_key + data[96:])


def test_another_runs_record() -> None:
    data = encode_peer_record(make_record(), ALICE)
    with pytest.raises(PeerFault, match="record of run"):
        decode_peer_record(data, run_id=make_run_id("other", BOB.public_key), now=NOW)


@given(st.floats(-1000, 1000))
def test_life_of_a_record(remaining_seconds: float) -> None:
    record = make_record(expires_at=NOW + remaining_seconds)
    data = encode_peer_record(record, ALICE)
    if NOW < record.expires_at <= NOW + MAX_PEER_RECORD_LIFE_SECONDS:
        assert decode(data) == record
    else:
        with pytest.raises(PeerFault, match="expires"):
            decode(data)


def test_too_large() -> None:
    record = make_record(versions=(2**40,) * 60, digests=(b"12345678",) * 60, lineage_tokens=(2**40,) * 60)
    with pytest.raises(ValueError, match="60 fragments; expected at most 1280"):
        encode_peer_record(record, ALICE)
    with pytest.raises(PeerFault, match="of 1281 bytes; expected"):
        decode(bytes(1281))


@pytest.mark.parametrize(
    ("number", "kept"),
    [
        (2**32 - 1, {"reading", "newest_round", "device", "name"}),
        (2**50, {"device", "name"}),
    ],
)
def test_as_its_numbers_grow_a_record_leaves_out_what_no_round_depends_on(number: int, kept: set[str]) -> None:
    """With as many fragments as a run may have, of which one member claims any version that may be fetched."""
    record = make_record(
        versions=(number,) * 32,
        digests=(bytes(8),) * 32,
        lineage_tokens=(number,) * 32,
        device="d" * 40,
        name="n" * 40,
        site="s" * 40,
        contributor_key=bytes(32),
        reading=bytes(READING_BYTES),
        newest_round=RoundTimes(31, number, NOW, 60.0, 5.0, 5.0, 1.0),
    )
    fitting, data = fitting_peer_record(record, ALICE)
    assert decode(data) == fitting
    said = {name for name in ("reading", "newest_round", "device", "name") if getattr(fitting, name)}
    assert said == kept
    assert (fitting.versions, fitting.lineage_tokens) == (record.versions, record.lineage_tokens)


def test_verified_records_remember_signatures_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = VerifiedRecords(max_entries=2)
    data = encode_peer_record(make_record(), ALICE)
    assert decode(data, verified=verified) == decode(data, verified=verified)
    with pytest.raises(PeerFault, match="expires"):
        decode(data, now=NOW + 91, verified=verified)
    changed = data[:-1] + bytes([data[-1] ^ 1])
    for _ in range(2):
        with pytest.raises(PeerFault, match="signature"):
            decode(changed, verified=verified)
    later = [encode_peer_record(make_record(sequence=sequence), ALICE) for sequence in range(5)]
    for one in later:
        decode(one, verified=verified)
    monkeypatch.setattr("dht.records.signed_envelopes.verify_key", lambda *_: False)
    for place, one in enumerate(later):
        with contextlib.nullcontext() if place >= 3 else pytest.raises(PeerFault, match="signature"):
            decode(one, verified=verified)


# --- keys ---


@given(st.binary(min_size=1, max_size=20), st.integers(1, 256))
def test_shards_are_in_range_and_nest(text: bytes, num_shards: int) -> None:
    peer_id = PeerId(text.hex())
    shard = shard_of(peer_id, num_shards)
    assert 0 <= shard < num_shards
    assert shard_of(peer_id, 2 * num_shards) // 2 == shard


@given(st.text(max_size=100), st.integers(0, 50))
def test_clean_text(text: str, max_length: int) -> None:
    cleaned = clean_text(text, max_length)
    assert len(cleaned) <= max_length
    assert cleaned.isprintable()
    assert clean_text(cleaned, max_length) == cleaned
    if text.isascii() and text.isprintable() and len(text) <= max_length:
        assert cleaned == text.strip()


IGNORABLE = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
    *((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF)),
    *((0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
"""Default_Ignorable_Code_Point in DerivedCoreProperties.txt of Unicode 16."""
EMPTY_PICTURES = (0x2800, 0x303F, 0xFFFC, 0x13441, 0x13442, 0x16FE4, 0x1D159, 0x3000, 0xA0, 0x2003)


@pytest.mark.parametrize("first_and_last", [*IGNORABLE, *((code, code) for code in EMPTY_PICTURES)])
def test_what_nobody_sees_is_no_name_and_no_part_of_one(first_and_last: tuple[int, int]) -> None:
    for code in range(first_and_last[0], first_and_last[1] + 1):
        blank = chr(code)
        assert clean_text(3 * blank, 40) == clean_text(f" {blank} ", 40) == ""
        assert clean_text(f"{blank}Ada{blank}", 40) == "Ada"


def test_a_name_needs_more_than_marks_and_other_scripts_stay() -> None:
    assert clean_text("\u0301\u20dd", 40) == ""
    for name in ("Ada", "Zoë", "김민수", "עדה", "प्रिया", "李", "🐦", "∀", "_"):
        assert clean_text(name, 40) == name


@pytest.mark.parametrize("blank", ["\u2800", "\u3164\u3164", "\u115f", "\ufe0f", "\U000e0101", " \u2800 "])
def test_a_record_with_a_name_that_nobody_sees_is_of_nobody(blank: str) -> None:
    got = decode(encode_peer_record(make_record(name=blank, device=f"RTX{blank}"), ALICE))
    assert (got.name, got.device) == ("", "RTX")
