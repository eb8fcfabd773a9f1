"""Error feedback loses nothing: what was sent and committed, plus what waits, is what was trained, to the last bit.

The work is made of multiples of 2^-12 and each block holds one larger value, so that scales are at least 2^-9 and every
sum below is exact in float32 (multiples of 2^-17, below 64). Then "equal" means equal.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import make_codec
from averaging.outer.contribution_weights import Terms, staleness_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.outer.shard_mean import reduce_shard

SIZE, BLOCK, CUT = 40, 8, 24
CODECS = ("fp32", "int4")
RULE = OuterRule("carry", 0.7, 0.5, overlay_gain=0.5, staleness_limit=2, clip_norm_ratio=2.0)
FATES = ("committed", "refused", "not a number", "beyond the limit", "too late", "void", "half void", "taken back")


def exact_work(seed):
    """float32 [SIZE]: multiples of 2^-12 up to 2^-4 in size, and one 1 or 1.5 at the head of each block."""
    chance = np.random.default_rng(seed)
    work = chance.integers(-256, 257, SIZE) * 2.0**-12
    work[::BLOCK] = 1 + 0.5 * chance.integers(0, 2, SIZE // BLOCK)
    return work.astype(np.float32)


def poisoned(encoded):
    payload = bytearray(b"".join(bytes(part) for part in encoded.pack()))
    payload[:4] = b"\xff" * 4
    return EncodedBlocks.unpack(encoded.codec, encoded.block_size, encoded.num_values, bytes(payload))


class Books:
    """One peer among two honest others, and where each value of its work is, in float64."""

    def __init__(self, codec_name):
        self.codec = make_codec(codec_name, BLOCK)
        self.state = FragmentState(RULE, self.codec, *np.zeros((3, SIZE), dtype=np.float32))
        self.trained, self.committed, self.dropped = np.zeros((3, SIZE))
        self.sequence = 0

    def train(self, seed):
        work = exact_work(seed)
        self.trained += work
        self.state.receive_work(work, 100, 10, self.state.version)

    def send(self):
        if self.state.pending is None and self.state.unsent_tokens:
            self.sequence += 1
            self.state.send(self.sequence)

    def settle(self, fate):
        """What becomes of the contribution under way, by the code that decides it in a round."""
        sent = self.state.pending
        if sent is None:
            return
        if fate == "taken back":
            self.state.take_back()
            return
        shards = []
        for start, end in ((0, CUT), (CUT, SIZE)):
            is_void = fate == "void" or (fate == "half void" and start == 0)
            shards.append(self._shard(sent, start, end, fate, is_void))
        for shard in shards:
            if shard.own_included:
                self.committed[shard.start : shard.end] += self._decoded(sent)[shard.start : shard.end]
        self.state.apply(shards, 1)

    def _shard(self, sent, start, end, fate, is_void):
        if is_void:
            return CommittedShard(start, end, None, 0.0, False)
        own = sent.encoded.slice_blocks(start, end - start)
        late = staleness_of(RULE.mode, self.state.version, sent.base_version)
        if fate == "refused":
            own = self.codec.encode(self._plain(own) * np.float32(2.0**7))
        elif fate == "not a number":
            own = poisoned(own)
        elif fate == "beyond the limit":
            late = RULE.staleness_limit + 1
        others = [(index, Terms(100, 10, 0), self.codec.encode(exact_work(index)[start:end])) for index in (1, 2)]
        mine = [] if fate == "too late" else [(0, Terms(100, 10, late), own)]
        reduction = reduce_shard([*mine, *others], RULE, self.codec, end - start, None)
        assert reduction is not None
        is_in = 0 in reduction.included
        assert is_in == (fate in ("committed", "half void") and late <= RULE.staleness_limit)
        return CommittedShard(start, end, reduction.encoded, 0.5, is_in)

    def _decoded(self, sent):
        return self._plain(sent.encoded).astype(np.float64)

    def _plain(self, encoded):
        out = np.empty(encoded.num_values, dtype=np.float32)
        self.codec.decode(encoded, out)
        return out

    def check(self):
        under_way = 0 if self.state.pending is None else self._decoded(self.state.pending)
        assert np.array_equal(self.committed + self.dropped + under_way + self.state.residual, self.trained)


@settings(max_examples=25)
@pytest.mark.parametrize("codec_name", CODECS)
@given(st.lists(st.tuples(st.sampled_from(FATES), st.integers(1, 2)), min_size=1, max_size=4), st.integers(0, 999))
def test_work_is_where_the_books_say_to_the_last_bit(codec_name, rounds, seed):
    books = Books(codec_name)
    for position, (fate, num_blocks_of_work) in enumerate(rounds):
        for block in range(num_blocks_of_work):
            books.train(seed + 10 * position + block)
        books.send()
        books.check()
        books.settle(fate)
        books.check()


@pytest.mark.parametrize("codec_name", CODECS)
def test_work_that_nobody_may_apply_any_more_is_dropped_as_a_whole(codec_name):
    """It expires; what left the books is what left the live parameters, and nothing of it is sent later."""
    books = Books(codec_name)
    books.train(1)
    books.send()
    books.settle("committed")
    books.train(2)
    for _ in range(RULE.staleness_limit + 2):
        books.send()
        books.settle("too late")
        books.check()
    late = staleness_of(RULE.mode, books.state.version, books.state.unsent_base_version)
    assert late > RULE.staleness_limit
    books.dropped += books.state.drop_waiting()
    books.check()
    assert not books.state.residual.any()
    assert not books.state.unsent_tokens
