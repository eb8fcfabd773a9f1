"""Fetch signed commits from members, as far back as they have them, and record those that no member has."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from averaging.signing.receipt_file import line_of, open_receipt
from dashboard.credit.credited_members import CommitCredit, checker_of
from dashboard.history.history import History
from dashboard.observe.dashboard_state import DashboardState
from dht.ground.errors import PeerFault
from dht.ground.host import Host, PeerId
from dht.identity.keys import verify
from dht.observer.network import ObserverEntry
from dht.records.signed_manifest import RunRecord

MAX_DONORS: Final = 3
"""Members asked for each fragment and turn."""
MAX_PAGES: Final = 64
"""Pages of one fragment before the next fragment has its turn."""
DONOR_SECONDS: Final = 60.0
"""Time for all pages of one donor in one turn: 64 of them take 20 s over a slow line, and other donors wait."""
AHEAD_VERSIONS: Final = 16
"""Versions accepted beyond the head, because records are some seconds old. Later ones wait until most members have
reached them."""
INVENTED_VERSIONS: Final = 1024
"""A commit this far beyond the head is invented, and its whole page is refused."""
AGAIN_VERSIONS: Final = 3
"""This many of the newest versions are requested again, since heavier commits of a fork may have replaced them."""
NUM_WITNESSES: Final = 2
"""Members that must send the same commit before it is accepted; fewer are enough if all available members were
asked."""
MAX_HELD: Final = 4096
"""Commits of one turn that wait for confirmation by a second member."""
FIRST_BEHIND: Final = 16
MAX_BEHIND: Final = 512
"""Number of earlier versions to request, doubling up to the limit, if the newest commits follow an unknown one. The
members then changed to another side of a fork. Members remember no more than the limit.
"""
MAX_TRIES: Final = 5
"""Attempts to get a version that a record announces but no member sends: commits travel for some seconds."""
RETRY_SECONDS: Final = 600.0
"""Interval between requests for versions that no member had: an absent member may bring them back."""

CheckCommit = Callable[[bytes], CommitCredit]
"""Checks all signatures of a signed commit and returns its credit; raises `PeerFault`."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SignedCommits:
    """Access to the signed commits of a run.

    Attributes:
        fetch: (donor, fragment, from_version) -> one page of raw commits, ascending, from that version on or from the
            oldest that the donor has. Raises PeerFault.
        check: checks all signatures of a raw commit and returns its credit. Raises PeerFault.
    """

    fetch: Callable[[PeerId, int, int], Awaitable[Sequence[bytes]]]
    check: CheckCommit


def commits_from(host: Host, record: RunRecord, entry: ObserverEntry | None = None) -> SignedCommits:
    """Return the access to a run's commits. Loading numpy and the kernels takes seconds: call this in a thread.

    Args:
        entry: credentials for a private run.

    Raises:
        Incompatible: the manifest does not fit this software.
    """
    from peer.observe.observer import codec_bytes, open_log, run_frame

    return SignedCommits(open_log(host, record, entry), checker_of(run_frame(record), verify, codec_bytes(record)))


def proof_line(run_id: str, receipt: bytes) -> str:
    """Return a stored signed commit as a line of the file that `peer receipts verify` reads."""
    run, frame = open_receipt(run_id, receipt)
    return line_of(frame, run)


