"""Processes of a simulation that sleep: a suspended laptop, or `kill -STOP`. Virtual time goes on, they do nothing.

Everything that a process does begins with a callback of the loop, and its tasks run in a context of its own. What comes
due for a process that sleeps waits and runs, in order, when it wakes; as a kernel keeps packets and timers for it.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar, copy_context


class Process:
    """One simulated process; whatever runs in a copy of `context` belongs to it."""

    def __init__(self) -> None:
        self.is_asleep = False
        self._due: list[asyncio.Handle] = []
        self.context = copy_context()
        self.context.run(_process.set, self)

    def sleep(self) -> None:
        """Run nothing until `wake`."""
        self.is_asleep = True

    def wake(self) -> None:
        """Run what came due meanwhile, and go on."""
        self.is_asleep = False
        due, self._due = self._due, []
        for handle in due:
            asyncio.get_running_loop().call_soon(run_unless_cancelled, handle, context=self.context)

    def put_off(self, handle: asyncio.Handle) -> None:
        """Keep a callback that is due until it wakes."""
        self._due.append(handle)


_process: ContextVar[Process] = ContextVar("process")


def process_of(context: Context | None) -> Process | None:
    """The simulated process that acts in `context`, or here; None: the network, or the world."""
    return _process.get(None) if context is None else context.get(_process)


def run_unless_cancelled(handle: asyncio.Handle) -> None:
    """What was cancelled while its process slept never runs."""
    if not handle.cancelled():
        handle._run()


class ProcessHandle(asyncio.Handle):
    """A callback of a process, which runs now or when the process wakes."""

    __slots__ = ()
    _context: Context

    def _run(self) -> None:
        if (process := self._context[_process]).is_asleep:
            process.put_off(self)
        else:
            super()._run()


class ProcessTimer(ProcessHandle, asyncio.TimerHandle):
    """The same at a time of the loop."""

    __slots__ = ()
    _scheduled: bool
