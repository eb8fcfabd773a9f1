"""Local work on its way from the device into the outbox: one draft per free slot, posted once it has arrived."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from averaging.finite_values import all_finite
from averaging.outer.fragment_layout import Fragment
from dht.ground.errors import LocalFault
from peer.mailbox.slots import Draft, Outbox, WorkKind
from peer.trainer.devices.at_once import Change, at_once
from peer.trainer.devices.side_stream import Arrival, SideStream


class WorkSender:
    """The trainer's end of the outbox for work.

    Args:
        side: copies next to the computing; None: `gather` has copied everything when it returns.
    """

    def __init__(self, outbox: Outbox, side: SideStream | None) -> None:
        self._outbox = outbox
        self.side = side
        self._under_way: deque[tuple[Fragment, Draft, dict[str, int], Arrival]] = deque()

    def try_send(
        self,
        fragment: Fragment,
        gather: Callable[[Tensor], None],
        facts: dict[str, int],
        then: Callable[[], list[Change]],
    ) -> bool:
        """Let `gather` begin to write a fragment's work into a free slot; False at once when there is none.

        Afterwards the parameters may change: what was measured is on its way.

        Args:
            facts: what `Outbox.post` takes with it.
            then: what changes at the moment in which the work is this peer's no longer.

        Raises:
            LocalFault: the work is not finite; it was not sent. With `side`, `settle` says so.
        """
        # Of a send that an exception ended, the slot is still taken.
        self._outbox.drop_all_but([waiting[1] for waiting in self._under_way])
        draft = self._outbox.draft(fragment.index)
        if draft is None:
            return False
        gather(torch.from_numpy(draft.values))
        if self.side is None:
            self._check(fragment, draft, facts, is_finite=all_finite(draft.values))
            at_once([*then(), *self._outbox.posting(draft, WorkKind.WORK, **facts)])
        else:
            waiting = (fragment, draft, facts, self.side.mark())
            at_once([*then(), partial(self._under_way.append, waiting)])
        return True

    def settle(self, *, wait: bool = False) -> None:
        """Post what has arrived, in order; with `wait`, all of it.

        Raises:
            LocalFault: it is not finite; it was not sent.
        """
        while self._under_way:
            fragment, draft, facts, mark = self._under_way[0]
            if wait:
                mark.synchronize()
            elif not mark.query():
                return
            is_finite = math.isfinite(mark.total) or all_finite(draft.values)
            if not is_finite:
                self._under_way.popleft()
            self._check(fragment, draft, facts, is_finite=is_finite)
            at_once([self._under_way.popleft, *self._outbox.posting(draft, WorkKind.WORK, **facts)])

    def _check(self, fragment: Fragment, draft: Draft, facts: dict[str, int], *, is_finite: bool) -> None:
        if not is_finite:
            self._outbox.drop(draft)
            names = ", ".join(piece.name for piece in fragment.pieces[:3])
            raise LocalFault(
                f"the live parameters of fragment {fragment.index} ({names}) are NaN or infinite after inner "
                f"step {facts['inner_step']}; expected finite numbers; nothing of it was sent; lower the learning "
                "rate and join again, to go on from what other members or this peer's newest checkpoint have"
            )
