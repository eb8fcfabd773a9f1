"""Exports: everything the page shows, as a table or as lines, and nothing that somebody withdrew."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

from dashboard.facts import ContributorRow, HistoryView
from dashboard.history.reading import HistoryReader
from dashboard.observe.state import DashboardState
from dashboard.server.api import contributor_json, round_json, run_json

ROUNDS_PAGE: Final = 500

COLUMNS: Final = (
    *("rank", "contributor_id", "name", "country", "tokens_witnessed", "tokens_reported", "share", "rounds"),
    *("rounds_missed", "first_at", "last_at", "is_here", "streak_days", "num_machines"),
    *("milli_tokens_witnessed", "milli_tokens_reported"),
)


def contributors_csv(rows: Sequence[ContributorRow]) -> str:
    """One line per contributor, `COLUMNS` first."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = contributor_json(row) | {"num_machines": len(row.machines)}
        writer.writerow([_cell(values[name]) for name in COLUMNS])
    return file.getvalue()


async def export_lines(
    state: DashboardState, history: HistoryView, reader: HistoryReader | None
) -> AsyncIterator[bytes]:
    """Lines of JSON with a field ``kind``: the run, each contributor, each round (newest first); many at a time."""
    run = run_json(state, history)
    yield _lines([{"kind": "run"} | run])
    yield _lines({"kind": "contributor"} | contributor_json(row) for row in history.contributors)
    before: int | None = None
    while reader is not None and (rounds := await reader.rounds(ROUNDS_PAGE, before)):
        yield _lines({"kind": "round"} | round_json(facts, number) for number, facts in rounds)
        before = rounds[-1][0]


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    # A spreadsheet would take such a name for a formula.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _lines(objects: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(value, separators=(",", ":")) + "\n" for value in objects).encode()
