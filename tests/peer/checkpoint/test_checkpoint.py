"""Checkpoints: whole or not there, never believed without a check, never in the way of training."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.arrays import F32
from averaging.codec.codec import make_codec
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import ShardStore
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import CommittedShard
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.waits import Waits
from averaging.wire.messages import WorkPart
from dht.ground.compute import Compute, compute_inline
from dht.ground.host import PeerId
from peer.checkpoint.checked_files import open_new
from peer.checkpoint.checkpoint import (
    METADATA_NAME,
    CheckpointFolder,
    CheckpointOwner,
    list_checkpoints,
    saved_totals,
)
from peer.checkpoint.checkpoint_facts import Totals
from peer.events.peer_events import CheckpointFailed, CheckpointSaved, Event
from peer.mailbox.mailbox import Mailbox
from peer.network.node.checkpoint_keeper import CheckpointKeeper
from tests.kit.notaries import notary_of
from tests.kit.tiers import some
from tests.kit.trainer.saved_states import ME, OWNER, RULE, SIZES, TOTALS, facts_to, newest, save, state_of, states_of

T = TypeVar("T")


def empty_state(size: int) -> FragmentState:
    anchor, momentum, residual = (np.zeros(size, dtype=np.float32) for _ in range(3))
    return FragmentState(RULE, make_codec("int4", 16), anchor, momentum, residual)


def values_of(value: float) -> F32:
    return np.full(SIZES[0], value, dtype=np.float32)


def folder_at(path: Path, owner: CheckpointOwner = OWNER) -> CheckpointFolder:
    return CheckpointFolder(path, owner, 60.0)


def restored(folder: CheckpointFolder) -> list[FragmentState]:
    states = [empty_state(size) for size in folder.owner.sizes]
    for index, state in enumerate(states):
        newest(folder).restore(index, state)
    return states


def facts_of(state: FragmentState) -> tuple[object, ...]:
    unsent = (state.unsent_tokens, state.unsent_steps, state.unsent_base_version, state.unsent_parts)
    return (state.version, state.lineage_tokens, state.digest, unsent)


def bits_of(state: FragmentState) -> tuple[bytes, ...]:
    return tuple(values.tobytes() for values in (state.anchor, state.momentum, state.residual))


# --- what is saved comes back ---


@given(
    seed=st.integers(0, 1000),
    unsent=st.tuples(st.integers(1, 10**6), st.integers(1, 100), st.integers(0, 50)),
    totals=st.builds(
        Totals,
        inner_steps=st.integers(0, 2**63 - 1),
        tokens=st.integers(0, 2**63 - 1),
        rounds_contributed=st.integers(0, 2**31),
    ),
)
def test_everything_comes_back_bit_for_bit(seed: int, unsent: tuple[int, int, int], totals: Totals) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = folder_at(Path(place) / "checkpoints")
        states = states_of(seed)
        states[0].unsent_tokens, states[0].unsent_steps, states[0].unsent_base_version = unsent
        states[1].unsent_tokens, states[1].unsent_steps, states[1].unsent_base_version = 7, 4, 2
        states[1].unsent_parts = (WorkPart(1, 10, 4, 5), WorkPart(SIZES[1], 5, 2, 2))
        save(folder, states, totals)
        for state, found in zip(states, restored(folder), strict=True):
            assert bits_of(state) == bits_of(found)
            assert facts_of(state) == facts_of(found)
        saved, complaints = folder.newest()
        assert saved is not None
        assert (saved.totals, complaints) == (totals, [])
        assert saved_totals(folder.path, OWNER.run_id, ME) == totals


@pytest.mark.parametrize("mode", ["carry", "eager", "streaming"])
@given(seed=st.integers(0, 1000), later_tokens=st.integers(0, 100))
def test_work_under_way_its_overlay_and_the_velocity_come_back(mode: str, seed: int, later_tokens: int) -> None:
    state = state_of(SIZES[0], seed, OuterRule(mode, 0.7, 0.5))
    for sequence, is_committed in ((1, True), (2, False)):
        state.receive_work(values_of(0.5), 70, 7, state.version)
        state.send(sequence)
        if is_committed:
            gradient = state.codec.encode(values_of(0.25))
            state.apply([CommittedShard(0, SIZES[0], gradient, 0.5, own_included=True)], 10)
            state.refresh_digest()
    if later_tokens:
        state.receive_work(values_of(0.25), later_tokens, 2, state.version + 1)
    state.own_share = 0.25
    with tempfile.TemporaryDirectory() as place:
        folder = folder_at(Path(place), replace(OWNER, sizes=SIZES[:1]))
        before = bits_of(state), facts_of(state)
        save(folder, [state])
        assert (bits_of(state), facts_of(state)) == before
        found = empty_state(SIZES[0])
        found.rule = state.rule
        newest(folder).restore(0, found)
    assert (bits_of(found), facts_of(found)) == before
    assert np.array_equal(found.shown(), state.shown())
    assert found.pending is not None
    assert state.pending is not None
    assert found.pending.sequence == state.pending.sequence == 2
    assert (found.own_share, found.shown_share) == (0.25, state.shown_share)
    # Its shard was void: the work came back and waits again.
    for one in (state, found):
        one.take_back()
    for one in (state, found):
        if one.unsent_tokens:
            one.send(4)
    assert found.pending == state.pending
    for one in (state, found):
        gradient = one.codec.encode(values_of(0.125))
        one.apply([CommittedShard(0, SIZES[0], gradient, 0.5, own_included=True)], 10)
        one.receive_work(values_of(0.5), 70, 7, one.version)
        one.send(3)
    assert bits_of(found) == bits_of(state)
    assert np.array_equal(found.shown(), state.shown())


def test_the_last_two_stay_and_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "checkpoints")
    folder.begin()
    folder.begin()
    paths = [save(folder, states_of(seed)) for seed in range(4)]
    assert list_checkpoints(folder.path) == [paths[3], paths[2]]
    assert sorted(path.name for path in folder.path.iterdir()) == [paths[2].name, paths[3].name]
    assert facts_of(restored(folder)[0]) == facts_of(states_of(3)[0])
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths[3].iterdir())


# --- what is not whole is passed over ---


@pytest.fixture
def two(tmp_path: Path) -> tuple[CheckpointFolder, Path]:
    """A folder with an older and a newer checkpoint, and the path of the newer."""
    folder = folder_at(tmp_path / "checkpoints")
    save(folder, states_of(10), Totals(inner_steps=10))
    return folder, save(folder, states_of(20), Totals(inner_steps=20))


@pytest.mark.parametrize("name", ["fragment-0000.safetensors", "fragment-0001.safetensors", METADATA_NAME])
def test_a_file_cut_anywhere_gives_the_checkpoint_before(two: tuple[CheckpointFolder, Path], name: str) -> None:
    folder, newer = two
    whole = (newer / name).read_bytes()
    for length in some(range(len(whole)), one_in=7):
        (newer / name).write_bytes(whole[:length])
        saved, complaints = folder.newest()
        assert saved is not None
        assert saved.totals.inner_steps == 10
        assert len(complaints) == 1
        assert complaints[0].path == newer
        assert name in complaints[0].reason
    (newer / name).write_bytes(whole)
    assert facts_of(restored(folder)[0]) == facts_of(states_of(20)[0])


@pytest.mark.parametrize("name", ["fragment-0000.safetensors", METADATA_NAME])
@given(place=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_changed_byte_changes_nothing_that_is_used(name: str, place: int, flip: int) -> None:
    with tempfile.TemporaryDirectory() as where:
        folder = folder_at(Path(where))
        save(folder, states_of(10))
        newer = save(folder, states_of(20))
        changed = bytearray((newer / name).read_bytes())
        changed[place % len(changed)] ^= flip
        (newer / name).write_bytes(changed)
        saved, complaints = folder.newest()
        assert saved is not None
        # Between the fields of JSON one kind of blank may stand for another.
        assert saved.path != newer or (name == METADATA_NAME and saved.totals == TOTALS)
        assert len(complaints) == (saved.path != newer)
        expected = states_of(20 if saved.path == newer else 10)
        assert [facts_of(state) for state in restored(folder)] == [facts_of(state) for state in expected]


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        (replace(OWNER, run_id="own.bbbbbbbbbbbbbbbbbbbb"), "a different run"),
        (replace(OWNER, manifest_hash=b"n" * 32), "a different manifest"),
        (replace(OWNER, layout_digest=b"k" * 32), "a different fragment layout"),
        (replace(OWNER, sizes=(3, 5)), "a different number of values"),
        (replace(OWNER, sizes=(5,)), "a different number of values"),
    ],
)
def test_what_belongs_to_something_else_is_named(
    two: tuple[CheckpointFolder, Path], owner: CheckpointOwner, said: str
) -> None:
    saved, complaints = folder_at(two[0].path, owner).newest()
    assert saved is None
    assert len(complaints) == 2
    assert all(said in complaint.reason and "expected" in complaint.reason for complaint in complaints)


def test_another_peer_may_use_the_anchors_but_gets_neither_credit_nor_work(two: tuple[CheckpointFolder, Path]) -> None:
    folder = folder_at(two[0].path, replace(OWNER, peer_id=PeerId("12D3KooWOther")))
    assert newest(folder).totals == Totals()
    found, saved = restored(folder)[0], states_of(20)[0]
    assert np.array_equal(found.anchor, saved.anchor)
    assert not found.residual.any()
    assert (found.unsent_tokens, found.pending) == (0, None)
    assert saved_totals(folder.path, OWNER.run_id, PeerId("12D3KooWOther")) == Totals()


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    states = states_of(1)
    states[1].residual[0] = np.inf
    save(folder, states)
    saved, complaints = folder.newest()
    assert saved is None
    assert "not finite" in complaints[0].reason


def test_a_huge_metadata_file_is_not_read(two: tuple[CheckpointFolder, Path]) -> None:
    folder, newer = two
    with open(newer / METADATA_NAME, "r+b") as file:
        file.truncate(10**12)  # sparse
    assert "expected at most" in folder.newest()[1][0].reason


# --- the keeper ---


class Disk:
    """Takes `room` files, then half of the next one, and reports that the disk is full."""

    def __init__(self) -> None:
        self.room = 10**9

    def __call__(self, path: Path) -> BinaryIO:
        file = open_new(path)
        if self.room == 0:
            file.write(b"half of it")
            file.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.room -= 1
        return file


def runtimes_of(states: list[FragmentState]) -> list[FragmentRuntime]:
    runtimes = []
    for index, state in enumerate(states):
        timing = Waits.with_bounds(60.0)
        machine = RoundMachine(ME, OWNER.run_id, index, state.num_values, 16, timing, notary_of(ME), 0.5)
        runtimes.append(FragmentRuntime(index, state, machine, ShardStore(state.codec, state.num_values)))
    return runtimes


def keeper_of(
    folder: CheckpointFolder,
    runtimes: list[FragmentRuntime],
    seen: list[Event],
    compute: Compute = compute_inline,
) -> CheckpointKeeper:
    mailbox = Mailbox.in_process(folder.owner.sizes)
    return CheckpointKeeper(folder, runtimes, mailbox, None, compute, facts_to(seen))


@pytest.mark.parametrize("num_writes", [0, 1, 2])
def test_a_full_disk_is_told_once_and_harms_nothing(tmp_path: Path, num_writes: int) -> None:
    disk = Disk()
    folder = CheckpointFolder(tmp_path / "checkpoints", OWNER, 60.0, open_file=disk)
    seen: list[Event] = []
    states = states_of(1)
    keeper = keeper_of(folder, runtimes_of(states), seen)

    async def scene() -> None:
        await keeper.save()
        states[0].version += 1
        disk.room = num_writes
        for _ in range(3):
            await keeper.save()
            disk.room = num_writes
        assert [type(event.fact) for event in seen] == [CheckpointSaved, CheckpointFailed]
        assert "No space left on device" in seen[1].sentence()
        assert len(list(folder.path.iterdir())) == 1
        assert restored(folder)[0].version == 1
        disk.room = 10**9
        await keeper.save()
        assert restored(folder)[0].version == 2
        disk.room = num_writes
        await keeper.save()

    asyncio.run(scene())
    assert [type(event.fact) for event in seen] == [
        CheckpointSaved,
        CheckpointFailed,
        CheckpointSaved,
        CheckpointFailed,
    ]


def test_a_folder_that_cannot_be_made_is_told_and_on_leaving_also_what_is_lost(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    seen: list[Event] = []
    keeper = keeper_of(folder_at(tmp_path / "checkpoints"), runtimes_of(states_of(1)), seen)

    async def scene() -> None:
        await keeper.save()
        await keeper.save()
        await keeper.save(is_last=True)

    asyncio.run(scene())
    assert [type(event.fact) for event in seen] == [CheckpointFailed] * 2
    assert str(tmp_path / "checkpoints") in seen[0].sentence()
    assert "there is no earlier checkpoint, and work continues" in seen[0].sentence()
    assert "there is no earlier checkpoint, and work that no other member has is lost." in seen[1].sentence()


def test_a_fragment_is_copied_only_while_nothing_changes_it(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    states = states_of(1)
    runtimes = runtimes_of(states)
    seen: list[Event] = []
    began = asyncio.Event()

    async def told(work: Callable[[], T], /) -> T:
        began.set()
        return work()

    async def scene() -> None:
        async with runtimes[1].busy:
            saving = asyncio.create_task(keeper_of(folder, runtimes, seen, told).save())
            await began.wait()
            states[1].anchor.fill(2.0)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not seen
            states[1].version = 77
            states[1].refresh_digest()
        await saving

    asyncio.run(scene())
    assert restored(folder)[1].version == 77


def test_nothing_is_saved_before_there_is_a_state(tmp_path: Path) -> None:
    states = states_of(1)
    states[1].digest = b""
    asyncio.run(keeper_of(folder_at(tmp_path / "checkpoints"), runtimes_of(states), []).save())
    assert not (tmp_path / "checkpoints").exists()


def test_what_cannot_be_used_is_put_aside_and_reported(two: tuple[CheckpointFolder, Path]) -> None:
    folder, newer = two
    damaged = newer / "fragment-0000.safetensors"
    damaged.write_bytes(content := damaged.read_bytes()[:-1])
    seen: list[Event] = []
    found = asyncio.run(keeper_of(folder, runtimes_of(states_of(1)), seen).find(lambda: 1))
    assert found is not None
    aside = folder.path / "unusable-00000002"
    assert (aside / "fragment-0000.safetensors").read_bytes() == content
    assert saved_totals(folder.path, OWNER.run_id, ME).inner_steps == 20  # credit is not lost with it
    (said,) = [event.sentence() for event in seen]
    assert said.startswith("A checkpoint cannot be used: fragment-0000.safetensors has ")
    assert said.endswith(f"It is kept as {aside}; this peer continues from the previous checkpoint.")
    # No newer checkpoint takes its place, and the last good one is not the one that goes.
    save(folder, states_of(3))
    assert aside.exists()
    assert list_checkpoints(folder.path)[-1] == found.path


@pytest.mark.parametrize(("num_others", "said"), [(0, "training begins anew."), (2, "from the other members.")])
def test_without_a_whole_checkpoint_it_is_said_what_comes_of_the_model(
    two: tuple[CheckpointFolder, Path], num_others: int, said: str
) -> None:
    folder, seen = folder_at(two[0].path, replace(OWNER, manifest_hash=b"n" * 32)), list[Event]()
    assert asyncio.run(keeper_of(folder, runtimes_of(states_of(1)), seen).find(lambda: num_others)) is None
    assert [event.sentence().endswith(said) for event in seen] == [True, True]
    assert sorted(path.name for path in folder.path.iterdir()) == ["unusable-00000001", "unusable-00000002"]


def test_of_what_was_put_aside_the_newest_stay(tmp_path: Path) -> None:
    folder, moved = folder_at(tmp_path), []
    for fill in (1, 2, 3):
        save(folder, states_of(fill))
        moved.append(folder.put_aside(list_checkpoints(tmp_path)[0]).name)
    assert moved == ["unusable-00000001", "unusable-00000002", "unusable-00000003"]
    assert sorted(path.name for path in tmp_path.iterdir()) == moved[1:]


def test_a_file_that_changes_after_its_check_touches_nothing(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    save(folder, states_of(30))
    saved, state = newest(folder), states_of(1)[0]
    before = bits_of(state)
    path = next(saved.path.glob("fragment-0000*"))
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ValueError, match="does not match its SHA-256"):
        saved.restore(0, state)
    assert bits_of(state) == before
