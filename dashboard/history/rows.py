"""Values of the history as rows of its tables, and back. Pure.

What is read back may have been written by anything: a value of another shape is a ValueError, and its row is passed
over (`readable`).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from averaging.signing.commit_credit import MAX_SHARE_MILLI, MachineShare
from dashboard.credit.contributor_ledger import MachineTotals
from dashboard.credit.credited_members import CommitCredit
from dashboard.credit.heaviest_commit_chains import Booking
from dashboard.history_facts import (
    ChartMark,
    Gap,
    HistoryPoint,
    MarkKind,
    MissingRounds,
    ModelSample,
    PeopleNews,
    PeopleNewsKind,
    ProfileFacts,
    RoundFacts,
    WrittenText,
)
from dht.ground.host import PeerId

DIGITS = 6
"""Significant ones of a stored rate or loss."""


MAX_STORED: Final = 2**63 - 1
"""SQLite's largest whole number. What is larger is stored as this; figures that are shown are added up from commits."""

Value = TypeVar("Value")


def stored(value: int) -> int:
    """The whole number as SQLite can keep it: it saturates at 64 bits."""
    return max(-MAX_STORED, min(value, MAX_STORED))


def readable(
    rows: Iterable[tuple[Any, ...]], make: Callable[..., Value], table: str = "", skipped: Counter[str] | None = None
) -> Iterator[Value]:
    """`make(*row)` of those rows that can be read; others are counted in `skipped` by their table."""
    for row in rows:
        try:
            value = make(*row)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            if skipped is not None:
                skipped[table] += 1
            continue
        yield value


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """A signed commit on its way into the file; `num` names it there."""

    num: int
    raw: bytes
    credit: CommitCredit
    seen_at: float


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One line of the list of events. `is_kept`: it stays; others go with the looks."""

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
    bookings: list[Booking] = field(default_factory=list)
    """What begins and ends to count, in this order."""
    released: list[int] = field(default_factory=list)
    """Numbers of commits that go, since there are too many heavier ones of their version."""
    machines: dict[str, MachineTotals] = field(default_factory=dict)
    profiles: list[tuple[ProfileFacts, bytes]] = field(default_factory=list)
    events: list[StoredEvent] = field(default_factory=list)
    looks: list[HistoryPoint] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    whole: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    """By table, all its rows: of tables that are written anew when something of them changes."""
    meta: dict[str, float | bytes] = field(default_factory=dict)

    def absorb(self, later: Batch) -> None:
        """Take in what came after this one, which could not be written."""
        for name, held in vars(self).items():
            if isinstance(held, dict):
                held.update(getattr(later, name))
            else:
                held.extend(getattr(later, name))

    def trim(self, max_looks: int, max_events: int) -> HistoryPoint | None:
        """Drop the oldest looks and events beyond the limits; returns the first look that went. Commits stay."""
        dropped = self.looks[0] if len(self.looks) > max_looks else None
        del self.looks[:-max_looks]
        del self.events[:-max_events]
        return dropped


def point_row(point: HistoryPoint) -> tuple[float, str]:
    """Its time, to the millisecond, and the rest as JSON."""
    values = (
        point.tokens,
        point.rounds,
        _short(point.validation_loss),
        _short(point.train_loss),
        point.num_trainers,
        point.num_peers,
        _short(point.tokens_per_second),
        _short(point.upload_bits_per_second),
        _short(point.download_bits_per_second),
    )
    return round(point.at, 3), json.dumps(values, separators=(",", ":"))


def point_of_row(at: float, text: str) -> HistoryPoint:
    """What `point_row` wrote."""
    values = json.loads(text)
    if type(values) is not list or len(values) != 9:
        raise ValueError(f"{text!r:.60}; expected nine values")
    tokens, rounds, validation_loss, train_loss, num_trainers, num_peers, *rates = values
    if not type(tokens) is type(rounds) is type(num_trainers) is type(num_peers) is int:
        raise ValueError(f"{text!r:.60}; expected whole numbers")
    # Of anything but numbers there is no sum.
    if not math.isfinite(sum(rates) + sum(loss for loss in (validation_loss, train_loss) if loss is not None)):
        raise ValueError(f"{text!r:.60}; expected finite numbers")
    return HistoryPoint(_real(at), *values)


def shares_text(credit: CommitCredit, nums: Mapping[str, int]) -> str:
    """Shares as JSON rows of (machine number or PeerId, thousandths witnessed, reported, included)."""
    rows = [
        [nums.get(share.peer_id, share.peer_id), share.milli_witnessed, share.milli_tokens, int(share.milli_tokens > 0)]
        for share in credit.shares
    ]
    return json.dumps(rows, separators=(",", ":"))


def _share(peer_id_of: Callable[[int], str], who: Any, witnessed: Any, reported: Any, included: Any) -> MachineShare:
    if type(witnessed) is not int or type(reported) is not int or witnessed < 0 or reported < 0:
        raise ValueError(f"{witnessed!r:.30} and {reported!r:.30} thousandths; expected whole numbers from 0")
    if type(who) is not int:
        who = _text(who)
    elif who < 0:
        raise ValueError(f"machine number {who}; expected one from 0")
    else:
        who = peer_id_of(who)
    # Others witnessed all of it, or nothing.
    return MachineShare(who, min(reported, MAX_SHARE_MILLI), 0 < reported <= witnessed)


ROUND_COLUMNS = (
    "id, fragment, version, at, seen_at, leader, tokens, num_void, num_shards, duration, reasons, members, is_counted, "
    "payload_bytes, data_parallel_bytes, previous, standing"
)


def round_row(commit: StoredCommit, nums: Mapping[str, int]) -> tuple[Any, ...]:
    """A row of `rounds`, in the order of `ROUND_COLUMNS`; a booking says later that it counts."""
    credit = commit.credit
    return (
        commit.num,
        credit.fragment,
        credit.version,
        credit.counts_at(commit.seen_at),
        commit.seen_at,
        credit.leader,
        stored(credit.tokens),
        credit.num_void_shards,
        credit.num_shards,
        credit.duration_seconds,
        json.dumps(credit.drop_reasons),
        shares_text(credit, nums),
        0,
        stored(credit.payload_bytes),
        stored(credit.data_parallel_bytes),
        credit.previous,
        stored(credit.standing),
    )


@dataclass(frozen=True, slots=True)
class StoredRound:
    """A row of `rounds` as it is read back; `credit.at` is the time that it counts at."""

    num: int
    credit: CommitCredit
    is_counted: int
    """1: the first receipt of a round that counts; 2: a further one; 0: it does not count."""


def round_of_row(row: tuple[Any, ...], digest: bytes, peer_id_of: Callable[[int], str]) -> StoredRound:
    """A row of `rounds`, in the order of `ROUND_COLUMNS`."""
    shares = tuple([_share(peer_id_of, *share) for share in json.loads(row[11])])
    credit = CommitCredit(
        fragment=whole(row[1]),
        version=whole(row[2]),
        leader=PeerId(_text(row[5])),
        tokens=whole(row[6]),
        digest=bytes(digest),
        shares=shares,
        num_void_shards=whole(row[7]),
        num_shards=whole(row[8]),
        at=_real(row[3]),
        duration_seconds=None if row[9] is None else _real(row[9]),
        drop_reasons=tuple((_text(reason), whole(count)) for reason, count in json.loads(row[10])),
        payload_bytes=whole(row[13]),
        data_parallel_bytes=whole(row[14]),
        # Files of before do not say it; `peer dashboard --rebuild` reads it from the signed bytes.
        previous=bytes(row[15] or b""),
        standing=sum([share.milli_witnessed for share in shares]) if row[16] is None else whole(row[16]),
    )
    return StoredRound(whole(row[0]), credit, whole(row[12]))


def round_facts_of(credit: CommitCredit, at: float) -> RoundFacts:
    """The round as page and API show it."""
    return RoundFacts(
        fragment=credit.fragment,
        version=credit.version,
        seen_at=at,
        leader=credit.leader,
        tokens=credit.tokens,
        contributors=tuple(share.peer_id for share in credit.shares if share.milli_tokens),
        num_missed=sum(not share.milli_tokens for share in credit.shares),
        num_void_shards=credit.num_void_shards,
        duration_seconds=credit.duration_seconds,
        drop_reasons=credit.drop_reasons,
    )


NEWS_KINDS: Final[dict[str, PeopleNewsKind]] = {
    "first round": "joined",
    "tokens passed": "passed",
    "overtook": "overtook",
    "country shown": "country",
}
"""Kinds of events that are news of people; others tell of peers."""


def event_of_news(news: PeopleNews) -> StoredEvent:
    """News of people among the events. Overtaking is forgotten with the looks, the rest stays."""
    kind = next(name for name, shown in NEWS_KINDS.items() if shown == news.kind)
    detail = {"other": news.other_id, "country": news.country}
    return StoredEvent(news.at, kind, news.contributor_id, news.tokens, detail, news.kind != "overtook")


def news_of_row(at: Any, kind: Any, contributor_id: Any, tokens: Any, detail: Any) -> PeopleNews:
    """What `event_of_news` became in the file."""
    more = dict(json.loads(detail))
    other_id, country = _text(more["other"]), _text(more["country"])
    return PeopleNews(_real(at), NEWS_KINDS[_text(kind)], _text(contributor_id), other_id, whole(tokens), country)


MARK_KINDS: Final[dict[str, MarkKind]] = {
    "joined": "join",
    "returned": "join",
    "left": "leave",
    "silent": "leave",
    "revised": "revision",
}
"""Kinds of events that are marks beside the curves."""


def mark_of_row(at: Any, tokens: Any, kind: Any, peer_id: Any) -> ChartMark:
    """The mark of an event."""
    return ChartMark(_real(at), whole(tokens), MARK_KINDS[_text(kind)], _text(peer_id))


def profile_text(profile: ProfileFacts) -> str:
    facts = [profile.sequence, profile.issued_at, profile.name, profile.country, profile.is_hidden, profile.machines]
    return json.dumps([*facts, profile.team])


def profile_of_text(contributor_id: str, text: str) -> ProfileFacts:
    """What `profile_text` wrote."""
    sequence, issued_at, name, country, is_hidden, machines, *team = json.loads(text)
    return ProfileFacts(
        _text(contributor_id),
        whole(sequence),
        _real(issued_at),
        _text(name),
        _text(country),
        bool(is_hidden),
        tuple(map(_text, machines)),
        *map(_text, team[:1]),  # rows of before there were teams have none
    )


_MACHINE_FIELDS: Final = (
    *("peer_id", "contributor_key", "device", "name", "first_at", "last_at", "uptime_seconds"),
    *("milli_witnessed", "milli_reported", "rounds", "rounds_missed"),
)
"""Of a machine, in the order of the columns after its number."""


def machine_row(num: int, machine: MachineTotals) -> tuple[Any, ...]:
    """A row of `machines`."""
    facts = [getattr(machine, name) for name in _MACHINE_FIELDS]
    return num, *(stored(value) if isinstance(value, int) else value for value in facts)


def machine_of_row(num: Any, peer_id: Any, *facts: Any) -> tuple[int, MachineTotals]:
    """(number, machine) of a row of `machines`; its totals follow from the rounds. Without number and PeerId there is
    no row; whatever else is unreadable is as if it had never been seen."""
    machine = MachineTotals(_text(peer_id))
    checks = (_text, _text, _text, _real, _real, _real)
    for name, value, check in zip(_MACHINE_FIELDS[1:], facts, checks, strict=False):
        with contextlib.suppress(ValueError):
            setattr(machine, name, check(value))
    return whole(num), machine


def sample_row(sample: ModelSample) -> tuple[float, str]:
    """Its time, and the rest as JSON."""
    texts = [(one.prompt, one.text) for one in sample.texts]
    return sample.at, json.dumps((sample.version, sample.tokens, _short(sample.validation_loss), texts))


def sample_of_row(at: Any, text: Any) -> ModelSample:
    """What `sample_row` wrote."""
    version, tokens, loss, texts = json.loads(_text(text))
    shown = tuple(WrittenText(_text(prompt), _text(said)) for prompt, said in texts)
    return ModelSample(_real(at), whole(version), whole(tokens), None if loss is None else _real(loss), shown)


def gap_of_row(begin_at: Any, end_at: Any, reason: Any) -> Gap:
    return Gap(_real(begin_at), _real(end_at), _text(reason))


def missing_of_row(fragment: Any, first_version: Any, last_version: Any) -> MissingRounds:
    return MissingRounds(whole(fragment), whole(first_version), whole(last_version))


def whole(value: Any) -> int:
    # A column that took a sum beyond 64 bits holds a real.
    if type(value) is not int and not (type(value) is float and value.is_integer()):
        raise ValueError(f"{value!r:.60}; expected a whole number")
    if value < 0:
        raise ValueError(f"{value!r:.60}; expected a whole number from 0")
    return int(value)


def _real(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.60}; expected a number")
    return float(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r:.60}; expected text")
    return value


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
