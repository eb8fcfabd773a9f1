"""The model of compute utilisation against the published table, and this project's rounds beside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.codec.blocks import encoded_num_bytes
from benchmarks.planning import utilisation as model_module
from benchmarks.planning.published_bandwidths import agreement, bandwidth_table, own_interval_bits
from benchmarks.planning.utilisation import (
    GRID_BITS_PER_SECOND,
    PUBLISHED_METHODS,
    PUBLISHED_MODELS,
    TARGETS,
    LayeredModel,
    stall_seconds,
    utilisation,
)

MODELS = st.sampled_from(PUBLISHED_MODELS)
METHODS = st.sampled_from(PUBLISHED_METHODS)


def test_the_published_table_is_reproduced():
    found = agreement(bandwidth_table())
    assert found.cells == 75
    assert found.exact >= 67
    assert found.near >= 73


@pytest.mark.parametrize("bits", [12.5, 14.5, 16.0])
def test_another_payload_would_not_reproduce_it(monkeypatch, bits):
    monkeypatch.setattr(model_module, "FITTED_BITS_PER_PARAMETER", bits)
    assert agreement(bandwidth_table()).exact < 60


def test_one_layer_by_hand():
    """Two layers, a step of 3 s: forward 1 s, backward 1 s each; the last layer's transfer begins at 2 s."""
    model = LayeredModel("two", 1, 2, 3.0)
    assert stall_seconds(model, range(2), 0.5, 0) == pytest.approx(0.5)  # 2.5 s, then from 3 s on
    assert stall_seconds(model, range(2), 2.0, 0) == pytest.approx(3.0)  # 4 s, then to 6 s
    assert stall_seconds(model, range(1, 2), 0.5, 0) == 0.0  # arrived before the step was over
    assert stall_seconds(model, range(2), 2.0, 1) == 0.0


@given(MODELS, METHODS, st.sampled_from(GRID_BITS_PER_SECOND))
def test_a_faster_line_and_a_longer_overlap_never_hurt(model, method, rate):
    here = utilisation(model, method, rate)
    assert 0 < here <= 1
    assert utilisation(model, method, 1.3 * rate) >= here
    patient = type(method)("", method.sync_every, method.layers_per_fragment, method.overlap_steps + 1)
    hasty = type(method)("", method.sync_every, method.layers_per_fragment, method.overlap_steps)
    assert utilisation(model, patient, rate) >= utilisation(model, hasty, rate)


@pytest.mark.parametrize("model", PUBLISHED_MODELS)
def test_own_rounds_carry_every_parameter_once_in_each_interval(model):
    """Two peers: half of a contribution goes out, and the mean of the other half."""
    payload_bits = 8 * encoded_num_bytes("int4", 128, model.num_parameters)
    assert payload_bits < own_interval_bits(model) < 1.002 * payload_bits


def test_own_rounds_need_a_hundredth_of_data_parallel():
    rows = [row for row in bandwidth_table() if row.times_less is not None]
    assert len(rows) == 2 * len(PUBLISHED_MODELS)
    for row in rows:
        assert all(factor is not None and factor > 100 for factor in row.times_less)
        assert len(row.bits_per_second) == len(TARGETS)
