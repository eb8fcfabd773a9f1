"""Which samples of the model a page without scripts lists. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dashboard.history_facts import ModelSample

MAX_LISTED: Final = 5


def chosen_samples(samples: Sequence[ModelSample], most: int = MAX_LISTED) -> list[ModelSample]:
    """The newest, a few between, and the first, newest first.

    Those between are chosen by their places among `samples`, which are the denser the earlier they are.
    """
    last = len(samples) - 1
    if last < most:
        return list(reversed(samples))
    return [samples[round(last * place / (most - 1))] for place in reversed(range(most))]
