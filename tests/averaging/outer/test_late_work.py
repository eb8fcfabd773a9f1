"""Late work under a trimmed mean: honest late work counts, and nobody gains by calling itself late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from averaging.outer.contribution_weights import Terms, weights_of
from tests.kit.averages.robust_work import FREE, FRESH, combined, normal

LATE = Terms(480, 30, 2)
"""Three intervals of work, two versions late."""


def with_late(late, terms=LATE, num_fresh=7, noise=0.1):
    """Fresh members that agree on a direction of ones, and one late member; values [2000]."""
    fresh = [1.0 + normal(seed, 2000, noise) for seed in range(num_fresh)]
    return combined(FREE["trimmed_mean"], [*fresh, late], [*[FRESH] * num_fresh, terms])


def test_honest_late_work_is_trimmed_as_rarely_as_fresh_work():
    """It went three times as far in three times the steps; its values count where those of a fresh peer would."""
    honest = 3 * (1.0 + normal(50, 2000, 0.1))
    weights = weights_of([*[FRESH] * 7, LATE], FREE["trimmed_mean"])
    share = weights[-1]
    # Half of eight values are kept. As often kept as the others, it lifts the mean by two times its share, or so.
    kept = float(with_late(honest).values.mean()) - 1.0
    assert kept > 0.5 * 2 * share
    # Held against the fresh ones as it is, it lies at the end of nearly every coordinate.
    as_fresh = replace(LATE, staleness=0)
    assert float(with_late(honest, as_fresh).values.mean()) - 1.0 < 0.1


@pytest.mark.parametrize("size", [-100.0, -10.0, 10.0, 100.0])
def test_a_liar_gains_nothing_by_calling_itself_late(size):
    """At most `1 + staleness` times what it could hide among the fresh, and its weight is that much less."""
    lie = size * (1.0 + normal(51, 2000, 0.1))
    values = with_late(lie).values
    assert float(np.abs(values - 1.0).mean()) < 0.1
    assert float(values.max()) < 1.5


def test_the_order_of_fresh_members_is_that_of_their_values():
    """Nobody is late: the same bits as without any excuse."""
    values = [normal(seed, 300) for seed in range(6)]
    many_steps = [Terms(160 * (1 + index), 10 * (1 + index), 0) for index in range(6)]
    result = combined(FREE["trimmed_mean"], values, many_steps).values
    rows = np.stack(values)
    weights = np.array(weights_of(many_steps, FREE["trimmed_mean"]))
    order = np.argsort(rows, axis=0, kind="stable")[1:-1]
    kept = np.take_along_axis(rows, order, axis=0)
    expected = (kept * weights[order]).sum(axis=0) / weights[order].sum(axis=0)
    np.testing.assert_allclose(result, expected, atol=1e-6, rtol=1e-5)
