"""An architecture's own initialisation, with the same bits on every machine.

Each architecture defines its initialisation: `_init_weights` fills biases with zeros, gains with ones, and matrices
with numbers of `initializer_range`. That code runs here unchanged, and only the drawing of numbers is replaced. A draw
into a parameter uses the raw output of one PCG64 (O'Neill, HMC-CS-2014-0905), seeded by the run's seed and the
parameter's name. numpy guarantees that stream in every version, and the order of draws does not matter.

Each draw is uniform with the requested mean and standard deviation. torch's normal distribution uses logarithms and
cosines, whose last bits differ between machines. No uniform number is more than 1.74 standard deviations from the
mean, so a distribution truncated at two gives the same numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dht.ground.errors import Incompatible
from peer.trainer.model.reproducible_random import draw_uniform

aten = torch.ops.aten


def built_with_values(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the module that `build` makes on the CPU, with initial values determined by `seed` (at least 0) and names.

    `build` is called twice: the first call shows which draw is the last into each parameter.

    Raises:
        Incompatible: the number of draws depends on the drawn values.
    """
    rehearsal = _Draws(lambda number: None)
    with rehearsal:
        module = build()
    names = {_storage(parameter): name for name, parameter in module.named_parameters()}
    last = {storage: number for number, storage in enumerate(rehearsal.storages)}
    sources = [
        names.get(storage, f"draw {number}") if last[storage] == number else None
        for number, storage in enumerate(rehearsal.storages)
    ]
    del module

    def stream(number: int) -> np.random.PCG64 | None:
        source = sources[number] if number < len(sources) else None
        if source is None:  # a later draw overwrites this one
            return None
        return _generator(seed, source)

    draws = _Draws(stream)
    with draws:
        module = build()
    if len(draws.storages) != len(sources):
        raise Incompatible(
            f"{type(module).__name__} draws {len(draws.storages)} times for its initial values, but {len(sources)} "
            "times with other numbers; expected equal counts, so that all peers begin with the same values; begin with "
            "pretrained weights"
        )
    return module


def fill_uniform(parameter: Tensor, seed: int, name: str, middle: float, reach: float) -> None:
    """Fill a contiguous parameter with numbers in `middle` +- `reach`, determined by `seed` and `name`."""
    draw_uniform(parameter.detach().view(-1), _generator(seed, name), middle, reach)


def _generator(seed: int, name: str) -> np.random.PCG64:
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
    return np.random.PCG64(np.random.SeedSequence([seed, key]))


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces draws of random numbers: `stream` returns the generator of a draw; for None the mean is filled in.

    Attributes:
        storages: the storage that each draw filled.
    """

    def __init__(self, stream: Callable[[int], np.random.PCG64 | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: list[int] = []
        self._stream = stream
        # Keeps storages alive: a reused address would be mistaken for another tensor's.
        self._kept: list[torch.UntypedStorage] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        options = options or {}
        if function is aten.normal_.default:
            mean, deviation = _with_defaults(arguments[1:])
            return self._draw(arguments[0], mean, math.sqrt(3) * deviation)
        if function is aten.uniform_.default:
            low, high = _with_defaults(arguments[1:])
            return self._draw(arguments[0], (low + high) / 2, (high - low) / 2)
        if function in (aten.randn.default, aten.rand.default):
            given = {name: value for name, value in options.items() if value is not None}
            middle, reach = (0.0, math.sqrt(3)) if function is aten.randn.default else (0.5, 0.5)
            return self._draw(torch.empty(arguments[0], **given), middle, reach)
        if function is aten.erfinv_.default:
            # torch once drew a truncated normal distribution this way; the factor gives the same standard deviation.
            return arguments[0].mul_(math.sqrt(1.5))
        return function(*arguments, **options)

    @torch.no_grad()
    def _draw(self, tensor: Tensor, middle: float, reach: float) -> Tensor:
        number = len(self.storages)
        self.storages.append(_storage(tensor))
        self._kept.append(tensor.untyped_storage())
        generator = self._stream(number)
        if generator is None:
            return tensor.fill_(middle)
        if tensor.is_contiguous():
            draw_uniform(tensor.view(-1), generator, middle, reach)
            return tensor
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        draw_uniform(flat, generator, middle, reach)
        return tensor.copy_(flat.view(tensor.shape))


def _with_defaults(given: Sequence[float]) -> tuple[float, float]:
    first, second = (*given, *(0.0, 1.0)[len(given) :])
    return first, second


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
