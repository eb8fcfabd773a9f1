"""How the sequences of an inner step are shared between the devices of one peer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dht.ground.errors import UsageFault


def check_division(num_sequences: int, num_ranks: int) -> None:
    """Every rank reads an equal share of a step.

    Raises:
        UsageFault: it cannot be divided so.
    """
    if num_sequences % num_ranks:
        divisors = [str(n) for n in range(1, min(num_sequences, 64) + 1) if num_sequences % n == 0]
        raise UsageFault(
            f"{num_ranks} devices cannot share an inner step of {num_sequences} sequences (batch_size times "
            f"accumulation_steps in the manifest) equally; expected {', '.join(divisors[:-1])} or {divisors[-1]}"
            if len(divisors) > 1
            else f"{num_ranks} devices cannot share an inner step of one sequence; expected one device"
        )


def own_share(positions: NDArray[np.int64], rank: int, num_ranks: int) -> NDArray[np.int64]:
    """The part of a step's blocks that one rank reads: every `num_ranks`-th, so that no two ranks read the same."""
    return positions[rank::num_ranks]
