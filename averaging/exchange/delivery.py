"""Means on their way: which of them somebody else has, and what nobody waits for any more.

A reducer reports a mean to the leader when one other member has read it: what a commit names, somebody holds beside its
reducer, whose line may be slow, or gone in the next moment. A mean that reaches nobody before the leader closes the
round leaves its shard void, and the work in it returns to its owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from averaging.exchange.bulk_frames import own_result, post_result
from averaging.fragment.runtime import FragmentRuntime
from averaging.lanes.links import ACKNOWLEDGED_BYTES, Links, Parts
from averaging.rounds.events import SendResult
from averaging.wire import frames
from averaging.wire.messages import Contribution, Plan, Result


class Deliveries:
    """Own means of one peer that nobody else is known to have.

    Args:
        version_of: the version that a fragment's anchor is at here.
        num_kept_versions: for so long the means of past rounds are of use to others.
    """

    def __init__(self, version_of: Callable[[int], int], num_kept_versions: int) -> None:
        self._version_of = version_of
        self._num_kept_versions = num_kept_versions
        self._unread: dict[bytes, dict[bytes, asyncio.Event]] = {}
        """By header and payload: attempts at one round give different means of the same values."""
        self._rounds: dict[bytes, Result] = {}
        self._is_watching = False

    def watch(self, links: Links) -> None:
        """Hear from `links` what others have read, and tell it what they will not need."""
        self._is_watching = True
        links.on_read = lambda _remote, parts: self._note_read(parts)
        links.is_stale = self._is_stale

    async def deliver(self, links: Links, fragment: FragmentRuntime, plan: Plan, shard: int) -> None:
        """Send an own mean; returns when another member has read it, or its round is over."""
        to = tuple(entry.peer_id for entry in plan.roster if entry.peer_id != fragment.machine.me)
        effect = SendResult(plan, shard, to)
        header, payload = own_result(fragment, effect)
        head = frames.encode(header)
        # Nobody says that what is short was read; and it is out at once.
        if not to or not self._is_watching or len(head) + len(payload) <= ACKNOWLEDGED_BYTES:
            return
        self._rounds[head] = header
        read = self._unread.setdefault(head, {})[bytes(payload)] = asyncio.Event()
        post_result(links, fragment, effect)
        await read.wait()

    def post(self, links: Links, fragment: FragmentRuntime, effect: SendResult) -> None:
        """Send an own mean that was not delivered before."""
        header, payload = own_result(fragment, effect)
        if bytes(payload) not in self._unread.get(frames.encode(header), {}):
            post_result(links, fragment, effect)

    def advanced(self, fragment: int, version: int) -> None:
        """The rounds of a fragment before `version` are over."""
        over = [
            head for head, round_ in self._rounds.items() if round_.fragment == fragment and round_.version < version
        ]
        for head in over:
            del self._rounds[head]
            for event in self._unread.pop(head).values():
                event.set()

    def _note_read(self, parts: Parts) -> None:
        means = self._unread.get(bytes(parts[0]))
        event = means.get(b"".join(parts[1:])) if means else None
        if event is not None:
            event.set()

    def _is_stale(self, parts: Parts) -> bool:
        kind, fragment, version = frames.place_of(parts[0])
        now = self._version_of(fragment)
        if kind == Contribution.KIND:
            return version < now
        return kind == Result.KIND and version < now - self._num_kept_versions
