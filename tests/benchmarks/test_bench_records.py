"""The benchmark of peer records at work: small swarms see everybody at once, larger ones after a turn."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("hivemind")

from benchmarks.bench_records import measure


def test_requests_stay_what_they_were_when_four_keys_are_not_enough() -> None:
    small = asyncio.run(measure(40, 1, seed=1))
    assert (small.level, small.seen_first, small.seen) == (0, 39, 39)
    large = asyncio.run(measure(280, 1, seed=1))
    assert (large.level, large.seen) == (1, 279)
    assert large.seen_first < 279
    # Five holders and four keys from two holders each, twelve times a minute, and what look-ups come to.
    assert 6 * 5 + 12 * 4 * 2 <= small.requests <= 150
    assert large.requests <= small.requests
