"""Ctrl+C at any line of the hook: what the others did is never taken for work of this peer's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from peer.mailbox.slots import MergeKind
from peer.trainer.devices.at_once import at_once
from peer.trainer.loop.mailbox_link import TrainerLink
from tests.kit.trainer.trainer_link import flat, fragments_joined, link_of, module_of, move, unsent_work

OTHERS = 0.25
"""What the swarm adds to every value."""


def interrupted_at(line: int, run: Callable[[], object]) -> bool:
    """Run, with a `KeyboardInterrupt` at the line of this number of what is run; False: it has fewer lines."""
    left = line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        # Handlers of signals run where Python calls: never between the end of the block in `at_once` and its exit.
        if "/peer/trainer/" not in frame.f_code.co_filename or frame.f_code is at_once.__code__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(measuring)
                raise KeyboardInterrupt
        return trace

    measuring = sys.gettrace()  # that of a coverage run, which would end here
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(measuring)
    return False


def deliver(link: TrainerLink, kind: MergeKind, moved: float) -> None:
    """The swarm has moved both fragments and says so in a message of this kind."""
    for fragment in link.layout.fragments:
        values = np.full(fragment.num_values, moved, np.float32)
        if kind is not MergeKind.ADD:
            live = torch.empty(fragment.num_values)
            link.ranks.gather_live(link.portion, fragment, live)
            values += (live + unsent_work(link, fragment.index)).numpy()
        assert link.mailbox.inbox.try_post(kind, fragment.index, values, version=1)


@pytest.mark.parametrize(
    ("kind", "dtype", "stride"), [(MergeKind.ADD, torch.float32, 1), (MergeKind.REBASE, torch.bfloat16, 3)]
)
def test_an_interrupt_at_any_line_leaves_no_work_that_nobody_did(
    kind: MergeKind, dtype: torch.dtype, stride: int
) -> None:
    module = module_of(dtype)
    link = link_of(module, num_fragments=2, sync_every=1)
    is_interrupted, line, wrong = True, 0, []
    while is_interrupted:
        moved = OTHERS if line % 2 else -OTHERS
        deliver(link, kind, moved)
        start, unsent = flat(module), fragments_joined(link, partial(unsent_work, link))
        move(module, line)
        own = start - flat(module)
        is_interrupted = interrupted_at(line, lambda: link.after_inner_step(10))
        link.poll()  # as `idle` does while the network side leaves
        sent = {message.fragment: torch.from_numpy(message.values) for message in link.mailbox.outbox.take()}
        goes_out = fragments_joined(link, lambda index, sent=sent: sent.get(index, 0) + unsent_work(link, index))
        error = (goes_out - unsent - own).abs().max(), (flat(module) - (start - own + moved)).abs().max()
        if max(error) > (1e-5 if dtype is torch.float32 else 0.05):
            wrong.append((line, *map(float, error)))
        assert link.flush()
        for message in link.mailbox.outbox.take():
            link.mailbox.outbox.release(message.slot)
        line += stride
    assert wrong == [], f"{len(wrong)} of {line} lines"
    assert line > 100


def test_an_interrupt_while_the_anchor_is_measured_gives_the_parameters_back() -> None:
    module = module_of()
    link = link_of(module, num_fragments=2)
    before, is_interrupted, line = flat(module), True, 0
    while is_interrupted:
        is_interrupted = interrupted_at(line, lambda: link.evaluate_on_anchor(lambda: 1.0))
        link.poll()
        assert torch.equal(flat(module), before), line
        line += 1
    assert line > 50
