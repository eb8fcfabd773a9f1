"""Results of a committed round: who is asked for them, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from averaging.exchange.result_search import MAX_AHEAD, ResultSearch
from averaging.rounds.attempt import LaterVersions
from averaging.rounds.waits import Waits
from averaging.wire.messages import HISTORY_COMMITS, Commit, ResultRequest, RosterEntry, ShardResult, VersionIs
from dht.ground.host import PeerId
from tests.simulator.virtual_time import run_virtual

ME, MAKER = PeerId("me"), PeerId("maker")
AHEAD = [PeerId(name) for name in ("also", "knows", "of", "the", "commit", "zebra")]
DIGEST = bytes(16)
COMMIT = Commit(0, 5, 0, MAKER, bytes(16), (RosterEntry(MAKER, 1, 1, 5, 1),), (ShardResult(0, 8, 0, DIGEST, (0,)),))


class Remotes:
    """Links to those of whom some have the result, and answer at once."""

    def __init__(self, holders: set[PeerId], store: dict[int, bytes], on_arrival: Callable[[], None]) -> None:
        self.asked: list[PeerId] = []
        self._holders, self._store, self._on_arrival = holders, store, on_arrival

    def send(self, peer_id: PeerId, message: ResultRequest) -> None:
        self.asked.append(peer_id)
        if peer_id in self._holders:
            self._store[message.shard] = b"mean"
            self._on_arrival()


async def search(
    holders: set[PeerId], ahead: list[PeerId], outrun_by: Sequence[PeerId] = ()
) -> tuple[Any, list[PeerId]]:
    later, store = LaterVersions(), dict[int, bytes]()
    for peer_id in ahead:
        later.note(peer_id, 6)
    links = Remotes(holders, store, lambda: looking.note_arrival())
    fragment = SimpleNamespace(
        index=0,
        state=SimpleNamespace(pending=None, codec=SimpleNamespace(encoded_num_bytes=lambda size: size)),
        machine=SimpleNamespace(
            later=later,
            timing=Waits.with_bounds(1.0),
            trainers=(),
            comes_unasked=False,
        ),
        store=SimpleNamespace(result=lambda version, index, digest: store.get(index)),
    )
    ports = SimpleNamespace(clock=asyncio.get_running_loop().time, rate_of=lambda peer_id: 0.0)
    context = SimpleNamespace(me=ME, links=links, ports=ports, lost=())
    looking = ResultSearch(context, fragment, COMMIT)  # type: ignore[arg-type]
    for peer_id in outrun_by:
        looking.note_version(peer_id, VersionIs(0, COMMIT.version + HISTORY_COMMITS + 1, bytes(16), 1))
    assert looking._outrun_by <= {MAKER}
    found = await looking.run(lambda passed: None)
    return found, links.asked


@pytest.mark.parametrize("holder", ["the", "zebra"])
def test_one_that_has_gone_on_gives_what_its_makers_took_with_them(holder: str) -> None:
    """The only reducer of the round is gone; it had given its mean to one member, which is not in the roster."""
    found, asked = run_virtual(search({PeerId(holder)}, AHEAD))
    assert found == {0: b"mean"}
    assert asked[0] == MAKER
    assert holder in asked


def test_nobody_has_it_and_few_are_asked() -> None:
    found, asked = run_virtual(search(set(), AHEAD))
    assert found is None
    assert set(asked) == {MAKER, *sorted(AHEAD, key=lambda name: (name <= ME, name))[:MAX_AHEAD]}
    found, asked = run_virtual(search(set(), []))
    assert found is None
    assert set(asked) == {MAKER}


def test_strangers_end_no_search_however_many_and_nothing_of_them_is_kept() -> None:
    strangers = [PeerId(f"stranger {number}") for number in range(300)]
    found, asked = run_virtual(search({MAKER}, [], outrun_by=strangers))
    assert found == {0: b"mean"}
    found, asked = run_virtual(search(set(), [], outrun_by=[*strangers, MAKER]))
    assert found is None
    assert asked == [MAKER]
