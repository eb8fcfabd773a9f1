"""A log of commits, applied by every peer: prints the digests. `tests/averaging/codec/test_same_bits.py` runs it under
many conditions.

python -m tests.kit.averages.commit_log --threads 2 --kernels compiled --chunk-values 4096 --order 1
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

from averaging.arrays import F32
from averaging.codec import compiled_kernels
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.build_kernels import source_mark
from averaging.codec.codec import Codec, make_codec
from averaging.fragment.shard_store import ShardStore, terms_of
from averaging.outer.contribution_weights import shard_rates
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard, Sent
from averaging.outer.shard_mean import reduce_shard
from averaging.wire.messages import Contribution, Plan, RosterEntry, ShardPlan
from dht.ground.host import PeerId

SIZE, BLOCK, CUT, NUM_PEERS, NUM_ROUNDS = 20_007, 64, 12_032, 5, 3
PEERS = tuple(PeerId(f"peer{index}") for index in range(NUM_PEERS))
CASES: dict[str, tuple[OuterRule, str]] = {
    "mean, carry, int4": (OuterRule("carry", 0.7, 0.5, overlay_gain=0.7), "int4"),
    "mean, eager, fp32": (OuterRule("eager", 0.7, 0.5), "fp32"),
    "centered clip": (
        OuterRule("sync", 0.5, 0.5, combine="centered_clip", clip_norm_ratio=2.0, clip_weight_ratio=3.0),
        "int4",
    ),
}


def work_of(seed: int) -> F32:
    """From whole numbers: normal ones would depend on the vector instructions that make them."""
    numbers = np.random.default_rng(seed).integers(-(2**20), 2**20, SIZE)
    return (numbers * 2.0**-27).astype(np.float32)


ReducedShard = tuple[int, int, bytes, tuple[int, ...], tuple[float, float]]
"""(start, end, payload, included, rates)."""


def shuffled(order: int, count: int) -> list[int]:
    """In order for 0, else in a random one."""
    positions = list(range(count))
    return positions if order == 0 else random.Random(order).sample(positions, count)


def digests(rule: OuterRule, codec: Codec, order: int, executor: Executor) -> Iterator[str]:
    """After each round: the anchors' digest, and one of what all live parameters show.

    Peers send and apply, and shards are reduced, on the threads of `executor`; the codec is shared by all.
    """
    start = work_of(1)
    states = [FragmentState(rule, codec, start.copy(), *np.zeros((2, SIZE), dtype=np.float32)) for _ in PEERS]
    errors: dict[int, EncodedBlocks | None] = {}
    for round_ in range(NUM_ROUNDS):
        list(executor.map(partial(send_work, states, round_), range(NUM_PEERS)))
        roster = tuple(
            RosterEntry(peer, sent.tokens, sent.steps, sent.base_version, sent.sequence, sent.parts)
            for index, (peer, sent) in enumerate(
                (peer, pending(state)) for peer, state in zip(PEERS, states, strict=True)
            )
        )
        plan = Plan(0, round_, 0, b"", roster, (ShardPlan(0, CUT, 0), ShardPlan(CUT, SIZE, 1)), 1.0, 1.0)
        shards = list(executor.map(partial(reduced, rule, codec, plan, states, order, errors), range(2)))
        anchors = set(executor.map(partial(applied, states, codec, shards), shuffled(order, NUM_PEERS)))
        assert len(anchors) == 1, f"{len(anchors)} anchors after round {round_}"
        yield anchors.pop()
        yield hashlib.sha256(b"".join(state.shown().tobytes() for state in states)).hexdigest()


def send_work(states: Sequence[FragmentState], round_: int, index: int) -> None:
    work = work_of(10 * round_ + index)
    states[index].receive_work(work, 1000 + 77 * index, 10 + index, max(0, round_ - index % 3))
    states[index].send(round_ + 1)


def applied(states: Sequence[FragmentState], codec: Codec, shards: Sequence[ReducedShard], index: int) -> str:
    """Digest of the anchor that one peer has now."""
    committed = [
        CommittedShard(start, end, codec.unpack(end - start, payload), outer_lr, index in included, beta)
        for start, end, payload, included, (outer_lr, beta) in shards
    ]
    states[index].apply(committed, 1000)
    return states[index].refresh_digest().hex()


def pending(state: FragmentState) -> Sent:
    assert state.pending is not None
    return state.pending


def reduced(
    rule: OuterRule,
    codec: Codec,
    plan: Plan,
    states: Sequence[FragmentState],
    order: int,
    errors: dict[int, EncodedBlocks | None],
    number: int,
) -> ReducedShard:
    """One shard, from contributions that arrive in the given order.

    The last member's contribution to the second shard never comes.
    """
    shard = plan.shards[number]
    store = ShardStore(codec, SIZE)
    arriving = range(NUM_PEERS - number)
    for index in shuffled(order, len(arriving)):
        payload = b"".join(
            bytes(part)
            for part in pending(states[index]).encoded.slice_blocks(shard.start, shard.end - shard.start).pack()
        )
        message = Contribution(
            0,
            plan.version,
            0,
            PEERS[0],
            number,
            plan.roster[index].sequence,
            shard.start,
            shard.end,
            plan.roster[index].tokens,
        )
        store.take_contribution(PEERS[index], message, memoryview(payload))
    given = store.contributions(rule, plan, PEERS[0], number, arriving)
    reduction = reduce_shard(given, rule, codec, shard.end - shard.start, errors.get(number))
    assert reduction is not None
    errors[number] = reduction.error
    payload = b"".join(bytes(part) for part in reduction.encoded.pack())
    rates = shard_rates([terms_of(rule, plan, member, shard.start, shard.end) for member in reduction.included], rule)
    return shard.start, shard.end, payload, reduction.included, rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1, help="that peers and reducers share")
    parser.add_argument("--kernels", choices=("numpy", "compiled"), default="numpy")
    parser.add_argument("--compiled", type=Path, help="compiled kernels in place of the installed ones")
    parser.add_argument("--chunk-values", type=int, default=0, help="of encoding and of outer steps; 0: as they are")
    parser.add_argument("--order", type=int, default=0, help="seed of arrival orders; 0: in order")
    options = parser.parse_args()
    if options.chunk_values:
        for module in ("outer.fragment_anchor_and_residual", "codec.codec", "codec.numpy_kernels"):
            mock.patch(f"averaging.{module}.CHUNK_VALUES", options.chunk_values).start()
    if options.compiled:
        library = compiled_kernels.KernelLibrary(options.compiled, source_mark())
        mock.patch("averaging.codec.compiled_kernels.kernels", return_value=library).start()
    found = {}
    with ThreadPoolExecutor(options.threads) as executor:
        for name, (rule, codec) in CASES.items():
            made = make_codec(codec, BLOCK, options.kernels)
            found[name] = list(digests(rule, made, options.order, executor))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
