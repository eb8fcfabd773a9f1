"""Hello, welcome and refusal: either an admitted Hello or a PeerFault with a sentence."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.admission.handshake_frames import (
    HELLO_ROLES,
    MAX_HELLO_BYTES,
    MAX_REASON_LENGTH,
    MAX_REPLY_BYTES,
    AccessRule,
    check_hello,
    check_reply,
    make_hello,
    make_refusal,
    make_welcome,
)
from dht.ground.errors import PeerFault
from dht.identity.keys import Identity, make_run_id

OWNER = Identity.generate()
ALICE = Identity.generate().peer_id
BOB = Identity.generate().peer_id
RUN_ID = make_run_id("tiny", OWNER.public_key)
RULE = AccessRule(RUN_ID, bytes(range(32)), "0.1.0", rules=1)


@given(st.sampled_from(HELLO_ROLES), st.binary(max_size=512))
def test_same_run_and_manifest_are_admitted(role: str, proof: bytes) -> None:
    frame = make_hello(RULE, ALICE, role, proof)
    assert len(frame) <= MAX_HELLO_BYTES
    hello = check_hello(RULE, ALICE, frame)
    assert (hello.peer_id, hello.role, hello.run_id, hello.proof) == (ALICE, role, RUN_ID, proof)
    check_reply(BOB, make_welcome())


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (AccessRule(make_run_id("other", OWNER.public_key), RULE.manifest_hash, "0.1.0"), "run other.*expected tiny"),
        (AccessRule(RUN_ID, bytes(32), "0.1.0", rules=1), "manifest 000000000000; expected 000102030405; join again"),
        (
            AccessRule(RUN_ID, bytes(32), "9.9.9", rules=2),
            "rules 2; expected 1; the older of the two peers needs an up",
        ),
    ],
)
def test_another_run_or_manifest_is_refused_with_the_reason(rule: AccessRule, words: str) -> None:
    with pytest.raises(PeerFault, match=words) as caught:
        check_hello(RULE, ALICE, make_hello(rule, ALICE, "trainer"))
    assert caught.value.peer_id == ALICE
    with pytest.raises(PeerFault, match=words) as seen:
        check_reply(BOB, make_refusal(caught.value.what))
    assert seen.value.peer_id == BOB
    assert "refused this peer" in str(seen.value)


def test_another_protocol_version_is_named_whatever_else_is_in_the_frame() -> None:
    for frame in ({"protocol_version": 3}, {"protocol_version": 3, "new": [1, 2]}):
        with pytest.raises(PeerFault, match="protocol version 3; expected 2"):
            check_hello(RULE, ALICE, msgpack.packb(frame))
    with pytest.raises(PeerFault, match="refused this peer: too old"):
        check_reply(BOB, msgpack.packb({"protocol_version": 3, "refused": "too old", "more": 1}))
    with pytest.raises(PeerFault, match="protocol version 3"):
        check_reply(BOB, msgpack.packb({"protocol_version": 3, "refused": None}))


def test_a_false_peer_id_is_refused() -> None:
    with pytest.raises(PeerFault, match="which the connection has proved") as caught:
        check_hello(RULE, BOB, make_hello(RULE, ALICE, "trainer"))
    assert caught.value.peer_id == BOB


def test_bad_arguments_are_noticed_before_sending() -> None:
    with pytest.raises(ValueError, match="role 'boss'; expected one of trainer, seed, observer"):
        make_hello(RULE, ALICE, "boss")
    with pytest.raises(ValueError, match="proof"):
        make_hello(RULE, ALICE, "seed", bytes(513))


values: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
)


@given(st.sampled_from(sorted(asdict(check_hello(RULE, ALICE, make_hello(RULE, ALICE, "seed"))))), values)
def test_any_value_in_any_field_is_checked(field: str, value: Any) -> None:
    content = msgpack.unpackb(make_hello(RULE, ALICE, "trainer"))
    content[field] = value
    try:
        hello = check_hello(RULE, ALICE, msgpack.packb(content))
    except PeerFault:
        return
    assert getattr(hello, field) == value
    assert field in ("software", "proof", "role") or value == asdict(hello)[field]


@given(st.binary(max_size=300) | st.recursive(values, lambda v: st.lists(v, max_size=3)).map(msgpack.packb))
def test_garbage_is_a_peer_fault(frame: bytes) -> None:
    with pytest.raises(PeerFault):
        check_hello(RULE, ALICE, frame)
    with pytest.raises(PeerFault):
        check_reply(ALICE, frame)


@given(st.data())
def test_truncation_and_mutation_give_a_peer_fault_or_nothing_worse(data: st.DataObject) -> None:
    frame = bytearray(make_hello(RULE, ALICE, "trainer", b"proof"))
    length = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(PeerFault):
        check_hello(RULE, ALICE, bytes(frame[:length]))
    frame[length] ^= data.draw(st.integers(1, 255))
    try:
        hello = check_hello(RULE, ALICE, bytes(frame))
    except PeerFault:
        return
    assert (hello.run_id, hello.manifest_hash, hello.peer_id) == (RUN_ID, RULE.manifest_hash, ALICE)


def test_missing_extra_and_oversize() -> None:
    content = msgpack.unpackb(make_hello(RULE, ALICE, "trainer"))
    without = {name: value for name, value in content.items() if name != "proof"}
    for wrong in (without, {**content, "extra": 1}):
        with pytest.raises(PeerFault, match="a hello with"):
            check_hello(RULE, ALICE, msgpack.packb(wrong))
    with pytest.raises(PeerFault, match="expected at most 1024"):
        check_hello(RULE, ALICE, bytes(1025))
    with pytest.raises(PeerFault, match="expected at most 2048"):
        check_reply(ALICE, bytes(2049))


@given(st.text(max_size=2000))
def test_a_refusal_is_always_readable(reason: str) -> None:
    frame = make_refusal(reason)
    assert len(frame) <= MAX_REPLY_BYTES
    with pytest.raises(PeerFault, match="refused this peer: ") as caught:
        check_reply(BOB, frame)
    assert caught.value.what.isprintable()
    assert len(caught.value.what) <= MAX_REASON_LENGTH + len("refused this peer: ")


@pytest.mark.parametrize("reason", [1, True, b"text", ["x"], "esc\x1b[31m", "x" * 301])
def test_a_strange_reason_is_garbage(reason: Any) -> None:
    with pytest.raises(PeerFault, match="answered this peer's hello with refused"):
        check_reply(BOB, msgpack.packb({"protocol_version": 1, "refused": reason}))
