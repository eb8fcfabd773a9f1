"""Values of the history as rows of its tables, and back. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dashboard.history_types import (
    CommitCredit,
    Gap,
    HistoryPoint,
    MemberCredit,
    MissingRounds,
    ProfileFacts,
    RoundFacts,
)
from dashboard.ledger import Entry, Machine, milli
from dashboard.trend import mean_point

DIGITS = 6
"""Significant ones of a stored rate or loss."""


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """A counted commit on its way into the file. `num` names it there; `replaced` is the lighter one it replaces."""

    num: int
    raw: bytes
    entry: Entry
    seen_at: float
    replaced: Entry | None


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One line of the list of events. `is_kept`: for ever; others go with the looks."""

    at: float
    kind: str
    peer_id: str
    tokens: int
    detail: Mapping[str, Any]
    is_kept: bool


@dataclass
class Batch:
    """What is to be written in one transaction."""

    commits: list[StoredCommit] = field(default_factory=list)
    machines: dict[str, Machine] = field(default_factory=dict)
    profiles: list[tuple[ProfileFacts, bytes]] = field(default_factory=list)
    events: list[StoredEvent] = field(default_factory=list)
    looks: list[HistoryPoint] = field(default_factory=list)
    minutes: dict[float, HistoryPoint] = field(default_factory=dict)
    hours: dict[float, HistoryPoint] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    missing: list[MissingRounds] | None = None
    """All of them, when they changed."""
    meta: dict[str, float | bytes] = field(default_factory=dict)

    def absorb(self, later: Batch) -> None:
        """Take in what came after this one, which could not be written."""
        self.commits += later.commits
        self.machines |= later.machines
        self.profiles += later.profiles
        self.events += later.events
        self.looks += later.looks
        self.minutes |= later.minutes
        self.hours |= later.hours
        self.gaps += later.gaps
        self.missing = self.missing if later.missing is None else later.missing
        self.meta |= later.meta

    def trim(self, max_looks: int, max_events: int) -> HistoryPoint | None:
        """Drop the oldest looks and events beyond the limits; returns the first look that went. Commits stay."""
        dropped = self.looks[0] if len(self.looks) > max_looks else None
        del self.looks[:-max_looks]
        del self.events[:-max_events]
        return dropped


@dataclass
class Rollup:
    """The points of the present minute and hour, so that their rows say what the stored ones add up to."""

    looks: list[HistoryPoint] = field(default_factory=list)
    minutes: dict[float, HistoryPoint] = field(default_factory=dict)

    def add(self, look: HistoryPoint, batch: Batch) -> None:
        """Put a look, and the minute and hour that it changes, into `batch`."""
        minute, hour = look.at // 60 * 60, look.at // 3600 * 3600
        if self.looks and self.looks[-1].at // 60 * 60 != minute:
            self.looks.clear()
        if self.minutes and next(iter(self.minutes)) // 3600 * 3600 != hour:
            self.minutes.clear()
        self.looks.append(look)
        self.minutes[minute] = batch.minutes[minute] = rolled_up(self.looks, minute)
        batch.hours[hour] = rolled_up(list(self.minutes.values()), hour)
        batch.looks.append(look)


def rolled_up(points: list[HistoryPoint], at: float) -> HistoryPoint:
    """The stored mean of stored points, at the beginning of its minute or hour."""
    return stored_point(replace(mean_point(points), at=at))


def point_text(point: HistoryPoint) -> str:
    """A point without its time, as JSON."""
    values = (
        point.tokens,
        point.rounds,
        _short(point.held_out_loss),
        _short(point.train_loss),
        point.num_trainers,
        point.num_peers,
        _short(point.tokens_per_second),
        _short(point.upload_bits_per_second),
        _short(point.download_bits_per_second),
    )
    return json.dumps(values, separators=(",", ":"))


def point_of_text(at: float, text: str) -> HistoryPoint:
    """What `point_text` wrote."""
    return HistoryPoint(at, *json.loads(text))


def stored_point(point: HistoryPoint) -> HistoryPoint:
    """The point as it will be read again."""
    return point_of_text(round(point.at, 3), point_text(point))


