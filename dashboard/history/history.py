"""`History`: a run's past, kept across restarts. It takes observations and checked commits, and provides views.

All displayed data comes from memory, which is updated at once (`Ledger`, `Trend`). One task writes new data into the
file about once a second. If the file cannot be written, the owner gets one warning, the page continues, and a later
start shows the missing time as a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from dashboard.credit.credited_members import CommitCredit, round_facts_of
from dashboard.credit.heaviest_commit_chains import Outcome
from dashboard.credit.work_log import WorkLog, numbers_of
from dashboard.history.database import MEMORY, Database, check_file, damaged, is_locked, sole_writer
from dashboard.history.thinned_curves import thinned
from dashboard.history.trend import MAX_POINTS, Trend
from dashboard.history.writing import (
    Batch,
    Loaded,
    StoredCommit,
    commit_of_row,
    load,
    points_between,
    prepare,
    readable,
    write,
)
from dashboard.history_facts import (
    ChartMark,
    Gap,
    HistoryPoint,
    HistoryView,
    MissingRounds,
    ModelSample,
    RoundFacts,
    TaskScore,
)
from dashboard.observe.dashboard_state import DashboardState
from dashboard.people.teams_and_countries import with_rare_countries_withheld
from dht.ground.errors import LocalFault
from dht.records.profiles import Profile
from peer.view.run_view import NOWHERE, RunView

WRITE_SECONDS: Final = 1.0
"""Interval between two transactions: a kill loses this much, which members are then asked for again."""
MAX_WRITE_SECONDS: Final = 60.0
"""While writing fails, the interval between two tries doubles up to this."""
MAX_MARKS: Final = 300
MAX_ROUNDS: Final = 60
MAX_GAPS: Final = 100
MIN_GAP_SECONDS: Final = 30.0
"""Shorter gaps are not listed."""
MAX_WAITING_COMMITS: Final = 4096
"""Unwritten commits; beyond this no further ones are requested, so none is ever dropped."""
MAX_RECENT: Final = 4 * MAX_ROUNDS
"""Commits whose round the page may show; some do not count."""
PROOF_PAGE: Final = 200
"""Signed commits read at a time while a proof is sent: well below a megabyte for typical swarms."""
RATE_SECONDS: Final = 60.0
"""Traffic is averaged over this time: several rounds."""


Default = TypeVar("Default", float, None)

log = logging.getLogger(__name__)


class History:
    """The history of one run. `open_history` creates it; all methods that are not coroutines return at once."""

    def __init__(
        self, database: Database, loaded: Loaded, path: Path | None, now: float, warn: Callable[[str], None]
    ) -> None:
        self._database = database
        self.ledger = loaded.ledger
        self.trend = Trend()
        self.problem = ""
        self.path = path
        self._warn = warn
        self._next_commit = loaded.next_commit
        self._batch = Batch()
        self._gaps: list[Gap] = loaded.lists["gaps"]
        self._missing: list[MissingRounds] = []
        self.samples: tuple[ModelSample, ...] = tuple(loaded.lists["samples"])
        self._scores: tuple[TaskScore, ...] = ()
        self._started_at = _real(loaded.meta.get("created_at"), now)
        stored = loaded.meta.get("run_record")
        self.stored_run_record: bytes | None = stored if isinstance(stored, bytes) else None
        """The encoded, unchecked record of an earlier session."""
        self.stored_view = _view_of(loaded.meta.get("view"))
        """The run's figures in the last observation of an earlier session."""
        self._marks = deque[ChartMark](loaded.lists["marks"], maxlen=MAX_MARKS)
        self._recent = {commit.num: commit for commit in loaded.commits}
        """The newest commits by number, including those that do not count."""
        self._revision: int | None = None
        self._last_look_at = _real(loaded.meta.get("last_look_at"), None)
        self._state: DashboardState | None = None
        self._view: HistoryView | None = None
        for point in loaded.points:
            self.trend.add_point(point)
        if loaded.skipped:
            tables = ", ".join(f"{count} of {table}" for table, count in sorted(loaded.skipped.items()))
            warn(f"{path}: unreadable rows are skipped ({tables}); the rest of the history is used.")

    # --- input ---

    def look(self, state: DashboardState) -> None:
        """Add an observation."""
        now = state.now
        self._settle()
        if not state.problem:
            if self._last_look_at is not None and now - self._last_look_at > MIN_GAP_SECONDS:
                self._add_gap(
                    Gap(self._last_look_at, now, "this dashboard was not running, or could not observe the run")
                )
            self._last_look_at = now
        for machine in self.ledger.look(state.peers, now):
            if self.ledger.is_withdrawn(machine.peer_id):
                machine.forget_name()
            self._batch.machines[machine.peer_id] = machine
        marks = self.trend.look(state, self.ledger.num_rounds, self._bits_per_second(now), self.ledger.machines)
        if state.run is not None and state.run.revision != self._revision:
            if self._revision is not None:
                marks.append(("revision", ""))
            self._revision = state.run.revision
        if marks:
            self._marks.extend(ChartMark(now, state.view.committed_tokens, kind, peer_id) for kind, peer_id in marks)
            self._batch.keep_list("marks", list(self._marks))
        if not state.problem:
            self._batch.add_point(self.trend.points[-1])
            self._batch.meta["view"] = json.dumps(state.view.to_json())
        if self._last_look_at is not None:
            self._batch.meta["last_look_at"] = self._last_look_at
        self._state, self._view = state, None

    def add_commit(self, raw: bytes, credit: CommitCredit, now: float, *, is_recent: bool = True) -> Outcome:
        """Add a checked commit; `raw` is stored as the proof.

        Args:
            is_recent: False if the round closed at an unknown time, so that it does not count as present traffic.
        """
        num = self._next_commit
        outcome = self.ledger.put(credit, now, num)
        if outcome != "new":
            return outcome
        self._next_commit += 1
        commit = self._recent[num] = StoredCommit(num, now, credit, raw, is_recent)
        self._batch.commits.append(commit)
        while len(self._recent) > MAX_RECENT:
            del self._recent[next(iter(self._recent))]
        self._view = None
        return outcome

    def _settle(self) -> None:
        """Recompute which commits count, once for many commits: an old one affects the whole chain after it."""
        self.ledger.settle()
        self._batch.released.extend(self.ledger.counting.released())

    def _bits_per_second(self, now: float) -> float:
        """Return the transfer rate of the last minute's rounds."""
        moved = (one.credit.payload_bytes for one in self._counted() if one.is_new and one.at > now - RATE_SECONDS)
        return 8 * sum(moved) / RATE_SECONDS

    def _counted(self) -> list[StoredCommit]:
        counting = self.ledger.counting
        return [one for one in self._recent.values() if counting.is_counted(one.credit.digest)]

    def add_profile(self, profile: Profile) -> None:
        """Add a contributor's checked profile."""
        if not self.ledger.add_profile(profile):
            return
        self._batch.profiles[profile.contributor_id] = profile
        for peer_id in profile.machines:
            machine = self.ledger.machines.get(peer_id)
            if machine is not None and self.ledger.is_withdrawn(peer_id):
                machine.forget_name()
                self._batch.machines[peer_id] = machine
        self._view = None

    def keep_run_record(self, record: bytes) -> None:
        """Store the owner's signed manifest, which the page shows after a restart until the manifest is found again."""
        self._batch.meta["run_record"] = record

    def set_missing(self, fragment: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Set the versions (begin, end exclusive) of a fragment whose commits no member has."""
        rows = [MissingRounds(fragment, begin, end - 1) for begin, end in ranges]
        others = [row for row in self._missing if row.fragment != fragment]
        if rows == [row for row in self._missing if row.fragment == fragment]:
            return
        self._missing = sorted([*others, *rows], key=lambda row: (row.fragment, row.first_version))
        self._view = None

    def keep_samples(self, samples: tuple[ModelSample, ...]) -> None:
        """Replace the samples of the model's text, oldest first."""
        self.samples, self._view = samples, None
        self._batch.keep_list("samples", list(samples))

    def show_scores(self, scores: tuple[TaskScore, ...]) -> None:
        """Set the model's scores, which a separate file keeps."""
        self._scores, self._view = scores, None

    def is_member(self, peer_id: str) -> bool:
        """Return whether counted commits list this machine."""
        machine = self.ledger.machines.get(peer_id)
        return machine is not None and machine.rounds > 0

    def is_missing(self, fragment: int, version: int) -> bool:
        """Return whether members were asked for this commit and none had it."""
        return any(
            row.fragment == fragment and row.first_version <= version <= row.last_version for row in self._missing
        )

    @property
    def has_room(self) -> bool:
        """Whether more commits may be requested now."""
        return len(self._batch.commits) < MAX_WAITING_COMMITS

    @property
    def withdrawn(self) -> frozenset[str]:
        """Machines whose name must not be shown."""
        present = set(self.ledger.present) | {m for profile in self.ledger.profiles.values() for m in profile.machines}
        return frozenset(peer_id for peer_id in present if self.ledger.is_withdrawn(peer_id))

    # --- output ---

    @property
    def view(self) -> HistoryView:
        """The past as the page shows it, at the newest observation."""
        if self._view is None:
            self._view = self._make_view()
        return self._view

    def _make_view(self) -> HistoryView:
        self._settle()
        now = self._state.now if self._state is not None else self._started_at
        rows, num_unverified = self.ledger.rows()
        return HistoryView(
            now=now,
            started_at=self._started_at,
            contributors=with_rare_countries_withheld(rows),
            num_unverified=num_unverified + (self._state.num_unlisted if self._state is not None else 0),
            points=thinned(self.trend.points, MAX_POINTS),
            marks=tuple(self._marks),
            rounds=tuple(self._newest_rounds()),
            bandwidth=self.ledger.bandwidth,
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

    def _newest_rounds(self) -> list[RoundFacts]:
        """Return the newest rounds by time. Of rounds received at once, the last of each fragment comes first."""
        rounds: dict[tuple[int, int], RoundFacts] = {}
        heads: dict[int, int] = {}
        for one in self._counted():
            facts = round_facts_of(one.credit, one.at)
            held = rounds.get((facts.fragment, facts.version))
            if held is not None:
                # Another receipt of the same round.
                contributors = tuple(dict.fromkeys((*held.contributors, *facts.contributors)))
                facts = replace(held, contributors=contributors, num_missed=held.num_missed + facts.num_missed)
            rounds[facts.fragment, facts.version] = facts
            heads[facts.fragment] = max(facts.version, heads.get(facts.fragment, 0))
        ordered = sorted(
            rounds.values(), key=lambda row: (-row.seen_at, heads[row.fragment] - row.version, row.fragment)
        )
        return ordered[:MAX_ROUNDS]

    # --- the file ---

    async def rounds(self, limit: int, before: int | None) -> list[tuple[int, RoundFacts]]:
        """Return (number, round) of counted rounds, newest first; `before`: a number from an earlier answer."""
        found: list[tuple[int, RoundFacts]] = []
        counted = self.ledger.counting.rounds
        first = before if before is not None else 1 << 62
        query = "SELECT id, seen_at, credit FROM receipts WHERE id < ? ORDER BY id DESC LIMIT ?"
        while len(found) < limit and (rows := await self._database.do(_rows, query, (first, limit))):
            first = rows[-1][0]
            found += _facts(row for row in rows if row[0] in counted)
        return found[:limit]

    async def rounds_of(self, logs: Sequence[WorkLog], limit: int) -> list[RoundFacts]:
        """Return the newest rounds in these logs, newest first."""
        rows = await self._numbered("id, seen_at, credit", numbers_of(logs)[-limit:])
        return [facts for _, facts in _facts(rows)][::-1]

    async def proof(self, logs: Sequence[WorkLog]) -> AsyncIterator[bytes]:
        """Yield all counted signed commits in these logs, oldest first."""
        numbers = numbers_of(logs)
        for begin in range(0, len(numbers), PROOF_PAGE):
            for (raw,) in await self._numbered("raw", numbers[begin : begin + PROOF_PAGE]):
                yield raw

    async def points(self, begin_at: float, max_points: int) -> list[HistoryPoint]:
        """Return about `max_points` points of the run since `begin_at`, oldest first."""
        return await self._database.do(points_between, begin_at, max_points)

    async def _numbered(self, columns: str, numbers: Sequence[int]) -> list[tuple[Any, ...]]:
        marks = ", ".join("?" * len(numbers))
        query = f"SELECT {columns} FROM receipts WHERE id IN ({marks}) ORDER BY id"
        return await self._database.do(_rows, query, tuple(numbers))

    async def run(self) -> None:
        """Write new data forever. After an error, warn and retry with growing pauses."""
        wait_seconds = WRITE_SECONDS
        while True:
            await asyncio.sleep(wait_seconds)
            await self.flush()
            wait_seconds = min(2 * wait_seconds, MAX_WRITE_SECONDS) if self.problem else WRITE_SECONDS

    async def flush(self) -> None:
        """Write new data once. An error is reported once, and again when it is over."""
        self._settle()
        batch, self._batch = self._batch, Batch()
        try:
            await self._database.do(write, batch)
        except BaseException as error:  # also when cancelled: unwritten data waits for the next try
            batch.absorb(self._batch)
            self._batch = batch
            if not isinstance(error, Exception):
                raise
            self._fail(error)
            return
        if self.problem:
            self.problem, self._view = "", None
            self._warn(f"The history {self.path} can be written again.")

    def _fail(self, error: Exception) -> None:
        if self.problem:
            return
        if isinstance(error, sqlite3.OperationalError):
            room = "Free some space on its disk, or check its folder."
            remedy = "Close the other program that uses it." if is_locked(error) else room
        else:
            remedy = "Please report this, with the log; new data is written once writing works."
            log.error("the history cannot be written", exc_info=error)
        self.problem = f"The history cannot be written at present ({error}); the page continues from memory. {remedy}"
        self._view = None
        self._warn(f"{self.path}: {self.problem}")

    def _add_gap(self, gap: Gap) -> None:
        self._gaps.append(gap)
        self._batch.keep_list("gaps", self._gaps[-MAX_GAPS:])
        self._view = None


@contextlib.asynccontextmanager
async def open_history(
    path: Path | None,
    run_id: str,
    *,
    clock: Callable[[], float],
    warn: Callable[[str], None],
) -> AsyncIterator[History]:
    """Open a run's history on its file (None: in memory only). New data is written on exit.

    Args:
        clock: returns unix seconds.
        warn: called with a sentence when the file becomes unwritable, and when it is writable again.

    Raises:
        UsageFault: the file is not a history, belongs to another run, is in use, or cannot be opened.
        LocalFault: the file is damaged, or newer or earlier software wrote it.
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
            loaded = await database.do(load, MAX_POINTS, MAX_RECENT)
        except sqlite3.Error as error:
            raise LocalFault(
                f"the history {path} cannot be used ({error}); expected a file on a disk with free space; free some "
                "space, or give another file with --db"
            ) from error
        except UnicodeDecodeError as error:
            raise damaged(path or Path(MEMORY), error) from error
        history = History(database, loaded, path, clock(), warn)
        writing = asyncio.create_task(history.run(), name="history")
        try:
            yield history
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await history.flush()


def _real(value: object, otherwise: Default) -> float | Default:
    return float(value) if isinstance(value, int | float) else otherwise


def _view_of(stored: object) -> RunView:
    try:
        return RunView.from_json(json.loads(str(stored)))
    except (ValueError, TypeError, KeyError):
        return NOWHERE


def _rows(database: sqlite3.Connection, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return database.execute(query, values).fetchall()


def _facts(rows: Iterable[tuple[Any, ...]]) -> list[tuple[int, RoundFacts]]:
    return [(one.num, round_facts_of(one.credit, one.at)) for one in readable(rows, commit_of_row)]
