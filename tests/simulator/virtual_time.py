"""An asyncio loop whose clock jumps to the next timer instead of waiting for it.

Hours of a swarm run in seconds, and the same program gives the same trace on every run and every machine. There is no
wall clock, no thread and no socket in it. Code under test needs nothing special as long as it asks
``asyncio.get_running_loop().time()`` for the time and waits with asyncio alone.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from tests.simulator.virtual_sleep import ProcessHandle, ProcessTimer, process_of

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class VirtualDeadlock(RuntimeError):
    """Every task waits, and no timer is left that could wake one."""


def run_virtual(main: Coroutine[Any, Any, Result], start_seconds: float = 0.0, *, seed: int | None = None) -> Result:
    """Run `main` to its end in virtual time and return its result, as `asyncio.run` does in real time.

    Args:
        main: the program; tasks it leaves behind are cancelled.
        start_seconds: first reading of the clock, e.g. a unix time for code that writes `expires_at`.
        seed: None keeps timers of one instant together; a number moves each timer by up to a microsecond, another
            one for each seed, so that tests can try other orders of simultaneous events.

    Raises:
        VirtualDeadlock: nothing can ever happen again, though `main` has not returned; names the waiting tasks.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start_seconds, seed)) as runner:
        return runner.run(main)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See `run_virtual`. `time()` is the virtual clock, in seconds.

    Callbacks of simulated processes are most of what a simulation does. They get a handle of their own kind, which is
    put where asyncio puts its own. An object around each of them cost a fifth of the time.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, start_seconds: float = 0.0, seed: int | None = None) -> None:
        self._now = start_seconds
        self._jitter = None if seed is None else random.Random(seed)
        super().__init__(_JumpingSelector(self._jump))
        numbers = itertools.count()
        self.set_task_factory(
            lambda loop, coroutine, **options: _NumberedTask(coroutine, next(numbers), loop=loop, **options)
        )

    def time(self) -> float:
        return self._now

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._jitter is not None:
            when += 1e-6 * self._jitter.random()
        if process_of(context) is None:
            return super().call_at(when, callback, *args, context=context)
        timer = ProcessTimer(when, callback, args, self, context)
        timer._scheduled = True  # among asyncio's timers
        heapq.heappush(self._scheduled, timer)
        return timer

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if process_of(context) is None:
            return super().call_soon(callback, *args, context=context)
        handle = ProcessHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> NoReturn:
        raise RuntimeError(
            "a thread was asked for in virtual time; expected asyncio alone, because threads finish in no fixed order; "
            "pass the computation in as an argument that tests replace"
        )

    def _jump(self, seconds: float | None) -> None:
        if seconds is None:
            waiting = [f"  {task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(self)]
            raise VirtualDeadlock(
                f"nothing left to do at virtual second {self._now:.6f}, but {len(waiting)} tasks wait; expected a "
                f"timer or a ready callback (sockets and threads do not exist here); the tasks are\n"
                + "\n".join(sorted(waiting))
            )
        self._now += max(0.0, seconds)
        # asyncio runs the timers before time() + this resolution. Its own 1e-9 vanishes in the rounding of a large
        # clock (a unix time has steps of 2.4e-7 s), and a timer due exactly now would never run.
        self._clock_resolution = max(1e-9, 2 * math.ulp(self._now))


class _JumpingSelector(selectors.SelectSelector):
    """Never looks at its files. The loop passes the time until the next timer; the clock takes that step at once."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._jump(timeout)
        return []


class _NumberedTask(asyncio.Task[Any]):
    """A task hashed by its number: asyncio keeps tasks in sets, and sets ordered by address differ in each process."""

    def __init__(self, coroutine: Any, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number
