"""The `peer` command on a slow machine: a step of the inner loop takes at least as long as the test says.

    python -m tests.kit.processes.unhurried_peer STEP_SECONDS join ...

A tiny model takes a hundred steps a second, and each ten of them are a round. Two such peers keep two cores busy, while
the test waits for something else. Torch's compiler, which torch loads with the first optimizer and which takes a third
of a peer's start, is loaded only if something asks for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from tests.kit.no_compiler import load_no_compiler


def slow_down(step_seconds: float) -> None:
    """Let each read of a batch take `step_seconds` longer."""
    from peer.trainer.order.order import PermutedOrder, RandomOrder

    def slower(read: Callable[..., Any]) -> Callable[..., Any]:
        def after_a_while(*arguments: Any) -> Any:
            time.sleep(step_seconds)
            return read(*arguments)

        return after_a_while

    for order in (RandomOrder, PermutedOrder):
        order.next = slower(order.next)  # type: ignore[method-assign]


if __name__ == "__main__":
    step_seconds = float(sys.argv.pop(1))
    from peer.__main__ import main

    slow_down(step_seconds)
    load_no_compiler()
    main()
