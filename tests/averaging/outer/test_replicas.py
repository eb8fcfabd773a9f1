"""Rates, members and weights change from round to round: anchors stay equal, replicas within the stated bound.

The bound is that of `averaging.outer.outer_step.overlay_terms`; it is checked for every value of the fragment on its
own.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.arrays import F32
from averaging.codec.codec import make_codec
from averaging.outer.contributions import CommittedShard
from averaging.outer.fragment_state import FragmentState
from averaging.outer.outer_step import OuterRule, Terms, staleness_of, weights_of
from averaging.outer.reduction import reduce_shard

SIZE, CUT, BLOCK = 24, 16, 8
NUM_PEERS, NUM_ROUNDS = 3, 25
ETA, BETA = 0.7, 0.6
RULES = (
    OuterRule("sync", ETA, BETA),
    OuterRule("delayed", ETA, BETA),
    OuterRule("eager", ETA, BETA),
    OuterRule("own", ETA, BETA, own_weight=0.6),
    OuterRule("carry", ETA, BETA, overlay_gain=0.7),
    OuterRule("carry", ETA, BETA, overlay_gain=1.0),
)


def normal(seed, size=SIZE):
    return 0.1 * np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def zeros():
    return np.zeros(SIZE, dtype=np.float32)


@dataclass
class Replica:
    """A fragment state, live values beside it, and the own work of every round, most recent last."""

    state: FragmentState
    live: F32
    committed: list[F32] = field(default_factory=list)

    def add(self, change):
        if change is not None:
            assert change.dtype == np.float32
            self.live += change

    def decoded(self):
        out = zeros()
        if self.state.pending is not None:
            self.state.codec.decode(self.state.pending.encoded, out)
        return out


class Swarm:
    """Rounds in which everything that may change does, by the given chance."""

    def __init__(self, rule, codec_name, chance):
        self.rule, self.chance, self.codec = rule, chance, make_codec(codec_name, BLOCK)
        start = normal(999)
        self.replicas = [
            Replica(FragmentState(rule, self.codec, start.copy(), zeros(), zeros()), start.copy())
            for _ in range(NUM_PEERS)
        ]
        self.num_operations = 0

    def send(self, round_):
        for index, replica in enumerate(self.replicas):
            state = replica.state
            if self.chance.random() < 0.8:
                work = normal(100 * round_ + index) * self.chance.choice([0.2, 1.0, 3.0])
                replica.live -= work
                state.receive_work(work, self.chance.randint(1, 1000), self.chance.randint(1, 9), state.version)
            if state.unsent_tokens and state.pending is None:
                replica.add(state.send(round_ + 1)[1])
        self.num_operations += 4

    def commit(self):
        """Each of two shards: void, or from whoever arrived there; rates that no peer could foresee at its send."""
        version = self.replicas[0].state.version
        terms, parts, inside = {}, [], {}
        for index, replica in enumerate(self.replicas):
            sent = replica.state.pending
            if sent is not None:
                staleness = staleness_of(self.rule.mode, version, sent.base_version)
                terms[index] = Terms(sent.tokens, sent.steps, staleness)
        for start, end in ((0, CUT), (CUT, SIZE)):
            arrived = [index for index in terms if self.chance.random() < 0.7]
            given_ = [
                (index, terms[index], self.replicas[index].state.pending.encoded.slice_blocks(start, end - start))
                for index in arrived
            ]
            reduction = reduce_shard(given_, self.rule, self.codec, end - start, None)
            inside[start] = () if reduction is None else reduction.included
            rates = (self.chance.uniform(0.05, ETA), self.chance.uniform(0.1, BETA))
            parts.append((start, end, None if reduction is None else reduction.encoded, *rates))
        shares = dict(zip(terms, weights_of(list(terms.values()), self.rule), strict=True))
        for index, replica in enumerate(self.replicas):
            work = replica.decoded()
            for start, end, gradient, *_ in parts:
                if gradient is None or index not in inside[start]:
                    work[start:end] = 0
            replica.committed.append(work)
            shards = [
                CommittedShard(start, end, gradient, outer_lr, index in inside[start], beta)
                for start, end, gradient, outer_lr, beta in parts
            ]
            if index in shares:
                replica.state.own_share = shares[index]
            replica.add(replica.state.apply(shards, 1)[0])
        self.num_operations += 6

    def bound(self, one, other):
        """What the docstring of `overlay_terms` allows two replicas to differ by, per value."""
        pending = one.decoded(), other.decoded()
        if self.rule.mode == "carry":
            return self.rule.overlay_gain * np.abs(pending[0] - pending[1])
        if self.rule.mode in ("sync", "delayed"):
            return zeros()
        shares = [
            replica.state.shown_share if self.rule.mode == "eager" else self.rule.own_weight for replica in (one, other)
        ]
        works = [
            share * np.stack([*replica.committed, work]) * (replica.state.pending is not None)
            for share, replica, work in zip(shares, (one, other), pending, strict=True)
        ]
        largest = np.abs(works[0] - works[1]).max(axis=0)
        return self.rule.outer_lr / (1 - self.rule.outer_momentum) * largest

    def check(self):
        digests = {replica.state.refresh_digest() for replica in self.replicas}
        assert len(digests) == 1
        rounding = (
            self.num_operations * 2.0**-23 * max(1.0, max(float(np.abs(one.live).max()) for one in self.replicas))
        )
        for one, other in itertools.combinations(self.replicas, 2):
            apart = (one.live + one.state.residual) - (other.live + other.state.residual)
            assert (np.abs(apart) <= self.bound(one, other) + rounding).all()


@pytest.mark.parametrize(
    ("rule", "codec_name"), [*((rule, "int4") for rule in RULES), (RULES[2], "fp32")], ids=lambda value: str(value)[:24]
)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_anchors_are_equal_and_replicas_stay_within_the_bound(rule, codec_name, seed):
    swarm = Swarm(rule, codec_name, random.Random(seed))
    for round_ in range(NUM_ROUNDS):
        swarm.send(round_)
        swarm.check()
        swarm.commit()
        swarm.check()


def test_integrated_terms_leave_the_bound_when_the_rate_changes():
    """Why the overlay is replaced and not integrated: what a step added at one rate, the next takes off at another."""
    chance, momenta, live, past = random.Random(1), *np.zeros((3, 2, SIZE))
    largest, apart = np.zeros(SIZE), []
    for round_ in range(400):
        work = np.stack([normal(2 * round_), normal(2 * round_ + 1)])
        mixed = past.mean(axis=0) + (work - past) / 2
        eta, past = chance.uniform(0.1, ETA), work
        momenta = BETA * momenta + mixed
        live = live - eta * (mixed + BETA * momenta)
        largest = np.maximum(largest, np.abs(work[0] - work[1]) / 2)
        apart.append(np.abs(live[0] - live[1]) / (ETA / (1 - BETA) * largest))
    assert float(np.max(apart[-50:])) > 1
    assert float(np.mean(apart[-50:])) > 2 * float(np.mean(apart[:10]))
