"""Leaves in order: last work reaches a round, others get the anchors, a goodbye is sent, a checkpoint is saved."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from averaging.exchange.exchange import Exchange
from peer.network.membership.membership import Membership
from peer.network.node.anchor_repairs import holds
from peer.network.node.checkpoint_keeper import CheckpointKeeper
from peer.network.node.trainer_desk import TrainerDesk

POLL_SECONDS = 0.02
"""Pause between two looks whether the last round has ended."""
SETTLE_SECONDS = 5.0
"""A leaving peer waits this long at most for the round that carries its last work."""
HAND_OVER_SECONDS = 15.0
"""And then this long until a member that stays has what it has: a fragment of a small model over a slow line."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 2.0
"""Pause between two looks whether a member has the anchors; each pause is half as long again as the last."""
MOST_ASKED = 8
"""Members who are told each time what they lack. One is enough; where all of a large swarm leave at once, as when
the last token is trained, each would otherwise tell each."""
FAREWELL_SECONDS = 3.0
"""To tell the others. A member that is not reached learns it when the record expires."""
KEEP_SECONDS = 30.0
"""Time limit for the checkpoint of a refused peer; its trainer writes its part after its inner step."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GracefulLeave:
    """The last things a node does; `keeper` is None where nothing is kept."""

    exchange: Exchange
    membership: Membership
    desk: TrainerDesk
    keeper: CheckpointKeeper | None
    clock: Callable[[], float]

    async def finish_rounds(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Let rounds that carry own work finish, as long as that is wanted."""
        end = self.clock() + SETTLE_SECONDS
        while is_wanted() and self.clock() < end:
            await self.desk.take_work()
            if not any(f.state.pending is not None or f.state.unsent_tokens for f in self.exchange.fragments):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def say_goodbye(self) -> None:
        """Tell the others, whose records say so from now on; members that are gone by now are waited for in vain."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self.membership.introduce()
                await self.membership.announce()

    async def keep_work(self) -> None:
        """The last checkpoint: nothing is sent any more."""
        self.exchange.sending.take_part(False)
        if self.keeper is not None:
            await self.keeper.save(is_last=True)

    async def keep_work_in_time(self) -> None:
        """Do the same for a refused peer: its trainer ends, even if it waits for a round in vain."""
        self.desk.mailbox.network.stop = 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEP_SECONDS):
                await self.keep_work()

    async def hand_over(self) -> None:
        """Leave nobody with less than this peer has: the last trainer's commits live on in the seeds.

        Members that say that they are leaving do not count. This peer's record says so already: of two that leave at
        the same moment each would otherwise rely on the other.
        """
        end = self.clock() + HAND_OVER_SECONDS
        goals = [fragment.state.lineage_tokens for fragment in self.exchange.fragments]
        pause_seconds, is_told = FIRST_PAUSE_SECONDS, False
        await self.membership.introduce()
        while True:
            staying = [record for record in self.membership.members() if record.state != "leaving"]
            behind = [index for index, goal in enumerate(goals) if not any(holds(r, index, goal) for r in staying)]
            if not staying or not behind:
                return
            if self.clock() >= end:
                log.warning(
                    "leaving although no other member has the newest fragments %s yet; this peer's checkpoint has them",
                    behind,
                )
                return
            if not is_told:
                is_told = True
                log.info("waiting until another member has this peer's newest fragments %s", behind)
            asked = self.membership.some_of(staying, MOST_ASKED)
            for record in asked:
                for index in behind:
                    self.exchange.applying.say_version(self.exchange.fragments[index], record.peer_id)
            await asyncio.sleep(min(pause_seconds, end - self.clock()))
            pause_seconds = min(1.5 * pause_seconds, LONGEST_PAUSE_SECONDS)
            # They say how far they are, or that they are leaving too.
            await self.membership.introduce(asked)
