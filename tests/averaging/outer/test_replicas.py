"""Rates, members and weights change from round to round: anchors stay equal, replicas within the stated bound.

The bound is that of `averaging.outer.outer_step.overlay_terms`; it is checked for every value of the fragment on its
own.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.outer.outer_settings import OuterRule
from tests.kit.rounds.replicas import Part, Replicas

SIZE, CUT, BLOCK = 24, 16, 8
NUM_PEERS, NUM_ROUNDS = 3, 25
ETA, BETA = 0.7, 0.6
RULES = (
    OuterRule("sync", ETA, BETA),
    OuterRule("carry", ETA, BETA, overlay_gain=0.0),
    OuterRule("eager", ETA, BETA),
    OuterRule("carry", ETA, BETA, overlay_gain=0.7),
    OuterRule("carry", ETA, BETA, overlay_gain=1.0),
)


def normal(seed, size=SIZE):
    return 0.1 * np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def zeros():
    return np.zeros(SIZE, dtype=np.float32)


class DrawnReplicas(Replicas):
    """Rounds in which everything that may change does, by the given chance; own work of every round is kept."""

    def __init__(self, rule, codec_name, chance):
        super().__init__(rule, codec_name, normal(999), NUM_PEERS, BLOCK)
        self.chance = chance
        self.committed = [[] for _ in range(NUM_PEERS)]
        self.num_operations = 0

    def decoded(self, peer):
        out, pending = zeros(), self.states[peer].pending
        if pending is not None:
            self.codec.decode(pending.encoded, out)
        return out

    def send_some(self, round_):
        for peer, state in enumerate(self.states):
            if self.chance.random() < 0.8:
                work = normal(100 * round_ + peer) * self.chance.choice([0.2, 1.0, 3.0])
                self.live[peer] -= work
                state.receive_work(work, self.chance.randint(1, 1000), self.chance.randint(1, 9), state.version)
            if state.unsent_tokens and state.pending is None:
                self.send_waiting(peer)
        self.num_operations += 4

    def commit_some(self):
        """Each of two shards: void, or from whoever arrived there; rates that no peer could foresee at its send."""
        works = [self.decoded(peer) for peer in range(NUM_PEERS)]
        parts = [
            Part(
                *(start, end, frozenset(peer for peer in range(NUM_PEERS) if self.chance.random() < 0.7)),
                (self.chance.uniform(0.05, ETA), self.chance.uniform(0.1, BETA)),
            )
            for start, end in ((0, CUT), (CUT, SIZE))
        ]
        for part, reduction in zip(parts, self.commit_parts(parts), strict=True):
            for peer, work in enumerate(works):
                if reduction is None or peer not in reduction.included:
                    work[part.start : part.end] = 0
        for peer, work in enumerate(works):
            self.committed[peer].append(work)
        self.num_operations += 6

    def bound(self, one, other):
        """What the docstring of `overlay_terms` allows two replicas to differ by, per value."""
        pending = self.decoded(one), self.decoded(other)
        if self.rule.mode == "carry":
            return self.rule.overlay_gain * np.abs(pending[0] - pending[1])
        if self.rule.mode == "sync":
            return zeros()
        works = []
        for peer, work in zip((one, other), pending, strict=True):
            state = self.states[peer]
            works.append(state.shown_share * np.stack([*self.committed[peer], work]) * (state.pending is not None))
        largest = np.abs(works[0] - works[1]).max(axis=0)
        return self.rule.outer_lr / (1 - self.rule.outer_momentum) * largest

    def check(self):
        digests = {state.refresh_digest() for state in self.states}
        assert len(digests) == 1
        rounding = self.num_operations * 2.0**-23 * max(1.0, max(float(np.abs(live).max()) for live in self.live))
        for one, other in itertools.combinations(range(NUM_PEERS), 2):
            apart = (self.live[one] + self.states[one].residual) - (self.live[other] + self.states[other].residual)
            assert (np.abs(apart) <= self.bound(one, other) + rounding).all()


@pytest.mark.parametrize(
    ("rule", "codec_name"), [*((rule, "int4") for rule in RULES), (RULES[2], "fp32")], ids=lambda value: str(value)[:24]
)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_anchors_are_equal_and_replicas_stay_within_the_bound(rule, codec_name, seed):
    swarm = DrawnReplicas(rule, codec_name, random.Random(seed))
    for round_ in range(NUM_ROUNDS):
        swarm.send_some(round_)
        swarm.check()
        swarm.commit_some()
        swarm.check()
