"""Whole rounds without a network: what reducers and members do with arrays, for identities and golden runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import make_codec
from averaging.outer.change_buffers import Change
from averaging.outer.contribution_weights import Terms, shard_rates, staleness_of, weights_of
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.outer.shard_mean import Reduction, reduce_shard


@dataclass(frozen=True)
class Part:
    """One shard of a round: its values, who arrived there (None: everybody) and its rates (None: the rule's)."""

    start: int
    end: int
    arrived: frozenset[int] | None = None
    rates: tuple[float, float] | None = None


class Replicas:
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
        self.send_waiting(peer)

    def send_waiting(self, peer: int) -> None:
        """Send all that waits; there is something."""
        self._sequence += 1
        self.show(peer, self.states[peer].send(self._sequence)[1])

    def commit(self) -> None:
        """Average everything under way and apply it at every peer; the reducer carries its error to the next round."""
        size = self.states[0].num_values
        (reduction,) = self._commit([Part(0, size)], self._error)
        assert reduction is not None
        self._error = reduction.error

    def commit_parts(self, parts: Sequence[Part]) -> list[Reduction | None]:
        """The same from shards of their own, which lie side by side; no error is carried. None: nobody arrived."""
        return self._commit(parts, None)

    def _commit(self, parts: Sequence[Part], error: EncodedBlocks | None) -> list[Reduction | None]:
        version = self.states[0].version
        sent = {peer: state.pending for peer, state in enumerate(self.states) if state.pending is not None}
        terms = {
            peer: Terms(one.tokens, one.steps, staleness_of(self.rule.mode, version, one.base_version))
            for peer, one in sent.items()
        }
        reductions, rates = [], []
        for part in parts:
            here = [peer for peer in sent if part.arrived is None or peer in part.arrived]
            num_values = part.end - part.start
            given = [(peer, terms[peer], sent[peer].encoded.slice_blocks(part.start, num_values)) for peer in here]
            reductions.append(reduce_shard(given, self.rule, self.codec, num_values, error))
            rates.append(part.rates or shard_rates([terms[peer] for peer in here], self.rule))
        shares = dict(zip(terms, weights_of(list(terms.values()), self.rule), strict=True))
        for peer, state in enumerate(self.states):
            state.own_share = shares.get(peer, state.own_share)
            shards = [
                CommittedShard(
                    *(part.start, part.end, None if made is None else made.encoded, outer_lr),
                    *(made is not None and peer in made.included, momentum),
                )
                for part, made, (outer_lr, momentum) in zip(parts, reductions, rates, strict=True)
            ]
            self.show(peer, state.apply(shards, sum(term.tokens for term in terms.values()))[0])
        return reductions
