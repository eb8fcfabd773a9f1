"""Local work on its way from the device into the outbox: one draft per free slot, posted once it has arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from averaging.arrays import all_finite
from dht.errors import LocalFault
from peer.mailbox.slots import Draft, Outbox, WorkKind
from peer.trainer.devices.side_stream import SideStream, StreamEvent


@dataclass(frozen=True, slots=True)
class WorkFacts:
    """What goes with a fragment's work: inner steps and tokens in it, and the version it began from.

    Attributes:
        inner_step: after which it was measured.
        names: of parameters in the fragment, for a sentence.
    """

    fragment: int
    num_steps: int
    num_tokens: int
    base_version: int
    inner_step: int
    names: str


class WorkSender:
    """The trainer's end of the outbox for work.

    Args:
        side: copies next to the computing; None: `gather` has copied everything when it returns.
    """

    def __init__(self, outbox: Outbox, side: SideStream | None) -> None:
        self._outbox = outbox
        self.side = side
        self._under_way: deque[tuple[WorkFacts, Draft, StreamEvent]] = deque()

    def try_send(self, facts: WorkFacts, gather: Callable[[Tensor], None]) -> bool:
        """Let `gather` begin to write a fragment's work into a free slot; False at once when there is none.

        Afterwards the parameters may change: what was measured is on its way.

        Raises:
            LocalFault: the work is not finite; it was not sent. With `side`, `settle` says so.
        """
        draft = self._outbox.draft(facts.fragment)
        if draft is None:
            return False
        try:
            gather(torch.from_numpy(draft.values))
        except BaseException:
            self._outbox.drop(draft)
            raise
        if self.side is None:
            self._post(facts, draft)
        else:
            self._under_way.append((facts, draft, self.side.mark()))
        return True

    def settle(self, *, wait: bool = False) -> None:
        """Post what has arrived, in order; with `wait`, all of it.

        Raises:
            LocalFault: it is not finite; it was not sent.
        """
        while self._under_way:
            facts, draft, mark = self._under_way[0]
            if wait:
                mark.synchronize()
            elif not mark.query():
                return
            self._under_way.popleft()
            self._post(facts, draft)

    def _post(self, facts: WorkFacts, draft: Draft) -> None:
        if not all_finite(draft.values):
            self._outbox.drop(draft)
            raise LocalFault(
                f"the live parameters of fragment {facts.fragment} ({facts.names}) are NaN or infinite after inner "
                f"step {facts.inner_step}; expected finite numbers; nothing of it was sent: lower the learning rate "
                "and join again, the swarm's state is intact"
            )
        self._outbox.post(
            draft,
            WorkKind.WORK,
            num_steps=facts.num_steps,
            num_tokens=facts.num_tokens,
            base_version=facts.base_version,
            inner_step=facts.inner_step,
        )
