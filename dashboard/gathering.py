"""Fetches signed commits from members, as far back as they remember them, and says which ones nobody has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dashboard.history import History
from dashboard.history_types import CommitCredit
from dashboard.history_writing import CheckCommit
from dashboard.state import DashboardState
from dht.errors import PeerFault
from dht.host import PeerId

MAX_DONORS: Final = 3
"""Asked per fragment, the most reachable and furthest first."""
MAX_PAGES: Final = 64
"""Of one fragment before the next one has its turn."""
AHEAD_VERSIONS: Final = 16
"""Beyond what peers announce: records are some seconds old. Further ones are somebody's invention."""
AGAIN_VERSIONS: Final = 3
"""So many newest versions are asked for once more, since a fork may have put heavier commits in their place."""
MAX_TRIES: Final = 5
"""Looks at which a version is asked for that a record announces and nobody gives: commits travel for some seconds."""
RETRY_SECONDS: Final = 600.0
"""Versions that nobody remembered are asked for again so often: a member that was away may bring them back."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SignedCommits:
    """How to get at the signed commits of a run.

    Attributes:
        fetch: (donor, fragment, from_version) -> raw commits from that version on, or from the oldest that the donor
            remembers, ascending; one page of them. Raises PeerFault.
        check: checks all signatures of a raw commit and says whom it credits. Raises PeerFault.
    """

    fetch: Callable[[PeerId, int, int], Awaitable[Sequence[bytes]]]
    check: CheckCommit


class Gatherer:
    """Fills one history. `clock` gives unix seconds."""

    def __init__(self, history: History, clock: Callable[[], float]) -> None:
        self._history = history
        self._clock = clock
        self._tries: dict[int, tuple[int, int]] = {}
        self._retry_at = 0.0

    async def gather(self, source: SignedCommits, state: DashboardState) -> None:
        """Ask for what is new in `state`, fragment by fragment, and for what is lacking."""
        is_retry = self._clock() >= self._retry_at
        if is_retry:
            self._retry_at = self._clock() + RETRY_SECONDS
        for row in state.fragments:
            asked_head, num_tries = self._tries.get(row.fragment, (0, 0))
            is_new = row.version > asked_head or num_tries < MAX_TRIES
            if self._history.has_room and row.version and (is_retry or is_new):
                await self._gather(source, state, row.fragment, row.version, is_retry=is_retry)

    async def _gather(
        self, source: SignedCommits, state: DashboardState, fragment: int, head: int, *, is_retry: bool
    ) -> None:
        for donor in donors(state, fragment):
            at = self._first_wanted(fragment, head, is_retry=is_retry)
            if at is None:
                break
            try:
                await self._read(source, donor, fragment, at, head)
            except PeerFault as fault:
                log.info("no signed commits of fragment %d: %s", fragment, fault)
        known = self._history.known(fragment)
        # What is older than something known will not come by itself; the newest may only be on their way.
        self._history.set_missing(fragment, list(known.absent(min(head, known.end))))
        asked_head, num_tries = self._tries.get(fragment, (0, 0))
        num_tries = num_tries + 1 if asked_head == head else 1
        self._tries[fragment] = (head, MAX_TRIES if known.end >= head else num_tries)

    def _first_wanted(self, fragment: int, head: int, *, is_retry: bool) -> int | None:
        known = self._history.known(fragment)
        for begin, _ in known.absent(head):
            if is_retry or not self._history.is_missing(fragment, begin):
                return min(begin, max(0, known.end - AGAIN_VERSIONS))
        return None

    async def _read(self, source: SignedCommits, donor: PeerId, fragment: int, at: int, head: int) -> None:
        for _ in range(MAX_PAGES):
            page = await source.fetch(donor, fragment, at)
            if not page:
                return
            # Hundreds of signatures take a while; the page goes on being served meanwhile.
            credits = await asyncio.to_thread(_checked, source.check, page, donor, fragment, head)
            now = self._clock()
            for raw, credit in zip(page, credits, strict=True):
                # The first answer after a start goes back as far as the donor remembers.
                self._history.add_commit(raw, credit, now, is_recent=fragment in self._tries)
            end = max(credit.version for credit in credits) + 1
            if end <= at or end >= head or not self._history.has_room:
                return
            at = end


def donors(state: DashboardState, fragment: int) -> list[PeerId]:
    """Whom to ask, the best first."""
    rows = [row.record for row in state.here if len(row.record.versions) > fragment]
    rows.sort(key=lambda record: (not record.reachable, -record.versions[fragment], record.peer_id))
    return [record.peer_id for record in rows[:MAX_DONORS]]


def _checked(check: CheckCommit, page: Sequence[bytes], donor: PeerId, fragment: int, head: int) -> list[CommitCredit]:
    credits = [check(raw) for raw in page]
    for credit in credits:
        if credit.fragment != fragment or credit.version >= head + AHEAD_VERSIONS:
            raise PeerFault(
                donor,
                f"sent a commit of version {credit.version} of fragment {credit.fragment}; expected fragment "
                f"{fragment} and a version below {head + AHEAD_VERSIONS}; its page is ignored",
            )
    return credits
