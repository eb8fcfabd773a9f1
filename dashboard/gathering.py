"""Fetches signed commits from members, as far back as they remember them, and says which ones nobody has."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dashboard.history import History
from dashboard.history_types import CommitCredit
from dashboard.history_writing import CheckCommit
from dashboard.state import DashboardState
from dht.errors import PeerFault
from dht.host import PeerId

MAX_DONORS: Final = 3
"""Asked per fragment and turn."""
MAX_PAGES: Final = 64
"""Of one fragment before the next one has its turn."""
DONOR_SECONDS: Final = 60.0
"""For all pages of one donor in one turn: 64 of them take 20 s over a slow line, and others wait."""
AHEAD_VERSIONS: Final = 16
"""Taken beyond the head: records are some seconds old. Later ones wait until most members have come there."""
INVENTED_VERSIONS: Final = 1024
"""So far beyond the head a commit is somebody's invention, and with it the page that it came in."""
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
        self._disappointments: Counter[PeerId] = Counter()
        """Turns in which a donor brought nothing of what its record announces; those with fewer are asked first."""

    async def gather(self, source: SignedCommits, state: DashboardState) -> None:
        """Ask for what is new in `state`, fragment by fragment, and for what is lacking."""
        is_retry = self._clock() >= self._retry_at
        if is_retry:
            self._retry_at = self._clock() + RETRY_SECONDS
        here = {row.record.peer_id for row in state.here}
        self._disappointments = Counter({one: count for one, count in self._disappointments.items() if one in here})
        for row in state.fragments:
            asked_head, num_tries = self._tries.get(row.fragment, (0, 0))
            is_new = row.version != asked_head or num_tries < MAX_TRIES
            if self._history.has_room and row.version and (is_retry or is_new):
                await self._gather(source, state, row.fragment, row.version, is_retry=is_retry)

    async def _gather(
        self, source: SignedCommits, state: DashboardState, fragment: int, head: int, *, is_retry: bool
    ) -> None:
        for donor in donors(state, fragment, head, self._disappointments):
            at = self._first_wanted(fragment, head, is_retry=is_retry)
            if at is None:
                break
            num_known = len(self._history.known(fragment))
            try:
                async with asyncio.timeout(DONOR_SECONDS):
                    await self._read(source, donor, fragment, at, head)
            except PeerFault as fault:
                log.info("no signed commits of fragment %d: %s", fragment, fault)
            except TimeoutError:
                log.info("%s took longer than %.0f s for commits; others are asked", donor, DONOR_SECONDS)
            if len(self._history.known(fragment)) == num_known:
                self._disappointments[donor] += 1
            else:
                del self._disappointments[donor]
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
            expected = range(at, head + AHEAD_VERSIONS)
            credits = await asyncio.to_thread(_checked, source.check, page, donor, fragment, expected)
            now = self._clock()
            for raw, credit in zip(page, credits, strict=False):
                # The first answer after a start goes back as far as the donor remembers.
                self._history.add_commit(raw, credit, now, is_recent=fragment in self._tries)
            end = credits[-1].version + 1 if credits else head
            if end >= head or not self._history.has_room:
                return
            at = end


def donors(
    state: DashboardState, fragment: int, head: int, disappointments: Mapping[PeerId, int] | None = None
) -> list[PeerId]:
    """Whom to ask, the best first: who disappointed least, peers that signed commits list, those at `head` or beyond
    (how far beyond makes no difference), reachable ones, and those that have been here longest."""
    rows = [row for row in state.here if len(row.record.versions) > fragment]
    counts = disappointments or {}
    rows.sort(
        key=lambda row: (
            counts.get(row.record.peer_id, 0),
            not row.is_vouched,
            -min(row.record.versions[fragment], head),
            not row.record.reachable,
            row.first_heard_at,
            row.record.peer_id,
        )
    )
    return [row.record.peer_id for row in rows[:MAX_DONORS]]


def _checked(
    check: CheckCommit, page: Sequence[bytes], donor: PeerId, fragment: int, expected: range
) -> list[CommitCredit]:
    """The credits of a page, up to the first that is beyond `expected`."""
    credits = [check(raw) for raw in page]
    at, end = expected.start, expected.stop - AHEAD_VERSIONS + INVENTED_VERSIONS
    for credit in credits:
        # One of each version, in order: a flood of forks for a version that nobody asked for costs its sender a turn.
        if credit.fragment != fragment or not at <= credit.version < end:
            raise PeerFault(
                donor,
                f"sent a commit of version {credit.version} of fragment {credit.fragment}; expected fragment "
                f"{fragment} and versions from {at} to {end - 1}, one of each; its page is ignored",
            )
        at = credit.version + 1
    return [credit for credit in credits if credit.version in expected]
