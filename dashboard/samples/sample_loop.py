"""Take samples while the page is up. A failure is reported in a sentence and retried later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from dashboard.history_facts import ModelSample
from dashboard.observe.dashboard_state import DashboardState
from dashboard.samples.answer_check import NoAnswer, read_answer
from dashboard.samples.sample_schedule import MIN_SECONDS, SamplePlan, kept, next_at

LOOK_SECONDS: Final = 2.0


async def follow_samples(
    plan: SamplePlan,
    samples: Callable[[], tuple[ModelSample, ...]],
    keep: Callable[[tuple[ModelSample, ...]], None],
    state: Callable[[], DashboardState],
    ask: Callable[[], Awaitable[bytes]],
    clock: Callable[[], float],
    tell: Callable[[str], None],
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Request a sample whenever one is due, forever.

    Args:
        samples: returns the existing samples, oldest first.
        keep: replaces the stored samples.
        ask: requests the texts, like `model_process.ask`.
        clock: returns unix seconds.
        tell: called with a sentence.
        wait: waits for a number of seconds.
    """
    refused: bytes | None = None
    """Hash of the manifest whose model does not write."""
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
            found = read_answer(await ask(), now, state().view)
        except NoAnswer as error:
            if error.lasts:
                refused = seen.run.manifest_hash
                tell(f"The page shows no samples of the model: {error}")
                continue
            patience = min(2 * patience, max(MIN_SECONDS, plan.every_seconds))
            again_at = clock() + patience
            tell(f"No sample of the model this time; next attempt in {patience:.0f} s: {error}")
            continue
        # The sample uses the anchors with the most tokens; the page shows the median member's, or the lower of two.
        tokens = min(found.committed_tokens, state().view.committed_tokens)
        keep(kept((*samples(), replace(found, committed_tokens=tokens))))
        again_at, patience = clock() + MIN_SECONDS, MIN_SECONDS


def can_be_asked(state: DashboardState, samples: tuple[ModelSample, ...]) -> bool:
    """Return whether a model that writes texts is available and has changed since the newest sample."""
    if state.run is None or not state.run.writes or not state.here or not state.view.committed_tokens:
        return False
    return not samples or state.view.num_rounds > samples[-1].version
