"""Leaves in order: the last work reaches a round, members get the anchors, a goodbye is sent, a checkpoint is saved."""

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
"""Pause between two checks whether the last round has ended."""
SETTLE_SECONDS = 5.0
"""Longest wait of a leaving peer for the round with its last work."""
HAND_OVER_SECONDS = 15.0
"""Longest wait then until a staying member has this peer's anchors: a fragment of a small model at low bandwidth."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 2.0
"""Pause between two checks whether a member has the anchors; each pause is 1.5 times the previous one."""
MOST_ASKED = 8
"""Number of members told each time which anchors they lack. One is enough; if all of a large swarm leave, as when
the last token is trained, each would otherwise tell each."""
FAREWELL_SECONDS = 3.0
"""Time to notify other members. For a member that is not reached, the record expires."""
KEEP_SECONDS = 30.0
"""Time limit for the checkpoint of a refused peer, whose trainer writes its part after its inner step."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GracefulLeave:
    """The last actions of a node; `keeper` is None if no checkpoints are kept."""

    exchange: Exchange
    membership: Membership
    desk: TrainerDesk
    keeper: CheckpointKeeper | None
    clock: Callable[[], float]

    async def finish_rounds(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Wait until rounds with this peer's work have finished, while `is_wanted` returns true."""
        end = self.clock() + SETTLE_SECONDS
        while is_wanted() and self.clock() < end:
            await self.desk.take_work()
            has_work = any(f.state.pending is not None or f.state.unsent_tokens for f in self.exchange.fragments)
            if not has_work and not self.desk.has_posted_work:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def say_goodbye(self) -> None:
        """Announce the goodbye to other members, within a time limit because some may be gone already."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self.membership.introduce()
                await self.membership.announce()

    async def keep_work(self) -> None:
        """Save the last checkpoint; no work is sent afterwards."""
        self.exchange.sending.take_part(False)
        if self.keeper is not None:
            await self.keeper.save(is_last=True)

    async def keep_work_in_time(self) -> None:
        """Call `keep_work` for a refused peer within a time limit, after ending a trainer that may wait for a round."""
        self.desk.mailbox.network.stop = 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEP_SECONDS):
                await self.keep_work()

    async def hand_over(self) -> None:
        """Wait until a staying member has this peer's anchors, so that the last trainer's commits survive in the seeds.

        Members that announce their leave do not count. This peer's record already announces its own leave; otherwise
        two members leaving at the same time would rely on each other.
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
            # Their answers contain their versions, or that they are leaving too.
            await self.membership.introduce(asked)
