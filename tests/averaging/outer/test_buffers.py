"""Running statistics as a fragment of their own: its layout, its rule, and that it finds the mean and stays there."""

from __future__ import annotations

import numpy as np
import pytest

from averaging.codec.codec import make_codec
from averaging.outer.contribution_weights import Terms, shard_rates
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.fragment_layout import build_layout, with_buffers
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.outer.shard_mean import reduce_shard


def test_buffers_are_one_more_fragment_and_change_the_digest() -> None:
    parameters = build_layout([("a", (4, 3)), ("b", (5,))], 3, "balanced")
    layout = with_buffers(parameters, [("mean", (2, 2)), ("none", (0,)), ("var", (3,))])
    assert layout.fragments[:3] == parameters.fragments
    last = layout.fragments[3]
    assert (last.index, last.num_values) == (3, 7)
    assert [(piece.name, piece.start, piece.length, piece.offset) for piece in last.pieces] == [
        ("mean", 0, 4, 0),
        ("var", 0, 3, 4),
    ]
    assert layout.digest != parameters.digest
    assert with_buffers(parameters, [("mean", (4,)), ("var", (3,))]).digest != layout.digest
    assert with_buffers(parameters, []) is parameters


@pytest.mark.parametrize("mode", ["carry", "sync", "eager"])
def test_the_anchor_becomes_the_mean_of_all_and_stays_there(mode: str) -> None:
    """Two peers whose statistics follow their own data at once; a channel's scale is a ten-thousandth of another's."""
    targets = np.array([[100.0, 0.01, -3.0], [300.0, 0.03, 5.0]], np.float32)
    rule = OuterRule(mode, 0.7, 0.5, overlay_gain=0.7).of_buffers()  # type: ignore[arg-type]
    codec = make_codec("fp32", 16)
    states = [FragmentState(rule, codec, *(np.zeros(3, np.float32) for _ in range(3))) for _ in targets]
    live = [np.zeros(3, np.float32) for _ in targets]
    for sequence in range(1, 12):
        sent = []
        for state, x, target in zip(states, live, targets, strict=True):
            state.receive_work(x - target, 10, 5, state.version)
            x[:] = target
            one, change = state.send(sequence)
            if change is not None:
                x += change
            sent.append(one)
        terms = Terms(10, 5, 0)
        members = [(index, terms, one.encoded) for index, one in enumerate(sent)]
        reduction = reduce_shard(members, rule, codec, 3, None)
        assert reduction is not None
        rates = shard_rates([terms, terms], rule)
        for state, x in zip(states, live, strict=True):
            shard = CommittedShard(
                0, 3, reduction.encoded, own_included=True, outer_lr=rates[0], outer_momentum=rates[1]
            )
            change, _ = state.apply([shard], 20)
            x += change
            state.own_share = 0.5
        if sequence > 1:
            np.testing.assert_allclose(states[0].anchor, targets.mean(0), rtol=1e-4)
    assert states[0].anchor.tobytes() == states[1].anchor.tobytes()
