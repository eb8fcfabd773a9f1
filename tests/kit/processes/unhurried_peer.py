"""The `peer` command on a slow machine: a step of the inner loop takes at least as long as the test says.

    python -m tests.kit.processes.unhurried_peer STEP_SECONDS join ...
    python -m tests.kit.processes.unhurried_peer STEP_SECONDS demo ...         and each peer of the demo
    python -m tests.kit.processes.unhurried_peer STEP_SECONDS examples/X.py    a loop of its own

A tiny model takes a hundred steps a second, and each ten of them are a round. Two such peers keep two cores busy, while
the test waits for something else. Torch's compiler, which torch loads with the first optimizer and which takes a third
of a peer's start, is loaded only if something asks for it.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.kit.no_compiler import load_no_compiler, load_no_shape_kernels


def slow_down(step_seconds: float) -> None:
    """Let each read of a batch take `step_seconds` longer."""
    from peer.data_division.block_order import BlockOrder

    def slower(read: Callable[..., Any]) -> Callable[..., Any]:
        def after_a_while(*arguments: Any) -> Any:
            time.sleep(step_seconds)
            return read(*arguments)

        return after_a_while

    BlockOrder.next = slower(BlockOrder.next)  # type: ignore[method-assign]


def slow_demo(step_seconds: float) -> None:
    """Let the demo start peers like this one."""
    from peer.demo import swarm

    start = swarm.python_command

    def unhurried(module: str, *arguments: str) -> list[str]:
        return start("tests.kit.processes.unhurried_peer", str(step_seconds), "kept", *arguments)

    swarm.python_command = unhurried


def run_loop(script: str, step_seconds: float) -> None:
    """Run a script; each step of an optimizer takes `step_seconds` longer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: time.sleep(step_seconds))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    step_seconds = float(sys.argv.pop(1))
    load_no_compiler()
    if "join" in sys.argv and "--devices" not in sys.argv:
        load_no_shape_kernels()
    if sys.argv[1].endswith(".py"):
        del sys.argv[0]
        run_loop(sys.argv[0], step_seconds)
    else:
        from peer.__main__ import main

        if sys.argv[1] == "kept":
            del sys.argv[1]
            from peer.demo.kept_command import main
        slow_demo(step_seconds) if sys.argv[1] == "demo" else slow_down(step_seconds)
        main()
