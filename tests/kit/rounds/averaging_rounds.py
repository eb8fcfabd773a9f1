"""Whole rounds without a network: what reducers and members do with arrays, for identities and golden runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import make_codec
from averaging.outer.change import Change
from averaging.outer.contributions import CommittedShard
from averaging.outer.fragment_state import FragmentState
from averaging.outer.outer_step import OuterRule, Terms, staleness_of, weights_of
from averaging.outer.reduction import reduce_shard, shard_rates


class Swarm:
    """Fragment states of peers that start from one anchor, the reducer's carried error, and the peers' live values."""

    def __init__(self, rule: OuterRule, codec: str, start: F32, num_peers: int, block_size: int = 8) -> None:
        self.rule = rule
        self.codec = make_codec(codec, block_size)
        self.states = [
            FragmentState(rule, self.codec, start.copy(), np.zeros_like(start), np.zeros_like(start))
            for _ in range(num_peers)
        ]
        self.live = [start.copy() for _ in range(num_peers)]
        self._error: EncodedBlocks | None = None
        self._sequence = 0

    def show(self, peer: int, change: Change | None) -> None:
        if change is not None:
            assert isinstance(change, np.ndarray)
            assert change.dtype == np.float32
            self.live[peer] += change

    def send(self, peer: int, work: F32, tokens: int = 10, steps: int = 1) -> None:
        """Hand over `work` (start minus end; the live values show it already) and send all that waits."""
        state = self.states[peer]
        state.receive_work(work, tokens, steps, max(0, state.version - (self.rule.mode != "sync")))
        self._sequence += 1
        self.show(peer, state.send(self._sequence)[1])

    def commit(self) -> None:
        """Average everything under way and apply it at every peer."""
        version = self.states[0].version
        members = [peer for peer, state in enumerate(self.states) if state.pending is not None]
        given: list[tuple[int, Terms, EncodedBlocks]] = []
        for peer in members:
            sent = self.states[peer].pending
            assert sent is not None
            staleness = staleness_of(self.rule.mode, version, sent.base_version)
            given.append((peer, Terms(sent.tokens, sent.steps, staleness), sent.encoded))
        size = self.states[0].num_values
        reduction = reduce_shard(given, self.rule, self.codec, size, self._error)
        assert reduction is not None
        self._error = reduction.error
        terms: Sequence[Terms] = [term for _, term, _ in given]
        rates = shard_rates(terms, self.rule)
        for peer, state in enumerate(self.states):
            if peer in members:
                state.own_share = weights_of(terms, self.rule)[members.index(peer)]
            shard = CommittedShard(0, size, reduction.encoded, rates[0], peer in reduction.included, rates[1])
            self.show(peer, state.apply([shard], sum(term.tokens for term in terms))[0])
