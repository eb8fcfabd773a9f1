"""How fast a line must be so that training does not wait for it: the published model and its table. Pure.

Streaming DiLoCo (arXiv 2501.18512, appendix, table 4) lists the bandwidth at which a training run computes during 50 to
99 % of the time. It was found by simulating a schedule of forward passes, backward passes and reductions. This is that
simulation as far as the paper tells it:

- a step of s seconds is s/3 forward, then the layers backward from the last to the first, (2/3) s / layers each;
- the link carries one layer after the other; a layer may start once its backward is done;
- what has not arrived `overlap_steps` after the end of its step holds up training until it has;
- fragments are every n-th layer (strided); each is sent once in `sync_every` steps;
- listed is the first point of logspace(-1, 3, 50) Gbit/s that reaches the target.

The paper does not say how many bits a parameter takes; `FITTED_BITS_PER_PARAMETER` is the one number fitted to its
table. With it the model gives 69 of the 75 cells exactly and all within one point
(`tests/benchmarks/test_published_bandwidths.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

TARGETS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of the time that is spent computing; the columns of the table."""

GRID_BITS_PER_SECOND = tuple(1e9 * 10 ** (-1 + 4 * point / 49) for point in range(50))
"""The bandwidths that the paper tried; neighbours differ by 21 %."""

FITTED_BITS_PER_PARAMETER = 13.35
"""Fitted; 13.30 to 13.50 all give at least 67 cells. Close to bfloat16 (16) times the share of the weights outside of
the embeddings. At two replicas an all-reduce sends every value once."""


@dataclass(frozen=True, slots=True)
class LayeredModel:
    """A model of equal layers, and the seconds of one inner step."""

    name: str
    num_parameters: int
    num_layers: int
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Method:
    """One way to train: how often what is sent, and how long it may take.

    Attributes:
        layers_per_fragment: None sends the whole model at once.
        overlap_steps: tau, steps that go on while a fragment travels.
        payload_share: of the bytes of the unencoded values.
    """

    name: str
    sync_every: int
    layers_per_fragment: int | None
    overlap_steps: int = 0
    payload_share: float = 1.0


PUBLISHED_MODELS = (
    LayeredModel("1B", 10**9, 24, 0.1),
    LayeredModel("10B", 10**10, 48, 0.8),
    LayeredModel("100B", 10**11, 108, 4.9),
)
DATA_PARALLEL = Method("data-parallel", 1, None)
PUBLISHED_SYNC_EVERY = 100
PUBLISHED_LAYERS_PER_FRAGMENT = 3
PUBLISHED_METHODS = (
    DATA_PARALLEL,
    Method("DiLoCo", PUBLISHED_SYNC_EVERY, None),
    Method("Streaming DiLoCo", PUBLISHED_SYNC_EVERY, PUBLISHED_LAYERS_PER_FRAGMENT),
    Method("  overlapped", PUBLISHED_SYNC_EVERY, PUBLISHED_LAYERS_PER_FRAGMENT, 1),
    Method("  overlapped, FP4", PUBLISHED_SYNC_EVERY, PUBLISHED_LAYERS_PER_FRAGMENT, 1, 0.25),
)
PUBLISHED_GBITS_PER_SECOND: Mapping[str, tuple[tuple[float, ...], ...]] = MappingProxyType(
    {
        "1B": (
            (86.8, 152.6, 184.2, 222.3, 569.0),
            (1.4, 6.2, 13.3, 23.3, 86.8),
            (1.4, 5.2, 9.1, 16.0, 28.1),
            (1.4, 4.3, 6.2, 9.1, 11.0),
            (0.4, 0.9, 1.7, 2.0, 3.0),
        ),
        "10B": (
            (104.8, 222.3, 222.3, 268.3, 471.5),
            (1.7, 7.5, 16.0, 33.9, 104.8),
            (1.7, 5.2, 9.1, 13.3, 19.3),
            (1.7, 3.6, 5.2, 6.2, 7.5),
            (0.4, 0.9, 1.4, 1.4, 1.7),
        ),
        "100B": (
            (184.2, 323.8, 390.7, 390.7, 471.5),
            (3.0, 11.0, 23.3, 49.4, 184.2),
            (2.4, 6.2, 9.1, 11.0, 19.3),
            (1.7, 3.6, 4.3, 5.2, 5.2),
            (0.5, 0.9, 1.1, 1.1, 1.4),
        ),
    }
)
"""Table 4 of arXiv 2501.18512: per model the rows of `PUBLISHED_METHODS`, per row the columns of `TARGETS`."""


def utilisation(model: LayeredModel, method: Method, bits_per_second: float) -> float:
    """Share of the time that is spent computing, 0 to 1, on a line of this rate."""
    payload_bits = method.payload_share * FITTED_BITS_PER_PARAMETER * model.num_parameters
    layer_seconds = payload_bits / model.num_layers / bits_per_second
    num_fragments = 1 if method.layers_per_fragment is None else model.num_layers // method.layers_per_fragment
    stalls = (
        stall_seconds(model, range(first, model.num_layers, num_fragments), layer_seconds, method.overlap_steps)
        for first in range(num_fragments)
    )
    computing = method.sync_every * model.step_seconds
    return computing / (computing + sum(stalls))


def stall_seconds(model: LayeredModel, layers: range, layer_seconds: float, overlap_steps: int) -> float:
    """How long training waits for one fragment.

    Args:
        layers: of the fragment; number 0 is the first one forward, so the last one backward.
        layer_seconds: the link's time for one layer.
    """
    step = model.step_seconds
    arrived = 0.0
    for layer in sorted(layers, reverse=True):
        backward_done = step / 3 + (model.num_layers - layer) * (2 / 3) * step / model.num_layers
        arrived = max(arrived, backward_done) + layer_seconds
    return max(0.0, arrived - step - overlap_steps * step)


def listed_bandwidths(reached: Callable[[float], float]) -> tuple[float | None, ...]:
    """Per target the first of `GRID_BITS_PER_SECOND` that reaches it; None beyond the grid.

    Args:
        reached: utilisation at so many bits/s.
    """
    points = [(rate, reached(rate)) for rate in GRID_BITS_PER_SECOND]
    return tuple(next((rate for rate, share in points if share >= target), None) for target in TARGETS)


def needed_bandwidths(model: LayeredModel, method: Method) -> tuple[float | None, ...]:
    """A row of the table."""
    return listed_bandwidths(partial(utilisation, model, method))


def kept_pace(bits_per_interval: float, interval_seconds: float, bits_per_second: float) -> float:
    """Share of the work that this project's rounds commit in time on a line of this rate, 0 to 1.

    No inner step waits for them (modes `carry` and `eager`). The window of a send is the time until the
    next send of the same fragment. So only the line counts: what it cannot carry in an interval is late. It is the
    utilisation of a run that would wait for all of it.
    """
    return min(1.0, interval_seconds * bits_per_second / bits_per_interval)
