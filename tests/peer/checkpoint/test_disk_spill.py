"""What past rounds leave behind lies on the disk: the same bytes, no memory, no file that outlives its use."""

from __future__ import annotations

import gc
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from averaging.codec.blocks import encoded_num_bytes
from averaging.exchange.applying import stored_result
from averaging.fragment.shard_store import payload_digest
from averaging.wire.messages import HISTORY_COMMITS, ResultRequest
from dht.ground.compute import compute_inline
from peer.checkpoint import disk_spill
from peer.checkpoint.disk_spill import LEAST_BYTES, MOST_FILES, STATE_SECONDS, NewcomerCopies, RoundSpill, SpillFiles
from peer.config.manifest import RunManifest
from peer.plan.homes import PlanProfile
from peer.plan.planning import plan_run
from tests.kit.rounds.exchange_swarm import RULE, Swarm, scenario

AUDITED = replace(RULE, audit_fraction=0.1)

HALF = LEAST_BYTES // 2


def test_bytes_come_back_as_they_were_and_cannot_be_changed(tmp_path: Path) -> None:
    parts = [os.urandom(HALF + 3), bytearray(os.urandom(HALF)), memoryview(b""), memoryview(os.urandom(10))]
    kept = SpillFiles(tmp_path).keep(parts)
    assert kept is not None
    assert [bytes(one) for one in kept] == [bytes(one) for one in parts]
    assert all(one.readonly for one in kept)
    assert not list(tmp_path.iterdir()), "a file has a name, and would be left behind by a process that is killed"


def test_little_stays_in_memory(tmp_path: Path) -> None:
    assert SpillFiles(tmp_path).keep([bytes(HALF), bytes(HALF - 1)]) is None


def test_a_folder_that_takes_nothing_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    kept = SpillFiles(folder)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert kept.keep([bytes(LEAST_BYTES)]) is None
        folder.mkdir()
        assert kept.keep([bytes(LEAST_BYTES)]) is not None
        folder.rmdir()
        assert kept.keep([bytes(LEAST_BYTES)]) is None
    assert len(caplog.messages) == 2
    assert str(folder) in caplog.messages[0]
    assert "No such file or directory" in caplog.messages[0]


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = [], os.write

    def fill_up(descriptor: int, buffer: memoryview) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(descriptor)
        return write(descriptor, buffer[:1000])

    monkeypatch.setattr(os, "write", fill_up)
    kept = SpillFiles(tmp_path)
    assert kept.keep([bytes(LEAST_BYTES)]) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(written[0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts file descriptors in /proc")
def test_files_go_with_the_last_reference_and_are_never_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_spill, "LEAST_BYTES", 8)

    def num_open() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before, kept = num_open(), SpillFiles(tmp_path)
    held = [kept.keep([os.urandom(8), b"12345678"]) for _ in range(MOST_FILES)]
    assert num_open() == before + MOST_FILES
    assert kept.keep([bytes(8)]) is None
    # A part of one keeps its file.
    assert held[0] is not None
    part = held[0][1]
    held.clear()
    assert num_open() == before + 1
    assert bytes(part) == b"12345678"
    assert kept.keep([bytes(8)]) is not None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_copies_for_newcomers_take_no_memory_once_they_are_unloaded(tmp_path: Path) -> None:
    anchor = np.arange(2 << 20, dtype=np.float32)
    momentum = -anchor
    copies = NewcomerCopies(SpillFiles(tmp_path), anchor.nbytes, lambda: 0.0)
    (kept_anchor, kept_momentum), unload = copies.copy([anchor, momentum])

    def mapped_kib() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssFile:")[2].split()[0])

    unload()
    before = mapped_kib()
    expected = anchor.copy()
    anchor += 1
    assert np.array_equal(kept_anchor, expected)
    assert np.array_equal(kept_momentum, momentum)
    assert not kept_anchor.flags.writeable
    assert mapped_kib() - before > 14_000
    unload()
    assert mapped_kib() - before < 4_000


def test_copies_for_newcomers_are_in_memory_where_the_disk_takes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.ones(1 << 20, dtype=np.float32)
    gone = SpillFiles(tmp_path / "gone", "copies for newcomers", "two fragments and their momentum")
    (copied,), unload = NewcomerCopies(gone, values.nbytes, lambda: 0.0).copy([values])
    values += 1
    unload()
    assert float(copied[0]) == 1.0
    assert caplog.messages[0].startswith("copies for newcomers stay in memory")


def test_members_who_ask_again_and_again_do_not_wear_out_the_disk(tmp_path: Path) -> None:
    now, values = 0.0, np.ones(1 << 18, dtype=np.float32)
    copies = NewcomerCopies(SpillFiles(tmp_path), values.nbytes, lambda: now)

    def is_on_disk() -> bool:
        (copied,), _ = copies.copy([values])
        assert np.array_equal(copied, values)
        return not copied.flags.writeable

    assert [is_on_disk() for _ in range(4)] == [True, True, False, False]
    now = STATE_SECONDS - 1
    assert not is_on_disk()
    now = STATE_SECONDS
    assert is_on_disk()
    now = 100 * STATE_SECONDS
    assert [is_on_disk() for _ in range(3)] == [True, True, False]


async def spill_all(swarm, folder):
    """Every commit that is still known, of every fragment at every peer."""
    for peer in swarm.live():
        for fragment in peer.fragments:
            past = RoundSpill(SpillFiles(folder), compute_inline)
            for version in sorted(fragment.machine.history):
                await past.spill(fragment, fragment.machine.history[version])


def test_late_members_and_forks_find_what_was_spilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_spill, "LEAST_BYTES", 1)

    async def play():
        swarm = Swarm(3, rule=AUDITED)
        await swarm.train(4)
        await swarm.settle()
        peer, other = swarm.live()[:2]
        fragment = peer.fragments[1]
        before = {key: bytes(payload) for key, payload in fragment.store._results.items()}
        work = {version: decoded(peer, sent) for version, sent in fragment.store._own.items()}
        assert work
        await spill_all(swarm, tmp_path)
        after = fragment.store._results
        assert {key: bytes(payload) for key, payload in after.items()} == before
        commits = fragment.machine.history
        committed = {(version, result.digest) for version in commits for result in commits[version].shards}
        moved = {(version, digest) for (version, _, digest), one in after.items() if isinstance(one, memoryview)}
        assert moved == committed & {(version, digest) for version, _, digest in after}
        assert len(moved) >= 3
        for version, values in work.items():
            sent = fragment.store.own(version)
            assert np.array_equal(decoded(peer, sent), values)
            assert isinstance(sent.encoded.codes, memoryview)
            assert sent.encoded.codes.readonly

        version = fragment.state.version - 1
        digest = fragment.machine.known_commit(version).shards[0].digest
        given = stored_result(fragment, other.name, ResultRequest(1, version, 0, digest))
        assert given is not None
        assert payload_digest(given[1]) == digest
        # Rounds go on as before, and what is pruned is forgotten here, too.
        await swarm.train(5)
        await swarm.settle()
        swarm.assert_agreement(least_version=version + 4)
        assert (version, 0, digest) not in fragment.store._results
        return swarm

    scenario(play)


