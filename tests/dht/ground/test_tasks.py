"""Tasks that are ended: cancelled, waited for, and not for ever."""

from __future__ import annotations

import asyncio
import logging

from dht.ground.tasks import end_tasks
from tests.simulator.virtual_time import run_virtual


def test_one_that_goes_on_after_it_was_cancelled_holds_nobody_up(caplog):
    async def stubborn():
        while True:
            try:
                await asyncio.sleep(1000.0)
            except asyncio.CancelledError:
                if is_over:
                    raise

    async def ends_late():
        try:
            await asyncio.sleep(1000.0)
        finally:
            await asyncio.sleep(2.0)
            ended.append("late")

    async def fails():
        raise ValueError("lost")

    async def run():
        tasks = [asyncio.ensure_future(work()) for work in (stubborn, ends_late, fails)]
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        await end_tasks([*tasks, asyncio.current_task()], 5.0)
        took = asyncio.get_running_loop().time() - began
        is_over.append(True)
        tasks[0].cancel()
        return took

    is_over, ended = [], []
    with caplog.at_level(logging.WARNING):
        assert run_virtual(run()) == 5.0
    assert ended == ["late"]
    assert "did not end within 5 s" in caplog.text


def test_what_ends_at_once_takes_no_time():
    async def run():
        await end_tasks([])
        await end_tasks([asyncio.ensure_future(asyncio.sleep(1000.0))])
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) < 0.1