class Gatherer:
    """Fills one history. `clock` returns unix seconds."""

    def __init__(self, history: History, clock: Callable[[], float]) -> None:
        self._history = history
        self._clock = clock
        self._tries: dict[int, tuple[int, int]] = {}
        self._retry_at = 0.0
        self._behind: dict[int, int] = {}
        """For each fragment whose newest commits follow an unknown one: how far back the next turn asks."""
        self._disappointments: Counter[PeerId] = Counter()
        """Turns in which a donor sent none of the commits that its record announces; donors with fewer are asked
        first."""

    async def gather(self, source: SignedCommits, state: DashboardState) -> None:
        """Request new and missing commits according to `state`, for each fragment."""
        # One time for all fragments, so that none seems newer because it was requested last.
        seen_at = self._clock()
        is_retry = seen_at >= self._retry_at
        if is_retry:
            self._retry_at = seen_at + RETRY_SECONDS
        here = {row.record.peer_id for row in state.here}
        self._disappointments = Counter({one: count for one, count in self._disappointments.items() if one in here})
        for row in state.fragments:
            asked_head, num_tries = self._tries.get(row.fragment, (0, 0))
            is_new = row.version != asked_head or num_tries < MAX_TRIES
            if self._history.has_room and row.version and (is_retry or is_new):
                await self._gather(_Turn(source, row.fragment, row.version, seen_at, is_retry), state)

    async def _gather(self, turn: _Turn, state: DashboardState) -> None:
        fragment, head = turn.fragment, turn.head
        for donor in donors(state, fragment, head, self._disappointments):
            at = self._first_wanted(turn)
            if at is None:
                break
            is_useful = False
            try:
                async with asyncio.timeout(DONOR_SECONDS):
                    async for raw, credit in self._read(turn, donor, at):
                        is_useful |= self._take(turn, donor, raw, credit)
            except PeerFault as fault:
                log.info("no signed commits of fragment %d: %s", fragment, fault)
                is_useful = False
            except TimeoutError:
                log.info("%s took longer than %.0f s for commits; others are asked", donor, DONOR_SECONDS)
                # Even if it sent something: a slow donor would delay all commits, turn after turn.
                is_useful = False
            if is_useful:
                del self._disappointments[donor]
            else:
                self._disappointments[donor] += 1
        self._decide(turn)
        is_searching = self._look_behind(turn)
        num_versions = self._history.ledger.num_versions(fragment)
        # Versions before a known one will not arrive by themselves; the newest may still be on their way.
        self._history.set_missing(fragment, self._history.ledger.absent(fragment, min(head, num_versions)))
        asked_head, num_tries = self._tries.get(fragment, (0, 0))
        num_tries = num_tries + 1 if asked_head == head else 1
        if is_searching:
            num_tries = 0
        elif num_versions >= head:
            num_tries = MAX_TRIES
        self._tries[fragment] = (head, num_tries)

    def _first_wanted(self, turn: _Turn) -> int | None:
        """Return the lowest version that is missing, or whose commit needs confirmation by a second member."""
        num_versions = self._history.ledger.num_versions(turn.fragment)
        wanted = [version for version, digest in turn.held if len(turn.givers[version, digest]) < NUM_WITNESSES]
        for begin, end in self._history.ledger.absent(turn.fragment, turn.head):
            if turn.is_retry or not self._history.is_missing(turn.fragment, begin):
                absent = next((version for version in range(begin, end) if version not in turn.versions), None)
                if absent is not None:
                    wanted.append(min(absent, max(0, num_versions - AGAIN_VERSIONS)))
                    break
        num_behind = self._behind.get(turn.fragment, 0)
        if num_behind and not turn.givers:
            wanted.append(max(0, num_versions - AGAIN_VERSIONS - num_behind))
        return min(wanted, default=None)

    def _look_behind(self, turn: _Turn) -> bool:
        """Return whether the next turn must request older versions: the lowest new commit follows an unknown one."""
        taken = [credit for _, credit in turn.held.values() if self._history.ledger.counting.is_known(credit.digest)]
        lowest = min(taken, key=lambda credit: credit.version, default=None)
        num_behind = self._behind.pop(turn.fragment, 0)
        # No member has commits beyond the limit; the known ones count as far as they reach.
        if lowest is None or num_behind >= MAX_BEHIND or not self._history.ledger.counting.is_elsewhere(lowest):
            return False
        self._behind[turn.fragment] = max(FIRST_BEHIND, 2 * num_behind)
        return True

    async def _read(self, turn: _Turn, donor: PeerId, at: int) -> AsyncIterator[tuple[bytes, CommitCredit]]:
        for _ in range(MAX_PAGES):
            page = await turn.source.fetch(donor, turn.fragment, at)
            if not page:
                return
            # Checking hundreds of signatures takes time; the page is served meanwhile.
            credits = await asyncio.to_thread(turn.checked, page, donor, at)
            for raw, credit in zip(page, credits, strict=False):
                yield raw, credit
            at = credits[-1].version + 1 if credits else turn.head
            if at >= turn.head or not self._has_room(turn):
                return

    def _take(self, turn: _Turn, donor: PeerId, raw: bytes, credit: CommitCredit) -> bool:
        """Record a commit. Return whether it is useful: new, or a further member's confirmation of a new one."""
        key = credit.version, credit.digest
        turn.givers.setdefault(key, set()).add(donor)
        turn.versions.add(credit.version)
        if self._history.ledger.counting.is_known(credit.digest):
            return False
        turn.held.setdefault(key, (raw, credit))
        return True

    def _decide(self, turn: _Turn) -> None:
        """Accept for each version the commit that most members sent. With equal numbers, a known commit is preferred,
        then one signed by a leader in counted rounds, then the one that claims less.
        """
        best: dict[int, tuple[tuple[int, bool, bool, int, bytes], tuple[int, bytes]]] = {}
        for key, givers in turn.givers.items():
            version, digest = key
            if version >= turn.head and len(givers) < NUM_WITNESSES:
                # Most members have not reached it, so none can contradict; a second member will soon have it.
                continue
            held = turn.held.get(key)
            is_member, claim = False, 0
            if held is not None:
                is_member, claim = self._history.is_member(held[1].leader), held[1].milli_witnessed
            rank = len(givers), held is None, is_member, -claim, digest
            best[version] = max(best.get(version, (rank, key)), (rank, key))
        for _, (_, key) in sorted(best.items()):
            if key in turn.held:
                # The first answer after a start reaches as far back as the donor remembers.
                self._history.add_commit(*turn.held[key], turn.seen_at, is_recent=turn.fragment in self._tries)

    def _has_room(self, turn: _Turn) -> bool:
        return self._history.has_room and len(turn.held) < MAX_HELD


