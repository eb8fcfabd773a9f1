"""Whom a leaving peer relies on: a member that stays and has what it has, never another one that is leaving too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

import peer.network.node.graceful_leave
from dht.records.peer_record import PeerState
from peer.network.node.graceful_leave import HAND_OVER_SECONDS, GracefulLeave


def member(name: str, state: PeerState, *tokens: int) -> Any:
    return SimpleNamespace(peer_id=name, state=state, lineage_tokens=tokens)


class Others:
    """Members as this peer sees them; `hears` changes the view when this peer introduces itself."""

    def __init__(self, *records: Any, hears: Callable[[Others], None] = lambda others: None) -> None:
        self.records = list(records)
        self.hears = hears
        self.asked: list[tuple[int, str]] = []
        self.met: list[list[str]] = []

    async def introduce(self, to: Sequence[Any] = ()) -> str:
        self.met.append([record.peer_id for record in to])
        self.hears(self)
        return ""

    def some_of(self, records: Sequence[Any], count: int) -> list[Any]:
        return list(records[-count:])

    def members(self) -> list[Any]:
        return self.records

    def say_version(self, fragment: Any, peer_id: str) -> None:
        """Told that this peer has something else, a member that is behind asks for it."""
        self.asked.append((fragment.index, peer_id))


def hand_over(others: Others, *tokens: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds that it took on a clock that only sleeping moves."""
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    fragments = [
        SimpleNamespace(index=index, state=SimpleNamespace(lineage_tokens=have)) for index, have in enumerate(tokens)
    ]
    exchange = SimpleNamespace(fragments=fragments, applying=others)
    parts = (exchange, others, None, None, lambda: now)
    monkeypatch.setattr(peer.network.node.graceful_leave.asyncio, "sleep", sleep)
    asyncio.run(GracefulLeave(*cast(Any, parts)).hand_over())
    return now


def test_a_member_that_stays_and_has_it_all_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others(member("seed", "serving", 10, 20), member("late", "training", 1, 1))
    assert hand_over(others, 10, 20, monkeypatch=monkeypatch) == 0.0
    assert others.asked == []


def test_nobody_is_waited_for_where_nobody_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hand_over(Others(), 10, monkeypatch=monkeypatch) == 0.0
    assert hand_over(Others(member("other", "leaving", 10)), 10, monkeypatch=monkeypatch) == 0.0


def test_one_that_is_leaving_too_does_not_count_and_one_that_is_behind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def catches_up(others: Others) -> None:
        if len(others.asked) == 3:
            others.records[1] = member("seed", "serving", 10, 20)

    others = Others(member("other", "leaving", 10, 20), member("seed", "serving", 10, 5), hears=catches_up)
    assert 0.0 < hand_over(others, 10, 20, monkeypatch=monkeypatch) < HAND_OVER_SECONDS
    assert others.asked == [(1, "seed")] * 3


def test_it_leaves_in_the_end_and_says_what_the_others_lack(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    others = Others(member("seed", "serving", 10, 5))
    assert hand_over(others, 10, 20, monkeypatch=monkeypatch) == pytest.approx(HAND_OVER_SECONDS)
    assert "no other member has the newest fragments [1]" in caplog.text
