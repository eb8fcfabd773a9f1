"""Members that have signed commits to be collected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.collect.commit_fetcher import SignedCommits
from dashboard.history.history import History, open_history
from dht.ground.errors import PeerUnreachable
from dht.ground.host import PeerId
from tests.kit.dashboard.history import check_raw, usual_commit
from tests.kit.dashboard.records import (
    NOW,
    PEERS,
    RUN_ID,
)

IDS = [identity.peer_id for identity in PEERS]
PAGE = 4


@dataclass
class Members:
    """What each member remembers; asked pages of `PAGE` commits."""

    kept: dict[PeerId, list[int]]
    asked: list[tuple[PeerId, int, int]] = field(default_factory=list)
    liars: tuple[PeerId, ...] = ()

    async def fetch(self, donor: PeerId, fragment: int, from_version: int) -> Sequence[bytes]:
        self.asked.append((donor, fragment, from_version))
        if donor not in self.kept:
            raise PeerUnreachable(donor, "is gone; expected commits; another is asked")
        versions = [version for version in sorted(self.kept[donor]) if version >= from_version][:PAGE]
        raws = [usual_commit(version, IDS[:2], fragment=fragment) for version in versions]
        return [b"rubbish", *raws] if donor in self.liars else raws

    @property
    def source(self) -> SignedCommits:
        return SignedCommits(self.fetch, check_raw)


def in_history(check: object, path: Path | None = None) -> None:
    async def run() -> None:
        async with open_history(path, RUN_ID, clock=lambda: NOW, warn=print) as history:
            await check(history)  # type: ignore[operator]

    asyncio.run(run())


def versions_of(history: History) -> list[int]:
    return sorted(history.ledger.counting.versions.get(0, ()))
