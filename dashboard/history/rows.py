"""Values of the history as rows of its tables, and back. Pure.

What is read back may have been written by anything: a value of another shape is a ValueError, and its row is passed
over (`readable`).
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from averaging.signing.commit_credit import MAX_SHARE_MILLI, MachineShare
from dashboard.credit.contributor_ledger import MachineTotals
from dashboard.credit.credited_members import CommitCredit
from dashboard.history_facts import (
    ChartMark,
    Gap,
    HistoryPoint,
    MarkKind,
    ModelSample,
    PeopleNews,
    PeopleNewsKind,
    ProfileFacts,
    RoundFacts,
    WrittenText,
)
from dht.ground.host import PeerId

POINT_SECONDS: Final = 10
"""The file has one point of the curves for each of these: a megabyte a day."""
DIGITS = 6
"""Significant ones of a stored rate or loss."""


Value = TypeVar("Value")


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
    """One line of the list of events. `is_kept`: it stays; others go after two days."""

    number: int
    at: float
    kind: str
    peer_id: str
    tokens: int
    detail: Mapping[str, Any]
    is_kept: bool


@dataclass
class Batch:
    """Rows to write in one transaction."""

    commits: list[StoredCommit] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    """Numbers of commits that go, since there are too many heavier ones of their version."""
    machines: dict[str, MachineTotals] = field(default_factory=dict)
    profiles: list[ProfileFacts] = field(default_factory=list)
    events: list[StoredEvent] = field(default_factory=list)
    points: list[HistoryPoint] = field(default_factory=list)
    meta: dict[str, float | bytes | str] = field(default_factory=dict)

    def absorb(self, later: Batch) -> None:
        """Take in what came after this one, which could not be written."""
        for name, held in vars(self).items():
            if isinstance(held, dict):
                held.update(getattr(later, name))
            else:
                held.extend(getattr(later, name))

    def trim(self, max_points: int, max_events: int) -> HistoryPoint | None:
        """Drops the oldest points and events beyond the limits; returns the first point that went. Commits stay."""
        dropped = self.points[0] if len(self.points) > max_points else None
        del self.points[:-max_points]
        del self.events[:-max_events]
        return dropped


def point_row(point: HistoryPoint) -> tuple[int, str]:
    """Returns its place among the stored points, and the point as JSON; a later one of the same place replaces it."""
    values = (
        round(point.at, 3),
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
    return int(point.at // POINT_SECONDS), json.dumps(values, separators=(",", ":"))


def point_of_text(text: str) -> HistoryPoint:
    """Read back the row of `point_row`."""
    values = json.loads(text)
    if type(values) is not list or len(values) != 10:
        raise ValueError(f"{text!r:.60}; expected ten values")
    at, tokens, rounds, validation_loss, train_loss, num_trainers, num_peers, *rates = values
    if not type(tokens) is type(rounds) is type(num_trainers) is type(num_peers) is int:
        raise ValueError(f"{text!r:.60}; expected whole numbers")
    # Of anything but numbers there is no sum.
    if not math.isfinite(sum(rates) + sum(loss for loss in (validation_loss, train_loss) if loss is not None)):
        raise ValueError(f"{text!r:.60}; expected finite numbers")
    return HistoryPoint(_real(at), *values[1:])


def credit_text(credit: CommitCredit, seen_at: float) -> str:
    """Whom a signed commit credits, as JSON."""
    values = (
        credit.fragment,
        credit.version,
        credit.digest.hex(),
        credit.previous.hex(),
        credit.leader,
        credit.tokens,
        [[share.peer_id, share.milli_tokens, int(share.is_witnessed)] for share in credit.shares],
        credit.standing,
        credit.num_void_shards,
        credit.num_shards,
        credit.counts_at(seen_at),
        credit.duration_seconds,
        credit.drop_reasons,
        credit.payload_bytes,
        credit.data_parallel_bytes,
    )
    return json.dumps(values, separators=(",", ":"))


def credit_of_row(num: Any, text: Any) -> tuple[int, CommitCredit]:
    """Returns the number of a receipt and what `credit_text` wrote; `credit.at` is the time that it counts at."""
    (fragment, version, digest, previous, leader, tokens, shares, standing, *more) = json.loads(text)
    num_void_shards, num_shards, at, duration_seconds, reasons, payload_bytes, data_parallel_bytes = more
    return whole(num), CommitCredit(
        fragment=whole(fragment),
        version=whole(version),
        digest=bytes.fromhex(digest),
        previous=bytes.fromhex(previous),
        leader=PeerId(sys.intern(_text(leader))),
        tokens=whole(tokens),
        shares=tuple([_share(*share) for share in shares]),
        standing=whole(standing),
        num_void_shards=whole(num_void_shards),
        num_shards=whole(num_shards),
        at=_real(at),
        duration_seconds=None if duration_seconds is None else _real(duration_seconds),
        drop_reasons=tuple((_text(reason), whole(count)) for reason, count in reasons),
        payload_bytes=whole(payload_bytes),
        data_parallel_bytes=whole(data_parallel_bytes),
    )


def _share(peer_id: Any, milli_tokens: Any, is_witnessed: Any) -> MachineShare:
    return MachineShare(
        PeerId(sys.intern(_text(peer_id))), min(whole(milli_tokens), MAX_SHARE_MILLI), bool(is_witnessed)
    )


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


def event_of_news(number: int, news: PeopleNews) -> StoredEvent:
    """News of people among the events. Overtaking is forgotten after two days, the rest stays."""
    kind = next(name for name, shown in NEWS_KINDS.items() if shown == news.kind)
    detail = {"other": news.other_id, "country": news.country}
    return StoredEvent(number, news.at, kind, news.contributor_id, news.tokens, detail, news.kind != "overtook")


def news_of_row(at: Any, kind: Any, contributor_id: Any, tokens: Any, detail: Any) -> PeopleNews:
    """Read back the row of `event_of_news`."""
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


def profile_of_row(contributor_id: Any, text: Any) -> ProfileFacts:
    """Read back the text of `profile_text`."""
    sequence, issued_at, name, country, is_hidden, machines, team = json.loads(text)
    return ProfileFacts(
        _text(contributor_id),
        whole(sequence),
        _real(issued_at),
        _text(name),
        _text(country),
        bool(is_hidden),
        tuple(map(_text, machines)),
        _text(team),
    )


def machine_text(machine: MachineTotals) -> str:
    """What this dashboard saw of a machine, as JSON; its totals follow from the receipts."""
    facts = (machine.contributor_key, machine.device, machine.name, machine.last_at, machine.uptime_seconds)
    return json.dumps((*facts, machine.first_at if math.isfinite(machine.first_at) else None))


def machine_of_row(peer_id: Any, text: Any) -> MachineTotals:
    """Read back the text of `machine_text`."""
    contributor_key, device, name, last_at, uptime_seconds, first_at = json.loads(text)
    return MachineTotals(
        _text(peer_id),
        contributor_key=_text(contributor_key),
        device=_text(device),
        name=_text(name),
        first_at=math.inf if first_at is None else _real(first_at),
        last_at=_real(last_at),
        uptime_seconds=_real(uptime_seconds),
    )


def sample_values(sample: ModelSample) -> tuple[Any, ...]:
    texts = [(one.prompt, one.text) for one in sample.texts]
    return sample.at, sample.version, sample.committed_tokens, _short(sample.validation_loss), texts


def sample_of_values(at: Any, version: Any, tokens: Any, loss: Any, texts: Any) -> ModelSample:
    """Read back the row of `sample_values`."""
    shown = tuple(WrittenText(_text(prompt), _text(said)) for prompt, said in texts)
    return ModelSample(_real(at), whole(version), whole(tokens), None if loss is None else _real(loss), shown)


def gap_of_values(begin_at: Any, end_at: Any, reason: Any) -> Gap:
    return Gap(_real(begin_at), _real(end_at), _text(reason))


def whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.60}; expected a whole number from 0")
    return value


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
