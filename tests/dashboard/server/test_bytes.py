"""What a visitor's line carries, for a run of 300 people."""

from __future__ import annotations

import asyncio

from benchmarks.scenes.page_bytes import measure_bytes
from tests.kit.web_bundle import require_bundle


def test_the_first_view_and_an_open_tab_stay_small() -> None:
    require_bundle()
    found = asyncio.run(measure_bytes(num_people=300, num_looks=45))
    assert max(found["first_view_bytes"].values()) < 60_000
    assert max(found["hour_mb"].values()) < 3.0
