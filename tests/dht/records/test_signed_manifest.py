"""The owner's record of a run: whatever the bytes, either what was signed comes back, or a PeerFault."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import PeerFault, UsageFault
from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import (
    MAX_RUN_RECORD_BYTES,
    RunRecord,
    decode_run_record,
    encode_run_record,
    sign_run_record,
)

ALICE, BOB = Identity.generate(), Identity.generate()
RUN_ID = make_run_id("tiny", BOB.public_key)
wholes = st.integers(0, 2**63 - 1)


def manifest_bytes(**content: Any) -> bytes:
    return json.dumps({"revision": 3, **content}, sort_keys=True, separators=(",", ":")).encode()


@given(st.dictionaries(st.text(max_size=10), st.integers() | st.text(max_size=30), max_size=10), wholes)
def test_run_record_round_trip(content: dict[str, Any], revision: int) -> None:
    record = sign_run_record(RUN_ID, manifest_bytes(**{**content, "revision": revision}), BOB)
    decoded = decode_run_record(encode_run_record(record), run_id=RUN_ID)
    assert decoded == record
    assert decoded.revision == revision


def test_any_changed_byte_of_a_run_record_is_a_peer_fault() -> None:
    encoded = encode_run_record(sign_run_record(RUN_ID, manifest_bytes(d_model=64), BOB))
    for position in range(len(encoded)):
        for change in (1, 0x80, 0xFF):
            changed = bytearray(encoded)
            changed[position] ^= change
            with pytest.raises(PeerFault):
                decode_run_record(bytes(changed), run_id=RUN_ID)
    for length in range(len(encoded)):
        with pytest.raises(PeerFault):
            decode_run_record(encoded[:length], run_id=RUN_ID)


@given(st.binary(max_size=300))
def test_run_record_noise(body: bytes) -> None:
    with pytest.raises(PeerFault):
        decode_run_record(body, run_id=RUN_ID)
    with pytest.raises(PeerFault):
        decode_run_record(bytes(64) + BOB.public_key + body, run_id=RUN_ID)


def test_a_stranger_cannot_publish_a_manifest() -> None:
    with pytest.raises(UsageFault, match="does not own run"):
        sign_run_record(RUN_ID, manifest_bytes(), ALICE)
    foreign_id = make_run_id("tiny", ALICE.public_key)
    foreign = encode_run_record(sign_run_record(foreign_id, manifest_bytes(), ALICE))
    with pytest.raises(PeerFault, match="run record of owner"):
        decode_run_record(foreign, run_id=RUN_ID)


def test_a_manifest_cannot_move_to_another_run_of_the_same_owner() -> None:
    other_id = make_run_id("other", BOB.public_key)
    record = sign_run_record(RUN_ID, manifest_bytes(), BOB)
    moved = RunRecord(other_id, record.manifest, record.owner_public_key, record.signature)
    with pytest.raises(PeerFault, match="a wrong signature"):
        decode_run_record(encode_run_record(moved), run_id=other_id)
    with pytest.raises(PeerFault, match="expected other"):
        decode_run_record(encode_run_record(record), run_id=other_id)


@pytest.mark.parametrize(
    "manifest",
    [
        *(b"", b"[]", b"{}", b"\xff"),
        *(b'{"revision":-1}', b'{"revision":1.0}', b'{"revision":true}', b'{"revision":NaN}'),
        *(b"[" * 15_000, b'{"revision":' + b"9" * 10_000 + b"}", '{"revision":1}'.encode("utf-16")),
    ],
)
def test_manifest_without_revision(manifest: bytes) -> None:
    with pytest.raises(UsageFault, match="manifest"):
        sign_run_record(RUN_ID, manifest, BOB)
    signature = BOB.sign(b"murmuration run record\0" + RUN_ID.encode() + b"\0" + manifest)
    data = signature + BOB.public_key + msgpack.packb([1, RUN_ID, manifest])
    with pytest.raises(PeerFault, match="manifest"):
        decode_run_record(data, run_id=RUN_ID)


def test_run_record_size_limit() -> None:
    fitting = sign_run_record(RUN_ID, manifest_bytes(notes="x" * 16_000), BOB)
    assert decode_run_record(encode_run_record(fitting), run_id=RUN_ID) == fitting
    with pytest.raises(ValueError, match="expected at most 16384"):
        encode_run_record(sign_run_record(RUN_ID, manifest_bytes(notes="x" * 16_384), BOB))
    with pytest.raises(PeerFault, match="expected 97 to 16384"):
        decode_run_record(bytes(MAX_RUN_RECORD_BYTES + 1), run_id=RUN_ID)
