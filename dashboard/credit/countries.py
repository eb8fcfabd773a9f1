"""Contributors by the country that they declared, where enough of them did. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dashboard.history_facts import ContributorRow

MIN_CONTRIBUTORS_PER_COUNTRY: Final = 3
"""Below this a country could name a person."""


def countries(rows: Sequence[ContributorRow]) -> tuple[tuple[tuple[str, int], ...], int]:
    """((country, contributors) of those with enough of them, contributors that stay undeclared)."""
    counted = Counter(row.country for row in rows if row.country)
    shown = {name: count for name, count in counted.items() if count >= MIN_CONTRIBUTORS_PER_COUNTRY}
    ordered = sorted(shown.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ordered), len(rows) - sum(shown.values())


def with_rare_countries_withheld(rows: Sequence[ContributorRow]) -> tuple[ContributorRow, ...]:
    """The same rows, each country with too few contributors left out."""
    shown = dict(countries(rows)[0])
    return tuple(row if not row.country or row.country in shown else replace(row, country="") for row in rows)
