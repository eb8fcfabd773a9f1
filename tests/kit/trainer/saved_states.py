"""Checkpoints of made-up fragment states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from averaging.codec.codec import make_codec
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.rounds.round_facts import Fact
from dht.ground.host import PeerId
from peer.checkpoint.checkpoint import (
    CheckpointFolder,
    CheckpointOwner,
    SavedCheckpoint,
)
from peer.checkpoint.checkpoint_facts import Totals
from peer.events.peer_events import Event

SIZES = (5, 3)
RULE = OuterRule("carry", 0.7, 0.5)
ME = PeerId("12D3KooWMe")
OWNER = CheckpointOwner("own.aaaaaaaaaaaaaaaaaaaa", ME, b"m" * 32, b"l" * 32, SIZES)
TOTALS = Totals(inner_steps=40, tokens=900, rounds_contributed=3)


def facts_to(seen: list[Event]) -> Callable[[Fact], None]:
    """A report that keeps facts as events of this peer."""
    return lambda fact: seen.append(Event(5.0, ME, fact))


def state_of(size: int, seed: int, rule: OuterRule = RULE) -> FragmentState:
    generator = np.random.default_rng(seed)
    anchor, momentum, residual = (generator.standard_normal(size, dtype=np.float32) for _ in range(3))
    state = FragmentState(
        rule, make_codec("int4", 16), anchor, momentum, residual, version=seed, lineage_tokens=9 * seed
    )
    state.refresh_digest()
    return state


def states_of(seed: int) -> list[FragmentState]:
    return [state_of(size, seed + index) for index, size in enumerate(SIZES)]


def save(folder: CheckpointFolder, states: list[FragmentState], totals: Totals = TOTALS, *, is_last=False) -> Path:
    draft = folder.begin()
    for index, state in enumerate(states):
        draft.add(index, state)
    return draft.finish(totals, has_trainer=False, is_last=is_last)


def newest(folder: CheckpointFolder) -> SavedCheckpoint:
    saved, _ = folder.newest()
    assert saved is not None
    return saved
