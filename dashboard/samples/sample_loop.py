"""Samples for as long as the page is up. A failure is a sentence in the log, and tried again later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from dashboard.history_facts import ModelSample
from dashboard.observe.dashboard_state import DashboardState
from dashboard.samples.answer_check import NoAnswer, read_answer
from dashboard.samples.model_process import SampleOrder
from dashboard.samples.sample_schedule import MIN_SECONDS, SamplePlan, kept, next_at

LOOK_SECONDS: Final = 2.0


async def follow_samples(
    plan: SamplePlan,
    order: SampleOrder,
    samples: Callable[[], tuple[ModelSample, ...]],
    keep: Callable[[tuple[ModelSample, ...]], None],
    state: Callable[[], DashboardState],
    ask: Callable[[SampleOrder], Awaitable[bytes]],
    clock: Callable[[], float],
    tell: Callable[[str], None],
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Ask for a sample whenever one is due; never ends.

    Args:
        order: what is asked each time.
        samples: those that there are, oldest first.
        keep: keeps samples in the place of those before.
        ask: as `model_process.ask`.
        clock: unix seconds.
        tell: takes a sentence.
        wait: seconds.
    """
    refused: bytes | None = None
    """The manifest whose model does not write."""
    again_at, patience = 0.0, MIN_SECONDS
    while True:
        await wait(LOOK_SECONDS)
        now, seen = clock(), state()
        if now < max(again_at, next_at(plan, samples())) or not can_be_asked(seen, samples()):
            continue
        assert seen.run is not None
        if seen.run.manifest_hash == refused:
            continue
        try:
            found = read_answer(await ask(order), now, state().view)
        except NoAnswer as error:
            if error.lasts:
                refused = seen.run.manifest_hash
                tell(f"The page shows no samples of the model: {error}")
                continue
            patience = min(2 * patience, max(MIN_SECONDS, plan.every_seconds))
            again_at = clock() + patience
            tell(f"No sample of the model this time, another try in {patience:.0f} s: {error}")
            continue
        # Its anchors are those with most tokens; the page goes by the middle member, of two by the lower one.
        tokens = min(found.committed_tokens, state().view.committed_tokens)
        keep(kept((*samples(), replace(found, committed_tokens=tokens))))
        again_at, patience = clock() + MIN_SECONDS, MIN_SECONDS


def can_be_asked(state: DashboardState, samples: tuple[ModelSample, ...]) -> bool:
    """Whether a model that writes is there, and is another one than at the newest sample."""
    if state.run is None or not state.run.writes or not state.here or not state.view.committed_tokens:
        return False
    return not samples or state.view.num_rounds > samples[-1].version
