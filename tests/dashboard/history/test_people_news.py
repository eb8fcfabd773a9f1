"""News of people is found by the history, is among its events, and survives a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dashboard.history.history import open_history
from tests.kit.dashboard.history import IDS, check_raw, feed, raw_commit
from tests.kit.dashboard.records import NOW, RUN_ID


def test_news_of_people_survives_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "run.sqlite"
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as (history, reader):
            feed(history, ())
            assert history.view.news == ()
            for version, (ada, jo) in enumerate([(50.0, 40.0), (10.0, 30_000.0)]):
                raw = raw_commit(0, version, [(IDS[0], ada, True), (IDS[1], jo, True)], at=NOW)
                history.add_commit(raw, check_raw(raw), NOW)
                told = history.view.news
            assert [(news.kind, news.contributor_id) for news in told] == [
                ("overtook", IDS[1]),
                ("passed", IDS[1]),
                ("joined", IDS[1]),
                ("joined", IDS[0]),
            ]
        async with open_history(path, RUN_ID, clock=lambda: NOW + 60, warn=print) as (history, reader):
            feed(history, (), now=NOW + 60)
            assert history.view.news == told
            # No mark beside the curves is one of them.
            assert {mark.kind for mark in history.view.marks} <= {"join", "leave", "revision"}
            kinds = [event.kind for event in await reader.events(0, 100)]
            assert kinds.count("first round") == 2
            assert kinds.count("overtook") == 1

    asyncio.run(run())
