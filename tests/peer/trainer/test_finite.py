"""Finding values that are not finite, in arrays and in tensors: as exact as looking at every one of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from averaging import finite_values
from peer.trainer.loop import checkpoint_portion

LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -2.0], [LARGEST] * 100, [LARGEST, LARGEST, -LARGEST]])
def test_finite_values_whose_sum_may_not_be(values):
    assert checkpoint_portion.all_finite(torch.tensor(values))
    assert finite_values.all_finite(np.array(values, np.float32))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_bad_value_among_many_is_found_wherever_it_is(bad, dtype):
    for place in (0, 70_000, 99_999):
        values = torch.ones(100_000, dtype=dtype)
        values[place] = bad
        assert not checkpoint_portion.all_finite(values)
        assert not finite_values.all_finite(values.float().numpy())


def test_infinities_that_cancel_are_found():
    values = [math.inf, 1.0, -math.inf]
    assert not checkpoint_portion.all_finite(torch.tensor(values))
    assert not finite_values.all_finite(np.array(values, np.float32))