def members_text(credit: CommitCredit, nums: Mapping[str, int]) -> str:
    """Members as JSON rows of (machine number or PeerId, thousandths witnessed, reported, included)."""
    rows = [
        [
            nums.get(member.peer_id, member.peer_id),
            milli(member.tokens_witnessed),
            milli(member.tokens_reported),
            int(member.is_included),
        ]
        for member in credit.members
    ]
    return json.dumps(rows, separators=(",", ":"))


def members_of_text(text: str, peer_id_of: Callable[[int], str]) -> tuple[MemberCredit, ...]:
    """What `members_text` wrote."""
    return tuple(
        MemberCredit(
            peer_id_of(who) if isinstance(who, int) else who, witnessed / 1000, reported / 1000, bool(included)
        )
        for who, witnessed, reported, included in json.loads(text)
    )


ROUND_COLUMNS = (
    "id, fragment, version, at, seen_at, leader, tokens, num_void, num_shards, duration, reasons, members, is_counted, "
    "payload_bytes, data_parallel_bytes"
)


def round_row(num: int, entry: Entry, seen_at: float, nums: Mapping[str, int]) -> tuple[Any, ...]:
    """A row of `rounds`, in the order of `ROUND_COLUMNS`."""
    credit = entry.credit
    return (
        num,
        credit.fragment,
        credit.version,
        entry.at,
        seen_at,
        credit.leader,
        credit.tokens,
        credit.num_void_shards,
        credit.num_shards,
        credit.duration_seconds,
        json.dumps(credit.drop_reasons),
        members_text(credit, nums),
        1,
        credit.payload_bytes,
        credit.data_parallel_bytes,
    )


def entry_of_row(row: tuple[Any, ...], digest: bytes, peer_id_of: Callable[[int], str]) -> Entry:
    """The counted commit behind a row of `rounds`."""
    credit = CommitCredit(
        fragment=row[1],
        version=row[2],
        leader=row[5],
        tokens=row[6],
        digest=digest,
        members=members_of_text(row[11], peer_id_of),
        num_void_shards=row[7],
        num_shards=row[8],
        at=row[3],
        duration_seconds=row[9],
        drop_reasons=reasons_of(row[10]),
        payload_bytes=row[13],
        data_parallel_bytes=row[14],
    )
    return Entry(credit, row[3])


def round_facts_of_row(row: tuple[Any, ...], peer_id_of: Callable[[int], str]) -> RoundFacts:
    """The round as page and API show it."""
    members = members_of_text(row[11], peer_id_of)
    return RoundFacts(
        fragment=row[1],
        version=row[2],
        seen_at=row[3],
        leader=row[5],
        tokens=row[6],
        contributors=tuple(member.peer_id for member in members if member.is_included),
        num_missed=sum(not member.is_included for member in members),
        num_void_shards=row[7],
        duration_seconds=row[9],
        drop_reasons=reasons_of(row[10]),
    )


def round_facts_of(entry: Entry) -> RoundFacts:
    """The same of a commit that has just come."""
    credit = entry.credit
    return RoundFacts(
        fragment=credit.fragment,
        version=credit.version,
        seen_at=entry.at,
        leader=credit.leader,
        tokens=credit.tokens,
        contributors=tuple(member.peer_id for member in credit.members if member.is_included),
        num_missed=sum(not member.is_included for member in credit.members),
        num_void_shards=credit.num_void_shards,
        duration_seconds=credit.duration_seconds,
        drop_reasons=credit.drop_reasons,
    )


def profile_text(profile: ProfileFacts) -> str:
    return json.dumps(
        [profile.sequence, profile.issued_at, profile.name, profile.country, profile.is_hidden, profile.machines]
    )


def profile_of_text(contributor_id: str, text: str) -> ProfileFacts:
    """What `profile_text` wrote."""
    sequence, issued_at, name, country, is_hidden, machines = json.loads(text)
    return ProfileFacts(contributor_id, sequence, issued_at, name, country, is_hidden, tuple(machines))


def reasons_of(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((reason, count) for reason, count in json.loads(text))


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
