"""Bytes of a round at one peer: in any order, in bounded memory, and only those that belong to the round."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.codec.codec import make_codec
from averaging.fragment import shard_store
from averaging.fragment.shard_store import ENTRY_BYTES, MAX_TIMES_GIVEN, ShardStore, payload_digest, terms_of
from averaging.outer.contribution_weights import Terms
from averaging.outer.outer_settings import OuterRule
from averaging.outer.robust_mean import combine
from averaging.outer.shard_mean import reduce_shard
from averaging.wire.messages import Commit, Contribution, Plan, Result, RosterEntry, ShardPlan, ShardResult
from dht.ground.errors import PeerFault
from tests.kit.network.memory_networks import named

SIZE, CUT, BLOCK = 64, 32, 8
PEERS = sorted(named(number) for number in range(6))
RULE = OuterRule("carry", 0.7, 0.5)
ROSTER = tuple(RosterEntry(peer, 100 + 10 * index, 10, 6, 50 + index) for index, peer in enumerate(PEERS))
PLAN = Plan(0, 7, 1, bytes(16), ROSTER, (ShardPlan(0, CUT, 0), ShardPlan(CUT, SIZE, 1)), 5.0, 9.0)


def normal(seed, size=CUT):
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def zeros(size):
    return np.zeros(size, dtype=np.float32)


def store_of(codec="int4"):
    return ShardStore(make_codec(codec, BLOCK), SIZE)


def payload(store, values):
    return memoryview(b"".join(bytes(part) for part in store.codec.encode(values).pack()))


def contribution(member, shard=0, **changes):
    cut = PLAN.shards[shard]
    fields = {"version": 7, "attempt": 1, "sequence": 50 + member, "start": cut.start, "end": cut.end}
    fields["tokens"] = PLAN.roster[member].tokens
    values = {**fields, **changes}
    return Contribution(
        *(0, values["version"], values["attempt"], PEERS[0], shard),
        *(values["sequence"], values["start"], values["end"], values["tokens"]),
    )


def reduced_payload(store, members):
    given_ = store.contributions(RULE, PLAN, PEERS[0], 0, members)
    reduction = reduce_shard(given_, RULE, store.codec, CUT, None)
    assert reduction is not None
    return b"".join(bytes(part) for part in reduction.encoded.pack()), reduction.included


@given(st.permutations(range(6)), st.sampled_from(["fp32", "int4"]))
def test_the_result_has_the_same_bytes_in_any_order_of_arrival(order, codec):
    straight, mixed = store_of(codec), store_of(codec)
    for member in range(6):
        straight.take_contribution(PEERS[member], contribution(member), payload(straight, normal(member)))
    for member in order:
        mixed.take_contribution(PEERS[member], contribution(member), payload(mixed, normal(member)))
    assert reduced_payload(mixed, range(6)) == reduced_payload(straight, range(6))
    assert mixed.arrived(7) == straight.arrived(7)


@pytest.mark.parametrize(
    "changes", [{"sequence": 49}, {"version": 8}, {"attempt": 2}, {"start": 8, "end": CUT + 8}], ids=str
)
def test_what_is_not_the_planned_contribution_is_not_reduced(changes):
    store = store_of()
    store.take_contribution(PEERS[0], contribution(0), payload(store, normal(0)))
    store.take_contribution(PEERS[1], contribution(1, **changes), payload(store, normal(1)))
    assert [member for member, _, _ in store.contributions(RULE, PLAN, PEERS[0], 0, range(6))] == [0]


@given(st.integers(0, 200))
def test_a_payload_of_the_wrong_size_is_refused(num_bytes):
    store = store_of()
    expected = store.codec.encoded_num_bytes(CUT)
    for take, message in (
        (store.take_contribution, contribution(1)),
        (store.take_result, Result(0, 7, 0, 0, CUT)),
    ):
        if num_bytes == expected:
            take(PEERS[1], message, memoryview(bytes(num_bytes)))
        else:
            with pytest.raises(PeerFault, match=f"sent {num_bytes} bytes in a {message.KIND}; expected {expected}"):
                take(PEERS[1], message, memoryview(bytes(num_bytes)))


def fill(store, sender, make_message, limit=100_000):
    """Send until it is refused; returns the number of messages taken."""
    data = payload(store, normal(1))
    for number in range(limit):
        try:
            message = make_message(number)
            take = store.take_contribution if isinstance(message, Contribution) else store.take_result
            take(sender, message, data)
        except PeerFault:
            return number
    raise AssertionError("nothing stops this sender")


@pytest.mark.parametrize(
    "make_message",
    [
        lambda number: contribution(1, sequence=number),
        lambda number: Contribution(0, 7, 0, PEERS[0], number % 1024, 1, 0, CUT, 9),
    ],
    ids=["same", "other shards"],
)
def test_one_sender_can_only_hold_so_much(make_message):
    store = store_of()
    num_taken = fill(store, PEERS[1], make_message)
    most = 2 * store.codec.encoded_num_bytes(SIZE) + 32_768
    assert num_taken * store.codec.encoded_num_bytes(CUT) <= most
    # Others are not concerned, and the next version starts afresh.
    store.take_contribution(PEERS[2], contribution(2), payload(store, normal(2)))
    store.prune(8, 4)
    store.take_contribution(PEERS[1], contribution(1, version=8), payload(store, normal(1)))


def test_of_many_results_of_one_sender_the_oldest_make_room_and_a_flood_is_refused(monkeypatch):
    monkeypatch.setattr(shard_store, "MAX_RESULT_ROUNDS", 12)
    store = store_of()
    size = store.codec.encoded_num_bytes(CUT)
    most = 2 * store.codec.encoded_num_bytes(SIZE) + 32_768
    other = Result(0, 7, 1, CUT, SIZE)
    kept = store.take_result(PEERS[2], other, payload(store, normal(0)))
    digests: list[bytes] = []

    def flood():
        for number in range(200_000):
            message = Result(0, 7, number % 1024, 0, CUT)
            digests.append(store.take_result(PEERS[1], message, memoryview(number.to_bytes(size, "big"))))

    with pytest.raises(PeerFault, match=f"expected at most {12 * most}"):
        flood()
    assert len(digests) * size > 11 * most
    held = [number for number, digest in enumerate(digests) if store.result(7, number % 1024, digest)]
    assert held == list(range(held[0], len(digests))), "it is not the newest that are kept"
    assert most - ENTRY_BYTES < len(held) * ENTRY_BYTES <= most
    assert store.result(7, 1, kept) is not None
    # Sent again and again, the same bytes are no news and hold nothing more.
    assert not store.take_result(PEERS[3], other, payload(store, normal(0)))
    store.prune(8, 7)
    assert store.take_result(PEERS[1], Result(0, 8, 0, 0, CUT), payload(store, normal(1)))


def test_one_sender_of_many_tiny_shards_takes_little_memory_and_little_time():
    """Where a fragment is large, its messages could each be as short as a block: the work for one does not grow."""
    store = ShardStore(make_codec("int4", 8), 100_000)
    block = memoryview(bytes(store.codec.encoded_num_bytes(8)))
    steps = 0

    class Watched(dict):
        def items(self):
            nonlocal steps
            steps += len(self)
            return super().items()

    store._inbound = Watched()
    most = 2 * store.codec.encoded_num_bytes(100_000) + 32_768

    def flood(first_attempt):
        for number in range(10_000):
            leader = PEERS[number // 512 % len(PEERS)]
            attempt = first_attempt - number // (512 * len(PEERS))
            store.take_contribution(PEERS[1], Contribution(0, 7, attempt, leader, number % 512, 1, 0, 8, 9), block)

    with pytest.raises(PeerFault, match="expected at most"):
        flood(100)
    assert len(store.arrived(7)) == most // ENTRY_BYTES
    assert steps <= 2 * most // ENTRY_BYTES
    # A later attempt takes the place of all that came for earlier ones.
    store.take_contribution(PEERS[1], Contribution(0, 7, 101, PEERS[0], 0, 1, 0, 8, 9), block)
    assert store.arrived(7) == [(PEERS[1], 101, PEERS[0], 0)]
    with pytest.raises(PeerFault, match="expected at most"):
        flood(200)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)), max_size=30))
def test_what_a_sender_sent_for_earlier_attempts_goes_whatever_the_order(messages):
    store, expected = store_of(), {}
    for attempt, leader, shard, version in messages:
        message = Contribution(0, 7 + version, attempt, PEERS[leader], shard, 1, 0, CUT, 9)
        store.take_contribution(PEERS[1], message, payload(store, normal(1)))
        expected = {key: None for key in expected if key[0] != 7 + version or key[1] >= attempt}
        expected[7 + version, attempt, PEERS[leader], shard] = None
    for version in (7, 8):
        kept = sorted((PEERS[1], *key[1:]) for key in expected if key[0] == version)
        assert store.arrived(version) == kept
    store.prune(8, 5)
    assert not store.arrived(7)
    assert {version for _, version in store._attempts} <= {8}


@pytest.mark.parametrize("codec", ["fp32", "int4"])
def test_a_mean_that_is_no_numbers_is_refused_and_of_no_commit(codec):
    """Applied half-way it would end the rounds of its fragment; of contributions the combination says whose is bad."""
    store = store_of(codec)
    good = payload(store, normal(1))
    # The first float, or scale: all exponents are ones.
    bad = memoryview(b"\xff" * 4 + bytes(good)[4:])
    with pytest.raises(PeerFault, match="whose values are not numbers"):
        store.take_result(PEERS[1], Result(0, 7, 0, 0, CUT), bad)
    assert store.result(7, 0, payload_digest(bad)) is None
    assert store.take_result(PEERS[1], Result(0, 7, 0, 0, CUT), good) == payload_digest(good)


def test_of_a_version_that_is_over_the_results_of_its_commit_stay_and_no_others():
    store, found = store_of(), []
    for version in range(7, 12):
        for seed in range(3):
            found.append(store.take_result(PEERS[seed], Result(0, version, 0, 0, CUT), payload(store, normal(seed))))
        result = ShardResult(0, CUT, 0, found[-1], (0,), bytes(64))
        store.settle(Commit(0, version, 0, PEERS[0], bytes(16), ROSTER, (result,)))
        store.prune(version + 1, version - 2)
    assert sorted(store._results) == [(version, 0, found[-1]) for version in range(9, 12)]


def test_what_a_lineage_that_was_left_had_of_later_rounds_is_pruned():
    store = store_of()
    for version in (2, 3, 4, 8):
        store.take_contribution(PEERS[1], contribution(1, version=version), payload(store, normal(version)))
        store.take_result(PEERS[1], Result(0, version, 0, 0, CUT), payload(store, normal(version)))
    store.prune(3, 0)
    digests = {version: payload_digest(bytes(payload(store, normal(version)))) for version in (2, 3, 4, 8)}
    assert [store.result(version, 0, digest) is not None for version, digest in digests.items()] == [
        *(True, True, True, False),
    ]
    assert [len(store.arrived(version)) for version in digests] == [0, 1, 1, 0]


def committed(*digests):
    shards = tuple(
        ShardResult(shard.start, shard.end, shard.reducer, digest, (0,) if digest else ())
        for shard, digest in zip(PLAN.shards, digests, strict=True)
    )
    return Commit(0, 7, 1, PEERS[0], bytes(16), ROSTER, shards)


def reduce_own(store, seed):
    given_ = [(0, terms_of(RULE, PLAN, 0), store.codec.encode(normal(seed) + normal(seed + 1)))]
    for member in range(1, 3):
        given_.append((member, terms_of(RULE, PLAN, member), store.codec.encode(normal(seed + member))))
    reduction = reduce_shard(given_, RULE, store.codec, CUT, store.carried_error(0, CUT))
    assert reduction is not None
    return store.add_reduction(7, 0, 0, CUT, reduction), reduction


def test_what_encoding_lost_is_kept_for_the_committed_result_only():
    store = store_of()
    digest, reduction = reduce_own(store, 1)
    assert payload_digest(store.own_result(Result(0, 7, 0, 0, CUT))) == digest
    assert store.carried_error(0, CUT) is None
    store.settle(committed(b"x" * 16, b""))
    assert store.carried_error(0, CUT) is None
    digest, reduction = reduce_own(store, 1)
    store.settle(committed(digest, b""))
    error = store.carried_error(0, CUT)
    assert error is not None
    assert error is reduction.error
    store.settle(committed(b"", b""))
    assert store.carried_error(0, CUT) is error
    store.forget_errors()
    assert store.carried_error(0, CUT) is None


def test_an_own_result_stays_also_when_another_was_first_with_the_same_bytes():
    store = store_of()
    _, reduction = reduce_own(store, 1)
    data = store.own_result(Result(0, 7, 0, 0, CUT))
    copied_first = store_of()
    assert copied_first.take_result(PEERS[1], Result(0, 7, 0, 0, CUT), memoryview(data))
    copied_first.add_reduction(7, 0, 0, CUT, reduction)
    for number in range(3000):
        copied_first.take_result(PEERS[1], Result(0, 7, 1, CUT, SIZE), memoryview(number.to_bytes(len(data), "big")))
    assert copied_first.own_result(Result(0, 7, 0, 0, CUT)) == data


def test_the_sum_of_all_broadcasts_is_the_sum_of_all_means_wherever_shards_are_cut():
    """Two reducers whose shards follow measured rates; without carried errors most small values never move."""
    chance, codec, num_values = random.Random(1), make_codec("int4", 128), 16_384
    stores = [ShardStore(codec, num_values) for _ in range(2)]
    drift = np.random.default_rng(2).standard_t(1.5, num_values).astype(np.float32).clip(-30, 30)
    waiting = [zeros(num_values) for _ in range(4)]
    wanted, broadcast, mean = np.zeros(num_values), np.zeros(num_values), zeros(num_values)
    for version in range(60):
        sent = []
        for number, residual in enumerate(waiting):
            residual += (0.7 + 0.2 * number) * drift
            sent.append(codec.encode_with_residual(residual))
        cut = 128 * chance.randrange(50, 80)
        results = []
        for index, (store, start, end) in enumerate(zip(stores, (0, cut), (cut, num_values), strict=True)):
            size = end - start
            given_ = [(number, Terms(1, 1, 0), one.slice_blocks(start, size)) for number, one in enumerate(sent)]
            wanted[start:end] += combine(given_, RULE, codec, size).values
            reduction = reduce_shard(given_, RULE, codec, size, store.carried_error(start, end))
            assert reduction is not None
            codec.decode(reduction.encoded, mean[:size])
            broadcast[start:end] += mean[:size]
            digest = store.add_reduction(version, index, start, end, reduction)
            results.append(ShardResult(start, end, index, digest, (0, 1, 2, 3)))
        for store in stores:
            store.settle(Commit(0, version, 0, PEERS[0], bytes(16), ROSTER, tuple(results)))
    small = np.abs(drift) < np.median(np.abs(drift)) / 4
    off = np.linalg.norm((broadcast - wanted)[small]) / np.linalg.norm(wanted[small])
    assert off < 0.05


def test_a_remote_gets_the_same_result_a_few_times_and_others_get_it_too():
    store = store_of()
    store.take_contribution(PEERS[0], contribution(0), payload(store, normal(0)))
    reduction = reduce_shard(store.contributions(RULE, PLAN, PEERS[0], 0, [0]), RULE, store.codec, CUT, None)
    digest = store.add_reduction(7, 0, 0, CUT, reduction)
    for asker in PEERS[1:4]:
        given_times = [store.give(7, 0, digest, asker) is not None for _ in range(200)]
        assert given_times == [number < MAX_TIMES_GIVEN for number in range(200)]
    assert store.give(7, 1, digest, PEERS[4]) is None
    # Nothing is counted for longer than the result is kept.
    store.prune(8, 7)
    assert store.give(7, 0, digest, PEERS[1]) is None
    store.prune(9, 8)
    assert not store._times_given