@dataclass
class _Turn:
    """Commits of one fragment that members sent in one turn.

    A commit from one member is not accepted while others can be asked: two keys can sign any number of tokens for each
    other, and the heaviest chain counts.
    """

    source: SignedCommits
    fragment: int
    head: int
    seen_at: float
    """Unix seconds, the same for all commits of the turn."""
    is_retry: bool
    """Whether this turn again requests commits that no member had."""
    givers: dict[tuple[int, bytes], set[PeerId]] = field(default_factory=dict)
    """Members that sent each commit, by version and digest."""
    held: dict[tuple[int, bytes], tuple[bytes, CommitCredit]] = field(default_factory=dict)
    """New commits, in the form in which the first member sent each."""
    versions: set[int] = field(default_factory=set)
    """Versions of all commits sent."""
    _checked: dict[bytes, CommitCredit] = field(default_factory=dict)

    def checked(self, page: Sequence[bytes], donor: PeerId, begin: int) -> list[CommitCredit]:
        """Return the credits of a page, up to the first one too far beyond the head.

        Raises:
            PeerFault: a commit is invalid, or was not requested.
        """
        for raw in page:
            if raw not in self._checked:
                self._checked[raw] = self.source.check(raw)
        credits = [self._checked[raw] for raw in page]
        at, end = begin, self.head + INVENTED_VERSIONS
        for credit in credits:
            # One commit for each version, in order: a flood of unrequested forks costs its sender a turn.
            if credit.fragment != self.fragment or not at <= credit.version < end:
                raise PeerFault(
                    donor,
                    f"sent a commit of version {credit.version} of fragment {credit.fragment}; expected fragment "
                    f"{self.fragment} and versions from {at} to {end - 1}, one of each; its page is ignored",
                )
            at = credit.version + 1
        return [credit for credit in credits if credit.version < self.head + AHEAD_VERSIONS]


def donors(
    state: DashboardState, fragment: int, head: int, disappointments: Mapping[PeerId, int] | None = None
) -> list[PeerId]:
    """Return the peers to ask, best first: those with the fewest disappointments, then those that signed commits list,
    those at `head` or beyond (any distance), reachable ones, and those that have been here longest.
    """
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
