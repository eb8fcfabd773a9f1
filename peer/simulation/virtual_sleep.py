"""Processes of a simulation that sleep: a suspended laptop, or `kill -STOP`. Virtual time goes on, they do nothing.

Everything that a process does begins with a callback of the loop, and its tasks run in a context of its own. What comes
due for a process that sleeps waits and runs, in order, when it wakes; as a kernel keeps packets and timers for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TypeVar


class Process:
    """One simulated process; whatever runs in a copy of `context` belongs to it."""

    def __init__(self) -> None:
        self.is_asleep = False
        self._due: list[tuple[Scheduled, Context]] = []
        self.context = copy_context()
        self.context.run(_process.set, self)

    def sleep(self) -> None:
        """Run nothing until `wake`."""
        self.is_asleep = True

    def wake(self) -> None:
        """Run what came due meanwhile, and go on."""
        self.is_asleep = False
        due, self._due = self._due, []
        for scheduled, context in due:
            asyncio.get_running_loop().call_soon(scheduled.run_unless_cancelled, context=context)

    def put_off(self, scheduled: Scheduled, context: Context) -> None:
        """Keep a callback until it wakes."""
        self._due.append((scheduled, context))


Handle = TypeVar("Handle", bound=asyncio.Handle)

_process: ContextVar[Process | None] = ContextVar("process", default=None)


class Scheduled:
    """A callback of a process; `handle` is the loop's, with which its scheduler can cancel it."""

    handle: asyncio.Handle

    def __init__(self, process: Process, context: Context, act: Callable[[], object]) -> None:
        self._process = process
        self._context = context
        self._act = act

    def held_by(self, handle: Handle) -> Handle:
        """The loop has scheduled it."""
        self.handle = handle
        return handle

    def run(self) -> None:
        """Now, or when the process wakes."""
        if self._process.is_asleep:
            self._process.put_off(self, self._context)
        else:
            self._act()

    def run_unless_cancelled(self) -> None:
        """What was cancelled while its process slept never runs."""
        if not self.handle.cancelled():
            self.run()


def of_a_process(context: Context | None, act: Callable[..., object], args: tuple[object, ...]) -> Scheduled | None:
    """A callback of a simulated process; None when it is the network's, or the world's."""
    process = _process.get() if context is None else context.get(_process)
    if process is None:
        return None
    return Scheduled(process, copy_context() if context is None else context, partial(act, *args))
