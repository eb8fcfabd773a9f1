"""Ranks by period: who did how much today, in the last seven days and altogether, and who was where yesterday. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from dashboard.history_facts import PeriodRank

WEEK_DAYS: Final = 7


def recent_work(works: Iterable[Mapping[int, int]], today: int) -> dict[int, int]:
    """Thousandths of tokens per day of one contributor's machines, over the days that any period here looks at."""
    total: Counter[int] = Counter()
    for work in works:
        for day in range(today - WEEK_DAYS, today + 1):
            if milli := work.get(day, 0):
                total[day] += milli
    return dict(total)


def standings(work: Mapping[str, Mapping[int, int]], today: int, num_days: int) -> dict[str, PeriodRank]:
    """Standings in the `num_days` up to today, by contributor id, of `recent_work`; without work there is none.

    Args:
        today: the day's number since 1970 (UTC).
        num_days: at most `WEEK_DAYS`.
    """
    now = {key: _sum(days, today - num_days + 1, today) for key, days in work.items()}
    before = ranks({key: _sum(days, today - num_days, today - 1) for key, days in work.items()})
    return {key: PeriodRank(now[key], rank, before.get(key, 0)) for key, rank in ranks(now).items()}


def ranks(milli: Mapping[str, int]) -> dict[str, int]:
    """From 1, by how much; equal ones in the order of the mapping. Those with nothing have no rank."""
    ordered = sorted((key for key, value in milli.items() if value > 0), key=lambda key: -milli[key])
    return {key: place for place, key in enumerate(ordered, 1)}


def _sum(days: Mapping[int, int], first: int, last: int) -> int:
    return sum(milli for day, milli in days.items() if first <= day <= last)
