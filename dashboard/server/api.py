"""The API's answers as JSON values. `api_schema.py` has their fields.

Every answer says on what its figures rest (`basis`) and when they were seen (`observed_at`, unix seconds).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dashboard.facts import (
    ContributorRow,
    ContributorView,
    CurvePoint,
    HistoryPoint,
    HistoryView,
    MachineRow,
    RoundFacts,
)
from dashboard.history.reading import EventRow
from dashboard.observe.state import DashboardState, PeerRow, RoundRow

SCHEMA: Final = 1
REPORTED: Final = "reported"
"""Peers say so themselves; nobody has checked it."""
WITNESSED: Final = "witnessed"
"""Others in the round signed it."""

_POINT_COLUMNS: Final[dict[str, Callable[[HistoryPoint], float | None]]] = {
    "time": lambda point: point.at,
    "tokens": lambda point: point.tokens,
    "rounds": lambda point: point.rounds,
    "held_out_loss": lambda point: point.held_out_loss,
    "train_loss": lambda point: point.train_loss,
    "num_trainers": lambda point: point.num_trainers,
    "num_peers": lambda point: point.num_peers,
    "tokens_per_second": lambda point: point.tokens_per_second,
    "upload_bits_per_second": lambda point: point.upload_bits_per_second,
    "download_bits_per_second": lambda point: point.download_bits_per_second,
}

_SORT_KEYS: Final[dict[str, Callable[[ContributorRow], Any]]] = {
    "tokens": lambda row: -row.milli_witnessed,
    "reported": lambda row: -row.milli_reported,
    "rounds": lambda row: -row.rounds,
    "first": lambda row: row.first_at,
    "last": lambda row: -row.last_at,
    "streak": lambda row: -row.streak_days,
    "name": lambda row: (not row.name, row.name.casefold()),
}


def run_json(state: DashboardState, history: HistoryView) -> dict[str, Any]:
    """`/api/v1/run`."""
    run = state.run
    bandwidth = history.bandwidth
    return _head(state, REPORTED) | {
        "phase": state.phase,
        "name": run.name if run else None,
        "description": run.description if run else None,
        "revision": run.revision if run else None,
        "manifest_hash": run.manifest_hash.hex() if run else None,
        "watching_since": state.started_at,
        "history_since": history.started_at,
        "num_peers": len(state.here),
        "num_trainers": len(state.trainers),
        "num_rounds": state.num_rounds,
        "num_witnessed_rounds": history.num_rounds,
        "committed_tokens": state.committed_tokens,
        "witnessed_tokens": history.tokens_witnessed,
        "witnessed_milli_tokens": history.milli_witnessed,
        "num_contributors": len(history.contributors),
        "num_unverified": history.num_unverified,
        "tokens_per_second": state.tokens_per_second,
        "held_out_loss": state.held_out_loss,
        "train_loss": state.train_loss,
        "bandwidth": {
            "upload_bytes": bandwidth.upload_bytes,
            "download_bytes": bandwidth.download_bytes,
            "data_parallel_bytes": bandwidth.data_parallel_bytes,
            "times_less": bandwidth.times_less,
        },
        "countries": [{"country": name, "num_contributors": count} for name, count in history.countries],
        "num_country_undeclared": history.num_country_undeclared,
        "gaps": [{"begin_at": gap.begin_at, "end_at": gap.end_at, "reason": gap.reason} for gap in history.gaps],
        "missing_rounds": [
            {"fragment": row.fragment, "first_version": row.first_version, "last_version": row.last_version}
            for row in history.missing
        ],
        "storage": history.storage,
        "storage_problem": history.problem or None,
        "losses": [
            {
                "at": point.at,
                "committed_tokens": point.tokens,
                "held_out_loss": point.held_out_loss,
                "train_loss": point.train_loss,
                "num_trainers": point.num_trainers,
                "tokens_per_second": point.tokens_per_second,
            }
            for point in state.points
        ],
    }


def peers_json(state: DashboardState) -> dict[str, Any]:
    """`/api/v1/peers`: everyone seen since this dashboard began to watch, without addresses."""
    return _head(state, REPORTED) | {
        "num_unlisted": state.num_unlisted,
        "num_invalid_records": state.num_invalid_records,
        "peers": [_peer_json(row) for row in state.peers],
    }


def rounds_json(state: DashboardState, rounds: Sequence[tuple[int, RoundFacts]], limit: int) -> dict[str, Any]:
    """`/api/v1/rounds`: `rounds` are (number, round) of the history, newest first; without any, what records tell."""
    rows = [round_json(facts, number) for number, facts in rounds]
    return _head(state, WITNESSED if rows else REPORTED) | {
        "fragments": [
            {
                "fragment": row.fragment,
                "version": row.version,
                "committed_tokens": row.lineage_tokens,
                "num_peers": row.num_peers,
                "num_current": row.num_current,
                "largest_lag": row.largest_lag,
                "num_forked": row.num_forked,
            }
            for row in state.fragments
        ],
        "rounds": rows,
        "next_before": rounds[-1][0] if len(rounds) == limit else None,
    }


def reported_rounds(state: DashboardState, limit: int) -> list[dict[str, Any]]:
    """Rounds as peer records tell them, for a run whose commits are not known here."""
    return [_reported_round(row) for row in state.rounds[:limit]]


def contributors_json(
    state: DashboardState, history: HistoryView, sort: str, search: str, limit: int, offset: int
) -> dict[str, Any]:
    """`/api/v1/contributors`."""
    rows = [row for row in history.contributors if not search or _matches(row, search.casefold())]
    if sort != "tokens":
        rows.sort(key=_SORT_KEYS[sort])
    shown = rows[offset : offset + limit]
    return _head(state, WITNESSED) | {
        "num_contributors": len(history.contributors),
        "num_found": len(rows),
        "num_unverified": history.num_unverified,
        "witnessed_tokens": history.tokens_witnessed,
        "witnessed_milli_tokens": history.milli_witnessed,
        "contributors": [contributor_json(row) for row in shown],
        "next_offset": offset + limit if offset + limit < len(rows) else None,
    }


def contributor_page_json(state: DashboardState, view: ContributorView) -> dict[str, Any]:
    """`/api/v1/contributors/{id}`."""
    return _head(state, WITNESSED) | {
        "contributor": contributor_json(view.row),
        "curve": [_curve_json(point) for point in view.curve],
        "rounds": [round_json(facts, None) for facts in view.rounds],
    }


def fragments_json(state: DashboardState, history: HistoryView) -> dict[str, Any]:
    """`/api/v1/fragments`."""
    return _head(state, REPORTED) | {
        "fragments": [
            {
                "fragment": row.fragment,
                "behind": [{"peer_id": peer_id, "versions": lag} for peer_id, lag in row.ages],
                "strip": [
                    {
                        "at": age.at,
                        "largest_lag": age.largest_lag,
                        "mean_lag": round(age.mean_lag, 3),
                        "num_peers": age.num_peers,
                    }
                    for age in row.strip
                ],
            }
            for row in history.fragments
        ],
    }


def events_json(state: DashboardState, events: Sequence[EventRow], after: int) -> dict[str, Any]:
    """`/api/v1/events`."""
    return _head(state, REPORTED) | {
        "events": [
            {
                "number": event.event_id,
                "at": event.at,
                "kind": event.kind,
                "peer_id": event.peer_id or None,
                "tokens": event.tokens,
                "fragment": event.detail.get("fragment"),
                "version": event.detail.get("version"),
            }
            for event in events
        ],
        "next_after": events[-1].event_id if events else after,
    }


def points_json(
    state: DashboardState, history: HistoryView, points: Sequence[HistoryPoint], axis: str
) -> dict[str, Any]:
    """`/api/v1/points`: columns for a chart; the first one ascends strictly, the last of equal points stays."""
    names, columns = columns_of(points, axis)
    marks = [
        {"at": mark.at, "committed_tokens": mark.tokens, "kind": mark.kind, "peer_id": mark.peer_id or None}
        for mark in history.marks
    ]
    return _head(state, REPORTED) | {"x": axis, "names": names, "columns": columns, "marks": marks}


def columns_of(points: Sequence[HistoryPoint], axis: str) -> tuple[list[str], list[list[float | None]]]:
    """(names, columns), the axis first."""
    along = _POINT_COLUMNS[axis]
    kept: list[HistoryPoint] = []
    for point in points:
        place = along(point) or 0.0
        if kept and place <= (along(kept[-1]) or 0.0):
            if place == (along(kept[-1]) or 0.0):
                kept[-1] = point
            continue
        kept.append(point)
    names = [axis, *(name for name in _POINT_COLUMNS if name != axis)]
    return names, [[_POINT_COLUMNS[name](point) for point in kept] for name in names]


def contributor_json(row: ContributorRow) -> dict[str, Any]:
    """One contributor, as in every answer and export."""
    return {
        "contributor_id": row.contributor_id,
        "rank": row.rank,
        "name": row.name or None,
        "country": row.country or None,
        "tokens_witnessed": row.tokens_witnessed,
        "tokens_reported": row.tokens_reported,
        "milli_tokens_witnessed": row.milli_witnessed,
        "milli_tokens_reported": row.milli_reported,
        "share": row.share,
        "rounds": row.rounds,
        "rounds_missed": row.rounds_missed,
        "first_at": row.first_at,
        "last_at": row.last_at,
        "is_here": row.is_here,
        "streak_days": row.streak_days,
        "machines": [_machine_json(machine) for machine in row.machines],
    }


def round_json(facts: RoundFacts, number: int | None) -> dict[str, Any]:
    """One round told by its commit; `version` is the one that it reached."""
    return {
        "number": number,
        "fragment": facts.fragment,
        "version": facts.version + 1,
        "seen_at": facts.seen_at,
        "num_rounds": 1,
        "source": "commit record",
        "leader": facts.leader,
        "tokens": facts.tokens,
        "contributors": list(facts.contributors),
        "num_missed": facts.num_missed,
        "num_void_shards": facts.num_void_shards,
        "duration_seconds": facts.duration_seconds,
        "drop_reasons": [{"reason": reason, "count": count} for reason, count in facts.drop_reasons],
        "lanes": [
            {
                "peer_id": lane.peer_id,
                "started_at": lane.started_at,
                "compute_seconds": lane.compute_seconds,
                "send_seconds": lane.send_seconds,
                "receive_seconds": lane.receive_seconds,
                "apply_seconds": lane.apply_seconds,
            }
            for lane in facts.lanes
        ],
    }


def _reported_round(row: RoundRow) -> dict[str, Any]:
    return {
        "number": None,
        "fragment": row.fragment,
        "version": row.version,
        "seen_at": row.seen_at,
        "num_rounds": row.num_rounds,
        "source": "peer records",
        "leader": None,
        "tokens": None,
        "contributors": None,
        "num_missed": None,
        "num_void_shards": None,
        "duration_seconds": None,
        "drop_reasons": [],
        "lanes": [],
    }


def _head(state: DashboardState, basis: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "basis": basis,
        "run_id": state.run_id,
        "observed_at": state.now,
        "heard_at": state.heard_at,
        "problem": state.problem or None,
    }


def _matches(row: ContributorRow, search: str) -> bool:
    texts = [row.name, row.contributor_id, row.country]
    texts += [text for machine in row.machines for text in (machine.peer_id, machine.device)]
    return any(search in text.casefold() for text in texts)


def _curve_json(point: CurvePoint) -> dict[str, Any]:
    return {
        "at": point.at,
        "tokens_witnessed": point.tokens_witnessed,
        "tokens_reported": point.tokens_reported,
        "milli_tokens_witnessed": point.milli_witnessed,
        "milli_tokens_reported": point.milli_reported,
        "rounds": point.rounds,
    }


def _machine_json(machine: MachineRow) -> dict[str, Any]:
    return {
        "peer_id": machine.peer_id,
        "device": machine.device,
        "condition": machine.condition,
        "tokens_witnessed": machine.tokens_witnessed,
        "tokens_reported": machine.tokens_reported,
        "milli_tokens_witnessed": machine.milli_witnessed,
        "milli_tokens_reported": machine.milli_reported,
        "rounds": machine.rounds,
        "rounds_missed": machine.rounds_missed,
        "first_at": machine.first_at,
        "last_at": machine.last_at,
        "uptime_seconds": machine.uptime_seconds,
    }


def _peer_json(row: PeerRow) -> dict[str, Any]:
    record = row.record
    return {
        "peer_id": record.peer_id,
        "name": record.name or None,
        "condition": row.condition,
        "state": record.state,
        "role": record.role,
        "same_manifest": row.same_manifest,
        "device": record.device,
        "software": record.software,
        "reachable": record.reachable,
        "inner_steps": record.inner_steps,
        "tokens": record.tokens,
        "rounds_contributed": record.rounds_contributed,
        "tokens_per_second": record.tokens_per_second,
        "upload_bits_per_second": record.upload_bits_per_second,
        "download_bits_per_second": record.download_bits_per_second,
        "train_loss": record.train_loss,
        "held_out_loss": record.held_out_loss,
        "versions": list(record.versions),
        "started_at": record.started_at,
        "first_heard_at": row.first_heard_at,
        "heard_at": row.heard_at,
    }
