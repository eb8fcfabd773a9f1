"""A download that outlives the process which began it: nothing comes twice, nothing on the disk is believed."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from averaging.transfer.snapshots import HeldSnapshots
from averaging.wire.field_checks import Limits
from peer.checkpoint.partial_downloads import ChunkFiles
from peer.network.anchors.fetcher import Fetched, Fetcher
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.network.memory_networks import named
from tests.kit.notaries import CHECKER
from tests.kit.rounds.donor_scene import JOINER, NUM_VALUES, RULE, Scene, assert_same, empty_state, in_scene
from tests.simulator.network.host import MemoryHost

WHOLE = 8 * NUM_VALUES
SLACK = 100_000
"""Headers, digests and greetings, far less than a chunk."""


def fetcher_of(scene: Scene, host: MemoryHost, folder: Path) -> Fetcher:
    limits = Limits((NUM_VALUES, NUM_VALUES), 4096)
    door = RunHandshakePolicy(RULE, host.peer_id, "trainer")
    return Fetcher(host, door, limits, scene.company, CHECKER, ChunkFiles(folder))


async def fetch_all(fetcher: Fetcher, progress: list[tuple[int, int]]) -> Fetched:
    found: list[Fetched] = []

    async def adopt(index: int, fetched: Fetched) -> None:
        found.append(fetched)

    await fetcher.fetch_better({0: empty_state()}, adopt, lambda *bytes_so_far: progress.append(bytes_so_far))
    return found[0]


async def break_off(scene: Scene, folder: Path, num_bytes: int) -> Fetcher:
    """A joiner whose process ends when so much has arrived; returns that of its successor."""
    host = MemoryHost(scene.network, named(JOINER + 1))
    progress: list[tuple[int, int]] = []
    fetching = asyncio.ensure_future(fetch_all(fetcher_of(scene, host, folder), progress))
    while not progress or progress[-1][0] < num_bytes:  # noqa: ASYNC110 (virtual time)
        await asyncio.sleep(0.05)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    return fetcher_of(scene, host, folder)


def received_by(scene: Scene) -> int:
    return scene.network.received_bytes(named(JOINER + 1))


@pytest.mark.parametrize("num_donors", [1, 3])
def test_only_what_is_missing_comes_after_a_restart(tmp_path: Path, num_donors: int) -> None:
    async def play(scene: Scene) -> None:
        again = await break_off(scene, tmp_path, WHOLE // 2)
        before, progress = received_by(scene), list[tuple[int, int]]()
        found = await fetch_all(again, progress)
        assert_same(found.snapshot, scene.world.state("main", 0, 5))
        assert received_by(scene) - before < WHOLE - WHOLE // 2 + SLACK
        assert progress[-1][0] == progress[-1][1] == WHOLE
        # All of it was kept: not a chunk is fetched.
        before = received_by(scene)
        again = fetcher_of(scene, again.host, tmp_path)  # type: ignore[arg-type]
        assert_same((await fetch_all(again, [])).snapshot, scene.world.state("main", 0, 5))
        assert received_by(scene) - before < SLACK
        again.forget_kept()

    in_scene(num_donors, play)
    assert not tmp_path.exists()


def test_a_chunk_that_was_changed_on_the_disk_comes_again(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        again = await break_off(scene, tmp_path, WHOLE // 2)
        path = tmp_path / "fragment-0000.chunks"
        data = bytearray(path.read_bytes())
        data[10] ^= 1
        path.write_bytes(data)
        assert_same((await fetch_all(again, [])).snapshot, scene.world.state("main", 0, 5))

    in_scene(3, play)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"content": {"version": 5}, "check": "x"}', b"\xff" * 99])
def test_a_damaged_note_of_what_it_was_begins_anew(tmp_path: Path, content: bytes) -> None:
    async def play(scene: Scene) -> None:
        again = await break_off(scene, tmp_path, WHOLE // 2)
        (tmp_path / "fragment-0000.json").write_bytes(content)
        assert_same((await fetch_all(again, [])).snapshot, scene.world.state("main", 0, 5))

    in_scene(2, play)


@pytest.mark.parametrize("num_rounds", [1, 9])
def test_when_the_swarm_has_gone_on_the_newer_state_is_fetched(tmp_path: Path, num_rounds: int) -> None:
    async def play(scene: Scene) -> None:
        again = await break_off(scene, tmp_path, WHOLE // 2)
        for donor in scene.donors:
            for _ in range(num_rounds):
                donor.advance(0)
            donor.server._snapshots = HeldSnapshots(donor)
        found = await fetch_all(again, [])
        assert_same(found.snapshot, scene.world.state("main", 0, 5 + num_rounds))

    in_scene(3, play)


def test_a_state_that_only_one_of_three_shares_is_not_gone_on_with(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        again = await break_off(scene, tmp_path, WHOLE // 2)
        for donor in scene.donors[1:]:
            donor.lineage = "other"
            donor.known.clear()
            donor._note(0)
            donor.server._snapshots = HeldSnapshots(donor)
        found = await fetch_all(again, [])
        assert_same(found.snapshot, scene.world.state("other", 0, 5))

    in_scene(3, play)


def test_a_full_disk_costs_one_sentence_and_no_download(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)

    async def play(scene: Scene) -> None:
        fetcher = fetcher_of(scene, MemoryHost(scene.network, named(JOINER + 1)), tmp_path)
        assert_same((await fetch_all(fetcher, [])).snapshot, scene.world.state("main", 0, 5))

    in_scene(2, play)
    assert caplog.text.count("downloads are not kept for a restart") == 1