def decoded(peer, sent):
    values = np.zeros(sent.encoded.num_values, dtype=np.float32)
    peer.codec.decode(sent.encoded, values)
    return values


def test_other_bytes_than_were_spilled_are_not_sent() -> None:
    """Whoever got them would blame this peer."""

    async def play():
        swarm = Swarm(3)
        await swarm.train(3)
        await swarm.settle()
        peer, other = swarm.live()[:2]
        fragment = peer.fragments[1]
        version = fragment.state.version - 1
        commit = fragment.machine.known_commit(version)
        results = fragment.store.results_of(commit)
        key, payload = next(iter(results.items()))
        request = ResultRequest(1, version, *key)
        fragment.store.move_results(version, {key: memoryview(bytes(len(payload)))})
        assert not stored_result(fragment, other.name, request)
        fragment.store.move_results(version, {key: payload})
        assert stored_result(fragment, other.name, request)
        return swarm

    scenario(play)


def test_what_was_forgotten_meanwhile_stays_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_spill, "LEAST_BYTES", 1)

    async def play():
        swarm = Swarm(3, rule=AUDITED)
        await swarm.train(3)
        await swarm.settle()
        fragment = swarm.live()[0].fragments[0]
        version = fragment.state.version - 1
        keep = SpillFiles(tmp_path).keep

        def lose_then_keep(parts):
            fragment.store.prune(version + 1, version + 1)
            return keep(parts)

        past = RoundSpill(SimpleNamespace(keep=lose_then_keep), compute_inline)
        await past.spill(fragment, fragment.machine.history[version])
        assert not fragment.store._results
        assert not fragment.store._own
        return swarm

    scenario(play)


def test_plan_counts_past_rounds_of_large_fragments_as_disk() -> None:
    num_values = 16 << 20

    def planned(num_fragments: int) -> tuple[int, int]:
        manifest = RunManifest.from_fields({"name": "planned", "averaging": {"num_fragments": num_fragments}})
        plan = plan_run(manifest, PlanProfile(), lambda count: [num_values // count] * count)
        return plan.homes[0].network_memory.encoded_bytes, plan.disk_bytes

    contribution = encoded_num_bytes("int4", 128, num_values)
    past_rounds = 2 * HISTORY_COMMITS * contribution
    (large, disk), (small, less_disk) = planned(1), planned(32)
    assert (large, small) == (contribution, contribution + past_rounds)
    # Two fragments at most are copied for newcomers, with their momentum.
    assert disk - less_disk == past_rounds + 8 * (num_values - 2 * num_values // 32)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at memory in /proc")
def test_what_was_read_takes_no_memory_once_it_is_unloaded(tmp_path: Path) -> None:
    def resident() -> int:
        mappings = Path("/proc/self/smaps").read_text().split(str(tmp_path))[1:]
        return sum(int(one.split("Rss:")[1].split()[0]) for one in mappings)

    data = os.urandom(4 * LEAST_BYTES)
    kept = SpillFiles(tmp_path)
    held = kept.keep([data])
    assert held is not None
    assert resident() == 0, "writing it already took memory"
    assert bytes(held[0]) == data
    assert resident() >= 4 * LEAST_BYTES // 1024
    kept.unload()
    assert resident() == 0
    assert bytes(held[0]) == data
