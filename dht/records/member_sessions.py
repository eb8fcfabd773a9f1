"""The sessions of one member: a restart, or two processes at once with a copy of one key. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from dht.records.peer_record import PeerRecord

MAX_SESSIONS: Final = 8
"""Of one peer that are kept, those that started last. A restart leaves one more for minutes; beyond that only a peer
that makes them up has many."""


class Session(NamedTuple):
    record: PeerRecord
    """The newest of the session."""
    first_issued: float
    """Of the earliest record seen of it; see `issued_at`."""


def issued_at(record: PeerRecord) -> float:
    """Unix seconds at which it was signed, later by what every record of the run lives."""
    return record.expires_at - record.longer_seconds


def session_age(session: Session) -> tuple[float, int]:
    """For sorting: the session that started first comes first."""
    return (session.record.started_at, session.record.session)


def is_newer(record: PeerRecord, than: PeerRecord) -> bool:
    """Whether `record` replaces `than`, of the same session."""
    if record.sequence != than.sequence:
        return record.sequence > than.sequence
    if record == than:
        return False
    # A faulty peer may sign two records with one sequence; any fixed choice keeps the fold independent of order.
    return (record.expires_at, repr(record)) > (than.expires_at, repr(than))


def with_record(held: Session | None, record: PeerRecord) -> Session:
    """The session with one more of its records."""
    issued = issued_at(record)
    if held is None:
        return Session(record, issued)
    newest = record if is_newer(record, held.record) else held.record
    return Session(newest, held.first_issued if held.first_issued <= issued else issued)


def without_oldest(sessions: dict[int, Session]) -> dict[int, Session]:
    """Without the one that started first, where there is one too many."""
    if len(sessions) > MAX_SESSIONS:
        del sessions[min(sessions, key=lambda number: session_age(sessions[number]))]
    return sessions


def sessions_together(sessions: Iterable[Session], now: float) -> tuple[int, ...]:
    """The sessions of one member that are alive together, the earliest started first; empty when all is well.

    A restarted peer has two unexpired records for a while, and that is no duplicate. In a duplicate the older session
    has published again after the newer one began. Expiry times show that, because all records of a run live equally
    long but for what they say that they live longer. Two or more sessions mean several processes with one key file.
    """
    live = sorted(
        (one for one in sessions if one.record.expires_at > now and one.record.state != "left"), key=session_age
    )
    together = {
        number
        for position, newer in enumerate(live)
        for older in live[:position]
        if issued_at(older.record) > newer.first_issued
        for number in (older.record.session, newer.record.session)
    }
    return tuple(one.record.session for one in live if one.record.session in together)
