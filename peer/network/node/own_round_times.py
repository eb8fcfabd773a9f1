"""How this peer spends its rounds, for its record. Pure: reports tell what happened, the caller tells when."""

from __future__ import annotations

from averaging.rounds.round_facts import CommitTaken, RoundStarted
from dht.records.peer_record import RoundTimes


class RoundClock:
    """`newest` is the last round that was planned with this peer and then applied here; times are unix seconds."""

    def __init__(self, started_at: float) -> None:
        self.newest: RoundTimes | None = None
        self._ended_at = started_at
        self._began: dict[int, tuple[int, float]] = {}

    def began(self, fact: RoundStarted, at: float) -> None:
        """A plan came. A later attempt at the same round belongs to it."""
        if self._began.get(fact.fragment, (-1, 0.0))[0] != fact.version:
            self._began[fact.fragment] = (fact.version, at)

    def applied(self, taken: CommitTaken, at: float) -> None:
        """A commit was applied; one of a round that passed this peer by tells nothing about it."""
        version, began_at = self._began.pop(taken.commit.fragment, (-1, 0.0))
        if version != taken.commit.version:
            return
        # A clock that was set back makes nothing negative. Rounds of several fragments may run at one time.
        compute_seconds = max(0.0, began_at - self._ended_at)
        self.newest = RoundTimes(
            fragment=taken.commit.fragment,
            version=version,
            started_at=max(0.0, began_at - compute_seconds),
            compute_seconds=compute_seconds,
            send_seconds=max(0.0, at - began_at - taken.receive_seconds - taken.apply_seconds),
            receive_seconds=taken.receive_seconds,
            apply_seconds=taken.apply_seconds,
        )
        self._ended_at = max(self._ended_at, at)
