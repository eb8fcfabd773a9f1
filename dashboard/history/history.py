"""`History`: what happened in a run, kept over restarts. It takes in looks and checked commits and hands out views.

What is shown comes from memory, where everything is folded at once (`Ledger`, `Trend`). One task writes what is new
into the file about once a second. A file that cannot be written costs one warning. The page goes on, and what is
missing in the file is shown as a gap later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Final, TypeVar

from dashboard.credit.contributor_ledger import Presence
from dashboard.credit.credited_members import CommitCredit
from dashboard.credit.heaviest_commit_chains import Booking, Outcome
from dashboard.history.database import MEMORY, Database, check_file, damaged, is_locked, sole_writer
from dashboard.history.reading import HistoryReader
from dashboard.history.rows import (
    MARK_KINDS,
    Batch,
    StoredCommit,
    StoredEvent,
    event_of_news,
    round_facts_of,
    sample_values,
)
from dashboard.history.thinned_curves import thinned
from dashboard.history.trend import MAX_POINTS, Trend
from dashboard.history.writing import Loaded, forget_old, load, prepare, write
from dashboard.history_facts import (
    ChartMark,
    ContributorRow,
    Gap,
    HistoryPoint,
    HistoryView,
    MissingRounds,
    ModelSample,
    ProfileFacts,
    RoundFacts,
    TaskScore,
)
from dashboard.observe.dashboard_state import DashboardState
from dashboard.people.people_news import Feed
from dashboard.people.teams_and_countries import countries, with_rare_countries_withheld
from dht.ground.errors import LocalFault
from dht.records.profiles import contributor_id_of

WRITE_SECONDS: Final = 1.0
"""Between two transactions: what a kill can take along, and what members are asked for again after it."""
MAX_WRITE_SECONDS: Final = 60.0
"""While nothing can be written the time between two tries doubles up to this."""
FORGET_SECONDS: Final = 3600.0
MAX_MARKS: Final = 300
MAX_PEOPLE_NEWS: Final = 30
NEWCOMER_SECONDS: Final = 600.0
"""A machine that was started in this time and is in its first round here has joined."""
MAX_ROUNDS: Final = 60
MAX_GAPS: Final = 100
MIN_GAP_SECONDS: Final = 30.0
"""A shorter restart is no gap worth a line."""
MAX_WAITING_COMMITS: Final = 4096
"""Not yet written; with more of them no further ones are asked for, so none is ever dropped."""
MAX_WAITING_POINTS: Final = 3600
"""Two hours of looks while nothing can be written; older ones are dropped, and shown as a gap."""
MAX_WAITING_EVENTS: Final = 10_000


Default = TypeVar("Default", float, None)

log = logging.getLogger(__name__)


class History:
    """The history of one run. Make it with `open_history`; all methods but `run` and `flush` return at once."""

    def __init__(self, loaded: Loaded, path: Path | None, now: float, warn: Callable[[str], None]) -> None:
        self.ledger = loaded.ledger
        self.trend = Trend()
        self.problem = ""
        self.path = path
        self._warn = warn
        self._next_commit, self._next_event = loaded.next_commit, loaded.next_event
        self._batch = Batch()
        self._gaps = loaded.gaps
        self._missing: list[MissingRounds] = []
        self.samples = tuple(loaded.samples)
        self._scores: tuple[TaskScore, ...] = ()
        self._started_at = _real(loaded.meta.get("created_at"), now)
        stored = loaded.meta.get("run_record")
        self.stored_run_record: bytes | None = stored if isinstance(stored, bytes) else None
        """The encoded record that an earlier session kept; not checked."""
        self._marks = deque(loaded.marks, maxlen=MAX_MARKS)
        self._feed = Feed()
        self._people_news = deque(loaded.people_news, maxlen=MAX_PEOPLE_NEWS)
        self._rounds: dict[tuple[int, int], RoundFacts] = {}
        self._facts: dict[int, RoundFacts] = {}
        """By number: of the newest commits, whether they count or not."""
        for num, credit in loaded.rounds:
            self._facts[num] = round_facts_of(credit, credit.at or 0.0)
            if self.ledger.counting.is_counted(credit.digest):
                self._show(self._facts[num])
        self._news: dict[int, int] = {}
        """By number, of commits that have come since `_settle`: bytes of this minute's traffic."""
        self._revision: int | None = None
        self._last_look_at = _real(loaded.meta.get("last_look_at"), None)
        self._dropped_from: float | None = None
        self._state: DashboardState | None = None
        self._view: HistoryView | None = None
        self.trend.start_from(loaded.points, loaded.conditions)
        loss = _real(loaded.meta.get("first_validation_loss"), None)
        tokens = _real(loaded.meta.get("first_validation_tokens"), 0.0)
        self._first_validation = None if loss is None or tokens is None else (loss, int(tokens))
        for point in loaded.points:
            self._note_first_validation(point)
        if loaded.skipped:
            tables = ", ".join(f"{count} of {table}" for table, count in sorted(loaded.skipped.items()))
            warn(f"{path}: rows that cannot be read are passed over ({tables}); the rest of the history is used.")

    # --- what comes in ---

    def look(self, state: DashboardState, contributor_keys: dict[str, str] | None = None) -> None:
        """Take in a look. `contributor_keys`: per PeerId its contributor, in place of the one its record names."""
        now = state.now
        self._settle()
        if not state.problem:
            if self._last_look_at is not None and now - self._last_look_at > MIN_GAP_SECONDS:
                self._add_gap(Gap(self._last_look_at, now, "this dashboard was not running, or could not look"))
            self._last_look_at = now
        keys = contributor_keys or {}
        present = [
            Presence(
                peer_id=row.record.peer_id,
                contributor_key=keys.get(row.record.peer_id) or contributor_id_of(row.record),
                device=row.record.device,
                name=row.record.name,
                condition=row.condition,
                first_heard_at=row.first_heard_at,
                heard_at=row.heard_at,
            )
            for row in state.peers
        ]
        for machine in self.ledger.look(present, now):
            if self.ledger.is_withdrawn(machine.peer_id):
                machine.forget_name()
            self._batch.machines[machine.peer_id] = machine
        for kind, peer_id in self.trend.look(state, self.ledger.num_rounds, self.ledger.machines):
            self._event(kind, peer_id, now, state.view.committed_tokens, peer_id in self.ledger.machines)
        if state.run is not None and state.run.revision != self._revision:
            if self._revision is not None:
                self._event("revised", "", now, state.view.committed_tokens, is_kept=True)
            self._revision = state.run.revision
        if not state.problem:
            self._batch.points.append(self.trend.points[-1])
            self._note_first_validation(self.trend.points[-1])
        if self._last_look_at is not None:
            self._batch.meta["last_look_at"] = self._last_look_at
        self._state, self._view = state, None

    def _note_first_validation(self, point: HistoryPoint) -> None:
        if self._first_validation is None and point.validation_loss is not None:
            self._first_validation = point.validation_loss, point.tokens
            self._batch.meta["first_validation_loss"] = point.validation_loss
            self._batch.meta["first_validation_tokens"] = float(point.tokens)

    def add_commit(self, raw: bytes, credit: CommitCredit, now: float, *, is_recent: bool = True) -> Outcome:
        """Count a checked commit; `raw` is kept as the proof.

        Args:
            is_recent: False for one that closed nobody knows when; it does not count as traffic of this minute.
        """
        num = self._next_commit
        outcome = self.ledger.put(credit, now, num)
        if outcome != "new":
            return outcome
        self._next_commit += 1
        self._batch.commits.append(StoredCommit(num, raw, credit, now))
        self._facts[num] = round_facts_of(credit, credit.counts_at(now))
        self._news[num] = credit.payload_bytes if is_recent or credit.at is not None else 0
        self._view = None
        return outcome

    def _settle(self) -> None:
        """Find out what counts now. Once for many commits: one of long ago makes the whole chain after it be followed
        again."""
        bookings = self.ledger.settle()
        self._batch.released.extend(self.ledger.counting.released())
        for booking in bookings:
            self._take(booking)
        self._news.clear()
        while len(self._facts) > 4 * MAX_ROUNDS:
            del self._facts[next(iter(self._facts))]
        if len(self._rounds) > 2 * MAX_ROUNDS:
            self._rounds = {(facts.fragment, facts.version): facts for facts in self._newest_rounds()}

    def _take(self, booking: Booking) -> None:
        receipt = booking.receipt
        if booking.sign < 0:
            self._rounds.pop((receipt.fragment, receipt.version), None)
            return
        facts = self._facts.get(receipt.num)
        if facts is None:
            return
        self._show(facts)
        if (num_bytes := self._news.pop(receipt.num, None)) is not None:
            detail = {"fragment": facts.fragment, "version": facts.version}
            self._batch.events.append(
                StoredEvent(
                    self._event_number(), facts.seen_at, "committed", facts.leader, facts.tokens, detail, is_kept=True
                )
            )
            self.trend.note_traffic(facts.seen_at, num_bytes)

    def _show(self, facts: RoundFacts) -> None:
        """Among the newest rounds; with what other receipts of the same round tell."""
        key = facts.fragment, facts.version
        held = self._rounds.get(key)
        if held is not None:
            contributors = tuple(dict.fromkeys((*held.contributors, *facts.contributors)))
            facts = replace(held, contributors=contributors, num_missed=held.num_missed + facts.num_missed)
        self._rounds[key] = facts

    def add_profile(self, profile: ProfileFacts, now: float) -> None:
        """Take in a contributor's checked profile."""
        if not self.ledger.add_profile(profile):
            return
        self._batch.profiles.append(profile)
        for peer_id in profile.machines:
            machine = self.ledger.machines.get(peer_id)
            if machine is not None and self.ledger.is_withdrawn(peer_id):
                machine.forget_name()
                self._batch.machines[peer_id] = machine
        self._event("profile changed", profile.contributor_id, now, 0, is_kept=False)
        self._view = None

    def keep_run_record(self, record: bytes) -> None:
        """The owner's signed manifest: what the page says of the run until it is found again."""
        self._batch.meta["run_record"] = record

    def set_missing(self, fragment: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Versions (begin, end exclusive) of a fragment whose commits no member remembers."""
        rows = [MissingRounds(fragment, begin, end - 1) for begin, end in ranges]
        others = [row for row in self._missing if row.fragment != fragment]
        if rows == [row for row in self._missing if row.fragment == fragment]:
            return
        self._missing = sorted([*others, *rows], key=lambda row: (row.fragment, row.first_version))
        self._view = None

    def keep_samples(self, samples: tuple[ModelSample, ...]) -> None:
        """Replace the samples of the model's text, oldest first."""
        self.samples, self._view = samples, None
        self._batch.meta["samples"] = json.dumps([sample_values(sample) for sample in samples])

    def show_scores(self, scores: tuple[TaskScore, ...]) -> None:
        """Scores of the model; they are kept in a file of their own, not here."""
        self._scores, self._view = scores, None

    def is_member(self, peer_id: str) -> bool:
        """Whether commits that count list this machine."""
        machine = self.ledger.machines.get(peer_id)
        return machine is not None and machine.rounds > 0

    def is_missing(self, fragment: int, version: int) -> bool:
        """Whether members were asked for this commit and none remembered it."""
        return any(
            row.fragment == fragment and row.first_version <= version <= row.last_version for row in self._missing
        )

    @property
    def has_room(self) -> bool:
        """Whether more commits may be asked for now."""
        return len(self._batch.commits) < MAX_WAITING_COMMITS

    @property
    def withdrawn(self) -> frozenset[str]:
        """Machines whose name must not be shown."""
        present = set(self.ledger.present) | {m for profile in self.ledger.profiles.values() for m in profile.machines}
        return frozenset(peer_id for peer_id in present if self.ledger.is_withdrawn(peer_id))

    # --- what comes out ---

    @property
    def view(self) -> HistoryView:
        """Everything about the past that the page shows, as of the newest look."""
        if self._view is None:
            self._view = self._make_view()
        return self._view

    def _make_view(self) -> HistoryView:
        self._settle()
        now = self._state.now if self._state is not None else self._started_at
        rows, num_unverified = self.ledger.rows(now)
        shown, num_undeclared = countries(rows)
        self._hear_of_people(rows, shown, now)
        return HistoryView(
            now=now,
            started_at=self._started_at,
            contributors=with_rare_countries_withheld(rows),
            num_unverified=num_unverified + (self._state.num_unlisted if self._state is not None else 0),
            points=thinned(self.trend.points, MAX_POINTS),
            first_validation=self._first_validation,
            marks=tuple(self._marks),
            rounds=tuple(self._newest_rounds()),
            fragments=self.trend.fragments,
            bandwidth=self.ledger.bandwidth,
            countries=shown,
            num_country_undeclared=num_undeclared,
            news=tuple(reversed(self._people_news)),
            gaps=tuple(self._gaps[-MAX_GAPS:]),
            missing=tuple(self._missing[-MAX_GAPS:]),
            num_rounds=self.ledger.num_rounds,
            milli_tokens_witnessed=self.ledger.milli_tokens_witnessed,
            samples=self.samples,
            scores=self._scores,
            storage=(
                "It keeps its history in memory, so the history ends with this process."
                if self.path is None
                else "It keeps its history in a file, so the history survives restarts."
            ),
            problem=self.problem,
        )

    def _hear_of_people(self, rows: Sequence[ContributorRow], shown: Sequence[tuple[str, int]], now: float) -> None:
        if self._state is None:
            return
        peers = self._state.peers
        newcomers = {row.record.peer_id for row in peers if now - row.record.started_at < NEWCOMER_SECONDS}
        for news in self._feed.look(rows, [name for name, _ in shown], newcomers, self.ledger.num_rounds, now):
            self._people_news.append(news)
            self._batch.events.append(event_of_news(self._event_number(), news))

    def _newest_rounds(self) -> list[RoundFacts]:
        """By time. Of those that were seen at once, the last of each fragment comes first."""
        heads: dict[int, int] = {}
        for fragment, version in self._rounds:
            heads[fragment] = max(version, heads.get(fragment, version))
        ordered = sorted(
            self._rounds.values(), key=lambda row: (-row.seen_at, heads[row.fragment] - row.version, row.fragment)
        )
        return ordered[:MAX_ROUNDS]

    # --- the file ---

    async def run(self, database: Database, clock: Callable[[], float]) -> None:
        """Write what is new; never ends. A failure is told, and writing is tried again after a growing time."""
        forget_at = clock()
        wait_seconds = WRITE_SECONDS
        while True:
            await asyncio.sleep(wait_seconds)
            await self.flush(database)
            wait_seconds = min(2 * wait_seconds, MAX_WRITE_SECONDS) if self.problem else WRITE_SECONDS
            if clock() >= forget_at and not self.problem:
                forget_at = clock() + FORGET_SECONDS
                try:
                    await database.do(forget_old, clock())
                except Exception as error:  # noqa: BLE001 (whatever it is, the next try is in an hour)
                    log.warning("what is older than the history keeps was not let go: %s", error)

    async def flush(self, database: Database) -> None:
        """Write what is new, once. Trouble, whatever it is, is told once, and again when it is over."""
        self._settle()
        batch, self._batch = self._batch, Batch()
        try:
            await database.do(write, batch)
        except BaseException as error:  # cancelled, too: what may not be written yet waits for the next try
            batch.absorb(self._batch)
            self._batch = batch
            dropped = batch.trim(MAX_WAITING_POINTS, MAX_WAITING_EVENTS)
            if dropped is not None and self._dropped_from is None:
                self._dropped_from = dropped.at
            if not isinstance(error, Exception):
                raise
            self._fail(error)
            return
        if self.problem:
            self.problem, self._view = "", None
            self._warn(f"The history {self.path} is written again.")
            if self._dropped_from is not None:
                end_at = batch.points[0].at if batch.points else self._dropped_from
                self._add_gap(Gap(self._dropped_from, end_at, "the history could not be written"))
                self._dropped_from = None

    def _fail(self, error: Exception) -> None:
        if self.problem:
            return
        if isinstance(error, sqlite3.OperationalError):
            room = "Free some space on its disk, or check its folder."
            remedy = "Close the other program that uses it." if is_locked(error) else room
        else:
            remedy = "Please report this, with the log; what came since is written when it can be."
            log.error("the history cannot be written", exc_info=error)
        self.problem = f"The history cannot be written at present ({error}); the page goes on from memory. {remedy}"
        self._view = None
        self._warn(f"{self.path}: {self.problem}")

    def _event(self, kind: str, peer_id: str, at: float, tokens: int, is_kept: bool) -> None:
        self._batch.events.append(StoredEvent(self._event_number(), at, kind, peer_id, tokens, {}, is_kept))
        if kind in MARK_KINDS:
            self._marks.append(ChartMark(at, tokens, MARK_KINDS[kind], peer_id))

    def _event_number(self) -> int:
        self._next_event += 1
        return self._next_event - 1

    def _add_gap(self, gap: Gap) -> None:
        self._gaps.append(gap)
        self._batch.meta["gaps"] = json.dumps([astuple(gap) for gap in self._gaps[-MAX_GAPS:]])
        self._view = None


@contextlib.asynccontextmanager
async def open_history(
    path: Path | None,
    run_id: str,
    *,
    clock: Callable[[], float],
    warn: Callable[[str], None],
) -> AsyncIterator[tuple[History, HistoryReader]]:
    """A run's history over its file (None: in memory only); what is new is written when it is left.

    Args:
        clock: unix seconds.
        warn: told one sentence when the file cannot be written any more, and one when it can again.

    Raises:
        UsageFault: the file is something else, of another run, in use, or cannot be opened.
        LocalFault: it is damaged, or newer or earlier software wrote it.
    """
    async with contextlib.AsyncExitStack() as stack:
        is_new = True
        if path is not None:
            is_new = not await asyncio.to_thread(check_file, path, run_id)
            stack.enter_context(sole_writer(path))
        try:
            database = Database(path)
            stack.push_async_callback(database.close)
            await database.do(prepare, is_new, run_id, clock())
            loaded = await database.do(load, MAX_POINTS, MAX_ROUNDS, MAX_MARKS, MAX_PEOPLE_NEWS)
        except sqlite3.Error as error:
            raise LocalFault(
                f"the history {path} cannot be used ({error}); expected a file on a disk with room; free some space, "
                "or give another file with --db"
            ) from error
        except UnicodeDecodeError as error:
            raise damaged(path or Path(MEMORY), error) from error
        history = History(loaded, path, clock(), warn)
        writing = asyncio.create_task(history.run(database, clock), name="history")
        try:
            yield history, HistoryReader(database, history.ledger)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await history.flush(database)


def _real(value: object, otherwise: Default) -> float | Default:
    return float(value) if isinstance(value, int | float) else otherwise
