"""Frames of the round protocol: what is encoded comes back; whatever else arrives is a PeerFault and nothing worse."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import fields, replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.wire import frames, messages
from averaging.wire.field_checks import Limits
from averaging.wire.messages import (
    DIGEST_BYTES,
    MAX_PARTS,
    MAX_ROSTER,
    MAX_SHARDS,
    MAX_STEPS,
    MAX_TOKENS,
    SIGNATURE_BYTES,
    Abandon,
    AuditInputs,
    AuditRequest,
    AuditShare,
    Commit,
    CommitRequest,
    Contribution,
    Offer,
    Plan,
    Redirect,
    Reduced,
    Result,
    ResultRequest,
    RosterEntry,
    ShardPlan,
    ShardResult,
    SignedInput,
    VersionIs,
    Wait,
    WorkPart,
)
from dht.ground.errors import PeerFault
from tests.kit.network.memory_networks import named
from tests.kit.tiers import examples

SIZES = (40, 1000, 8)
LIMITS = Limits(SIZES, max_payload_bytes=600)
SENDER = named(1)
DIGEST = bytes(range(DIGEST_BYTES))

fragments = st.integers(0, len(SIZES) - 1)
versions = st.integers(0, 2**53)
attempts = st.integers(0, 10_000)
tokens = st.integers(1, MAX_TOKENS)
steps = st.integers(1, MAX_STEPS)
digests = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
signatures = st.integers(0, 255).map(lambda byte: bytes([byte]) * SIGNATURE_BYTES)
signed_input_rows = st.builds(SignedInput, st.integers(0, MAX_ROSTER - 1), digests, signatures)
peer_ids = st.integers(0, 10**6).map(named)
seconds = st.floats(0, 86_400)


@st.composite
def rosters(draw):
    chosen = sorted(draw(st.sets(peer_ids, min_size=1, max_size=6)))
    return tuple(RosterEntry(peer, draw(tokens), draw(steps), draw(versions), draw(versions)) for peer in chosen)


@st.composite
def cuts(draw, size):
    inner = draw(st.sets(st.integers(1, size - 1), max_size=4)) if size > 1 else set()
    edges = [0, *sorted(inner), size]
    return list(itertools.pairwise(edges))


@st.composite
def plans(draw):
    fragment, roster = draw(fragments), draw(rosters())
    shards = tuple(
        ShardPlan(start, end, draw(st.integers(0, len(roster) - 1))) for start, end in draw(cuts(SIZES[fragment]))
    )
    return Plan(fragment, draw(versions), draw(attempts), draw(digests), roster, shards, draw(seconds), draw(seconds))


@st.composite
def commits(draw):
    fragment, roster = draw(fragments), draw(rosters())
    members = st.integers(0, len(roster) - 1)

    def result(start, end):
        included = tuple(sorted(draw(st.sets(members))))
        signature = draw(signatures) if included else b""
        return ShardResult(start, end, draw(members), draw(digests) if included else b"", included, signature)

    shards = tuple(result(start, end) for start, end in draw(cuts(SIZES[fragment])))
    return Commit(
        *(fragment, draw(versions), draw(attempts), draw(peer_ids), draw(digests), roster, shards),
        *(draw(st.just(b"") | digests), draw(signatures)),
    )


@st.composite
def with_range(draw, build):
    fragment = draw(fragments)
    start = draw(st.integers(0, SIZES[fragment] - 1))
    return build(draw, fragment, start, draw(st.integers(start + 1, SIZES[fragment])))


shard_numbers = st.integers(0, MAX_SHARDS - 1)
reasons = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)
all_messages = st.one_of(
    st.builds(
        Offer,
        fragments,
        versions,
        attempts,
        digests,
        versions,
        tokens,
        steps,
        versions,
        st.floats(0, 1e15),
        st.booleans(),
    ),
    st.builds(Wait, fragments, versions, attempts, st.integers(0, MAX_ROSTER), st.integers(0, 2**20)),
    st.builds(Redirect, fragments, versions, peer_ids),
    plans(),
    st.builds(
        Reduced,
        fragments,
        versions,
        attempts,
        shard_numbers,
        digests,
        st.sets(st.integers(0, MAX_ROSTER - 1), max_size=9).map(lambda members: tuple(sorted(members))),
        signatures,
    ),
    st.builds(Abandon, fragments, versions, attempts, reasons),
    commits(),
    st.builds(CommitRequest, fragments, versions),
    st.builds(VersionIs, fragments, versions, digests, st.integers(0, 2**60)),
    st.builds(ResultRequest, fragments, versions, shard_numbers, digests),
    with_range(
        lambda draw, fragment, start, end: Contribution(
            fragment,
            draw(versions),
            draw(attempts),
            draw(peer_ids),
            draw(shard_numbers),
            draw(versions),
            start,
            end,
            draw(tokens),
            draw(st.just(b"") | signatures),
        )
    ),
    with_range(lambda draw, fragment, start, end: AuditRequest(fragment, draw(versions), start, end)),
    with_range(
        lambda draw, fragment, start, end: AuditShare(
            fragment, draw(versions), draw(versions), start, end, draw(tokens), draw(signatures)
        )
    ),
    with_range(
        lambda draw, fragment, start, end: AuditInputs(
            fragment, draw(versions), start, end, tuple(draw(st.lists(signed_input_rows, max_size=5)))
        )
    ),
    with_range(lambda draw, fragment, start, end: Result(fragment, draw(versions), draw(shard_numbers), start, end)),
)


def payload_for(message, data):
    return data if isinstance(message, Contribution | Result | AuditShare) else b""


def decode_or_fault(frame, limits=LIMITS):
    """The message, or None after a PeerFault that names the sender. Anything else fails the test."""
    try:
        return frames.decode(frame, SENDER, limits)[0]
    except PeerFault as error:
        fault = error
    assert fault.peer_id == SENDER
    return None


def packed(values, version=frames.WIRE_VERSION):
    header = msgpack.packb(values, use_bin_type=True)
    return bytes([version]) + len(header).to_bytes(4, "big") + header


def test_every_message_of_the_protocol_is_tested_here():
    kinds = {value.KIND for value in vars(messages).values() if getattr(value, "KIND", "")}
    assert kinds == set(frames.KINDS)
    assert len(kinds) == len(all_messages.original_strategies)


@given(all_messages, st.binary(max_size=600))
def test_what_is_encoded_comes_back_equal(message, data):
    data = payload_for(message, data)
    decoded, payload = frames.decode(frames.encode(message) + data, SENDER, LIMITS)
    assert decoded == message
    assert type(decoded) is type(message)
    assert bytes(payload) == data


@settings(max_examples=examples(400))
@given(all_messages, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_bytes_give_a_message_or_a_fault_and_never_another_error(message, changes):
    frame = bytearray(frames.encode(message))
    for position, value in changes:
        frame[position % len(frame)] = value
    decoded = decode_or_fault(bytes(frame))
    if decoded is not None:
        # Whatever was let through is a message we could have sent ourselves.
        assert frames.decode(frames.encode(decoded), SENDER, LIMITS)[0] == decoded


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=20,
)


@settings(max_examples=examples(400))
@given(st.sampled_from(sorted(frames.KINDS)), st.data())
def test_well_formed_headers_with_wrong_values_are_refused(kind, data):
    names = [field.name for field in fields(frames.KINDS[kind])]
    values = data.draw(st.lists(plain_values, min_size=len(names), max_size=len(names)))
    decoded = decode_or_fault(packed([kind, *values]))
    assert decoded is None or frames.encode(decoded) is not None


def replaced(message, **changes):
    values = {field.name: getattr(message, field.name) for field in fields(message)} | changes
    return frames.encode(type(message)(**values))


SIGNATURE = bytes(range(SIGNATURE_BYTES))
ROSTER = tuple(RosterEntry(peer, 10, 2, 3, 4) for peer in sorted([named(1), named(2), named(3)]))
OFFER = Offer(1, 7, 0, DIGEST, 6, 100, 10, 5, 1e6, True)
PLAN = Plan(1, 7, 0, DIGEST, ROSTER, (ShardPlan(0, 600, 0), ShardPlan(600, 1000, 2)), 5.0, 9.0)
COMMIT = Commit(
    1,
    7,
    0,
    named(1),
    DIGEST,
    ROSTER,
    (ShardResult(0, 600, 0, DIGEST, (0, 2), SIGNATURE), ShardResult(600, 1000, 2, b"", ())),
    b"",
    SIGNATURE,
)
CONTRIBUTION = Contribution(1, 7, 0, named(1), 0, 5, 0, 600, 100)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"", "got a frame of 0 bytes; expected at least 5"),
        (b"\x01\x00\x01\xc0", "speaks wire version 1; expected 4: the older side must update its software"),
        (b"\x04\x00\xff\xff\xff" + bytes(65_535), "announced a header of 16777215 bytes; .* at most 162000"),
        (b"\x04\x00\x00\x00\x10\x90", "announced a header of 16 bytes; the frame has 1"),
        (packed(["hello"]), "unknown kind 'hello'; expected one of offer"),
        (packed({}), "unknown kind dict"),
        (packed([]), "unknown kind list"),
        (packed(["wait", 0, 0]), "sent 2 fields in wait; expected 5"),
        (replaced(OFFER, fragment=3), "field fragment of offer: got 3; expected a whole number from 0 to 2"),
        (replaced(OFFER, fragment=-1), "field fragment of offer: got -1"),
        (replaced(OFFER, fragment=True), "field fragment of offer: got True"),
        (replaced(OFFER, tokens=0), "field tokens of offer: got 0; expected a whole number from 1"),
        (replaced(OFFER, steps=0), "field steps of offer: got 0; expected a whole number from 1"),
        (replaced(OFFER, upload_bits_per_second=float("nan")), "got nan; expected a finite number"),
        (replaced(OFFER, upload_bits_per_second=float("inf")), "got inf; expected a finite number"),
        (replaced(OFFER, reachable=1), "got 1; expected true or false"),
        (replaced(OFFER, anchor_digest=b"short"), "expected a digest of 16 bytes"),
        (replaced(Abandon(0, 1, 0, ""), reason="a\nb"), "expected printable text"),
        (replaced(Abandon(0, 1, 0, ""), reason="x" * 201), "expected printable text of at most 200"),
        (replaced(Redirect(0, 1, named(1)), leader="../etc/passwd" * 3), "expected a peer id"),
        (replaced(PLAN, roster=()), "sent a plan without members"),
        (replaced(PLAN, roster=ROSTER[::-1]), "roster is not in PeerId order"),
        (replaced(PLAN, roster=(ROSTER[0], *ROSTER)), "listed a member twice"),
        (replaced(PLAN, shards=()), "shards cover 0 of 1000 values of fragment 1"),
        (replaced(PLAN, shards=(ShardPlan(0, 600, 0),)), "shards cover 600 of 1000"),
        (replaced(PLAN, shards=(ShardPlan(0, 1001, 0),)), "shards cover 1001 of 1000"),
        (replaced(PLAN, shards=(ShardPlan(0, 600, 0), ShardPlan(599, 1000, 0))), r"shard \[599, 1000\) .* follow"),
        (replaced(PLAN, shards=(ShardPlan(0, 0, 0), ShardPlan(0, 1000, 0))), r"shard \[0, 0\)"),
        (replaced(PLAN, shards=(ShardPlan(0, 1000, 3),)), "reducers below 3"),
        (replaced(PLAN, commit_deadline_seconds=86_401.0), "expected a finite number from 0 to 86400"),
        (
            replaced(COMMIT, shards=(ShardResult(0, 1000, 0, DIGEST, (0, 3), SIGNATURE),)),
            "member 3 in a shard; .* below 3",
        ),
        (
            packed(["reduced", 1, 7, 0, 0, DIGEST, b"\x05\x00", SIGNATURE]),
            "expected a mask of at most 32 bytes, the last one not zero",
        ),
        (
            packed(["reduced", 1, 7, 0, 0, DIGEST, bytes(32) + b"\x01", SIGNATURE]),
            "expected a mask of at most 32 bytes",
        ),
        (packed(["reduced", 1, 7, 0, 0, DIGEST, [0, 2], SIGNATURE]), "expected a mask"),
        (replaced(COMMIT, shards=(ShardResult(0, 1000, 0, b"", (0,)),)), "members but no digest"),
        (replaced(COMMIT, shards=(ShardResult(0, 1000, 0, DIGEST, ()),)), "members but no digest"),
        (replaced(COMMIT, shards=(ShardResult(0, 1000, 0, DIGEST, (0,)),)), "without its reducer's signature"),
        (replaced(COMMIT, shards=(ShardResult(0, 1000, 0, b"", (), SIGNATURE),)), "void one with one"),
        (replaced(COMMIT, shards=(ShardResult(0, 1000, 0, DIGEST, (0,), b"short"),)), "a signature of 64 bytes"),
        (replaced(COMMIT, signature=b""), "field signature of commit: .* a signature of 64 bytes"),
        (replaced(COMMIT, previous=b"short"), "field previous of commit: .* a digest of 16 bytes"),
        (replaced(CONTRIBUTION, end=1001) + bytes(10), r"\[0, 1001\) does not lie in a fragment of 1000 values"),
        (replaced(CONTRIBUTION, start=600) + bytes(10), r"\[600, 600\) does not lie"),
        (frames.encode(CONTRIBUTION) + bytes(601), "sent 601 payload bytes; expected at most 600"),
        (frames.encode(OFFER) + b"x", "sent 1 bytes after a offer; expected none"),
    ],
)
def test_each_violation_has_its_sentence(frame, sentence):
    with pytest.raises(PeerFault, match=sentence) as caught:
        frames.decode(frame, SENDER, LIMITS)
    assert caught.value.peer_id == SENDER


def test_lists_beyond_the_limits_are_refused():
    roster = tuple(RosterEntry(peer, 1, 1, 0, 0) for peer in sorted(named(n) for n in range(MAX_ROSTER)))
    shards = tuple(ShardPlan(index, index + 1, 0) for index in range(MAX_SHARDS))
    limits = Limits((MAX_SHARDS,), 10)
    largest = Plan(0, 0, 0, DIGEST, roster, shards, 1.0, 1.0)
    assert frames.decode(frames.encode(largest), SENDER, limits)[0] == largest
    more = tuple(sorted((*roster, RosterEntry(named(10**6), 1, 1, 0, 0)), key=lambda entry: entry.peer_id))
    for frame in (
        replaced(largest, roster=more),
        replaced(largest, shards=(*shards, ShardPlan(MAX_SHARDS, MAX_SHARDS + 1, 0))),
    ):
        assert decode_or_fault(frame, Limits((MAX_SHARDS + 1,), 10)) is None


def test_a_commit_digest_names_every_field():
    assert frames.commit_digest(COMMIT) == frames.commit_digest(frames.decode(frames.encode(COMMIT), SENDER, LIMITS)[0])
    for change in ({"version": 8}, {"leader": named(2)}, {"attempt": 1}, {"roster": ROSTER[:1]}, {"previous": DIGEST}):
        values = {field.name: getattr(COMMIT, field.name) for field in fields(COMMIT)}
        assert frames.commit_digest(Commit(**{**values, **change})) != frames.commit_digest(COMMIT)
    # A commit that was signed twice is still one commit.
    assert frames.commit_digest(replace(COMMIT, signature=bytes(SIGNATURE_BYTES))) == frames.commit_digest(COMMIT)


def test_what_is_known_of_a_commit_is_that_of_no_later_one_at_its_place_in_memory():
    shard, leader = messages.ShardResult(0, 8, 0, bytes(16), (0,)), named(1)
    for version in range(100):
        commit = Commit(0, version, 0, leader, bytes(16), (messages.RosterEntry(leader, 1, 1, version, 1),), (shard,))
        digest = hashlib.sha256(frames.encode(commit.bare)).digest()
        assert [frames.commit_digest_whole(commit) for _ in range(2)] == [digest, digest]
        assert frames.place_of(frames.encode(commit)) == ("commit", 0, version)
        del commit


def test_a_commit_that_many_ask_for_is_encoded_once_and_so_many_are_kept():
    """That of a round of 256 members takes 4 ms, and a question 23 bytes."""
    commits = [replace(COMMIT, version=version) for version in range(frames.MAX_ENCODED + 1)]
    first = frames.encode(commits[0])
    assert frames.encode(commits[0]) is first
    for commit in commits:
        frames.encode(commit)
    assert frames.encode(commits[0]) is not first
    assert frames.encode(commits[-1]) is frames.encode(commits[-1])


def test_a_full_commit_fits_its_header():
    """The largest round that the protocol allows must be encodable, or its leader could never close it."""
    size = MAX_SHARDS << 27
    parts = tuple(WorkPart(size - MAX_PARTS + n + 1, MAX_TOKENS, MAX_STEPS, 2**53) for n in range(MAX_PARTS))
    roster = tuple(
        RosterEntry(peer, MAX_TOKENS, MAX_STEPS, 2**53, 2**53, parts)
        for peer in sorted(named(n) for n in range(MAX_ROSTER))
    )
    everyone = tuple(range(MAX_ROSTER))
    shards = tuple(
        ShardResult(n << 27, (n + 1) << 27, n % MAX_ROSTER, DIGEST, everyone, SIGNATURE) for n in range(MAX_SHARDS)
    )
    commit = Commit(63, 2**53, 10_000, named(1), DIGEST, roster, shards, DIGEST, SIGNATURE)
    limits = Limits((MAX_SHARDS << 27,) * 64, 10)
    assert frames.decode(frames.encode(commit), SENDER, limits)[0] == commit
