"""Both sides of a checkpoint: the trainer's and the network's parts are of one moment, or there is none."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from averaging.outer.fragment_layout import build_layout
from peer.checkpoint.checked_files import open_new
from peer.checkpoint.checkpoint import (
    TRAINER_FACTS_NAME,
    TRAINER_TENSORS_NAME,
    list_checkpoints,
)
from peer.data_division.block_order import BlockOrder
from peer.events.peer_events import CheckpointFailed, CheckpointSaved
from peer.mailbox.mailbox import Mailbox
from peer.trainer.loop.mailbox_link import TrainerLink
from peer.trainer.loop.trainer_checkpoint import TrainerKeeper
from tests.kit.tiers import some
from tests.kit.trainer.checkpoint_peer import (
    BATCH,
    NUM_SAMPLES,
    Peer,
    muon_for_all,
    picture_of,
    resumed,
    run,
    saved_pair,
)

# --- one moment ---


@pytest.mark.parametrize(
    "make_optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Rprop, muon_for_all]
)
def test_a_resumed_trainer_takes_the_very_same_steps(tmp_path: Path, make_optimizer: Any) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path, make_optimizer)
        peer.begin()
        await peer.steps(7)
        await peer.leave()
        before = picture_of(peer)
        again = resumed(tmp_path, make_optimizer=make_optimizer)
        assert picture_of(again) == before
        state = torch.get_rng_state()
        peer.training.__enter__()
        await peer.steps(5)
        torch.set_rng_state(state)
        await again.steps(5)
        assert picture_of(again) == picture_of(peer)
        assert again.reads == peer.reads[7:]

    run(scene())


def test_nothing_is_lost_or_counted_twice_when_it_is_saved_in_mid_training(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        peer.begin()
        steps_meanwhile = []  # while it was written (unless the disk was faster); none of them is in it
        for rounds in range(3):
            await peer.steps(3 + rounds)
            await peer.save()
            assert isinstance(peer.seen[-1].fact, CheckpointSaved)
            assert max(float(one.abs().max()) for one in peer.sums()) < 1e-6
            again = resumed(tmp_path)
            assert max(float(one.abs().max()) for one in again.sums()) < 1e-6
            steps_meanwhile.append(peer.mailbox.trainer.inner_steps - again.mailbox.trainer.inner_steps)
            unsent = sum(account["num_tokens"] for account in again.link.accounts())
            absorbed = sum(fragment.state.unsent_tokens for fragment in again.fragments)
            assert unsent + absorbed == 3 * again.mailbox.trainer.tokens
        assert min(steps_meanwhile) >= 0 < max(steps_meanwhile)

    run(scene())


def test_work_sent_after_the_moment_waits_for_the_fragment_to_be_saved(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        peer.begin()
        await peer.steps(6)
        await peer.desk.take_work()
        async with peer.fragments[1].busy:
            saving = asyncio.create_task(peer.keeper.save())
            for _ in range(24):
                peer.step()
                await peer.desk.take_work()
                await asyncio.sleep(0.01)
            assert not saving.done()
            # Fragment 0 is saved and takes work again, 1 is not yet.
            moment = peer.mailbox.trainer.moment_sequence
            assert peer.mailbox.states[0].absorbed_sequence > moment
            assert peer.mailbox.states[1].absorbed_sequence <= moment
        await saving
        again = resumed(tmp_path)
        assert max(float(one.abs().max()) for one in again.sums()) < 1e-6

    run(scene())


def test_the_trainer_never_waits_for_the_network_side(tmp_path: Path) -> None:
    """The fragments cannot be saved for as long as one is busy; inner steps are taken all the same."""

    async def scene() -> None:
        peer = Peer(tmp_path)
        peer.begin()
        async with peer.fragments[0].busy:
            saving = asyncio.create_task(peer.keeper.save())
            await asyncio.sleep(0.01)
            for _ in range(40):
                peer.step()
                await asyncio.sleep(0)
            assert peer.mailbox.trainer.inner_steps == 40
            saving.cancel()

    run(scene())


def test_the_second_resume_reads_on_too_also_after_skipped_steps(tmp_path: Path) -> None:
    async def scene() -> None:
        whole: list[list[int]] = []
        peer = Peer(tmp_path)
        peer.begin()
        for _ in range(3):
            await peer.steps(2)
            peer.reads.append(peer.training.next_positions(BATCH, 0, NUM_SAMPLES).tolist())
            peer.training.skip_step()
            await peer.leave()
            whole += peer.reads
            peer = resumed(tmp_path)
            assert peer.mailbox.trainer.inner_steps == len(whole) * 2 // 3
        assert len({tuple(read) for read in whole}) == len(whole) == 9

    run(scene())


# --- a pair or nothing ---


def test_a_part_of_another_moment_makes_no_checkpoint(tmp_path: Path) -> None:
    peer = saved_pair(tmp_path / "one")
    first = list_checkpoints(peer.folder.path)[0]
    run(peer.save())
    second = list_checkpoints(peer.folder.path)[0]
    for name in (TRAINER_FACTS_NAME, TRAINER_TENSORS_NAME):
        shutil.copy(first / name, second / name)
    saved, complaints = peer.folder.newest()
    assert saved is not None
    assert saved.path == first
    assert TRAINER_FACTS_NAME in complaints[0].reason


@pytest.mark.parametrize("name", [TRAINER_FACTS_NAME, TRAINER_TENSORS_NAME])
def test_a_trainers_file_cut_anywhere_gives_the_pair_before(tmp_path: Path, name: str) -> None:
    peer = saved_pair(tmp_path, make_optimizer=torch.optim.SGD)
    run(peer.save())
    newer, older = list_checkpoints(tmp_path)
    whole = (newer / name).read_bytes()
    for length in reversed(some(range(0, len(whole), 19), one_in=7)):
        os.truncate(newer / name, length)
        with pytest.raises(ValueError, match=name):
            peer.folder._checked(newer)
    saved, complaints = peer.folder.newest()
    assert saved is not None
    assert saved.path == older
    assert name in complaints[0].reason
    (newer / name).unlink()
    assert peer.folder.newest()[0].path == older  # type: ignore[union-attr]
    (newer / name).write_bytes(whole)
    assert peer.folder.newest()[0].path == newer  # type: ignore[union-attr]


@pytest.mark.parametrize("num_files", [0, 1])
@pytest.mark.parametrize("whose", ["open_file", "network_open"])
def test_a_full_disk_on_either_side_is_told_once_and_leaves_the_pair_before(
    tmp_path: Path, whose: str, num_files: int
) -> None:
    room = [100]

    def open_file(path: Path) -> BinaryIO:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        room[0] -= 1
        return open_new(path)

    peer = saved_pair(tmp_path, **{whose: open_file})
    before = list_checkpoints(tmp_path)

    async def scene() -> None:
        for _ in range(3):
            room[0] = num_files
            await peer.save()
            assert list_checkpoints(tmp_path) == before
        assert set(tmp_path.iterdir()) == set(before)  # noqa: ASYNC240
        room[0] = 100
        await peer.steps(3)
        await peer.save()

    run(scene())
    assert [type(event.fact) for event in peer.seen] == [CheckpointSaved, CheckpointFailed, CheckpointSaved]
    assert "No space left on device" in peer.seen[1].sentence()
    again = resumed(tmp_path)
    assert max(float(one.abs().max()) for one in again.sums()) < 1e-6


def test_a_draft_is_only_deleted_when_the_trainer_has_done_with_it(tmp_path: Path) -> None:
    network_failed = threading.Event()
    found: list[bool] = []

    def network_open(path: Path) -> BinaryIO:
        network_failed.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def slow_open(path: Path) -> BinaryIO:
        network_failed.wait(10)
        time.sleep(0.2)
        found.append(path.parent.is_dir())
        return open_new(path)

    saved_pair(tmp_path, network_open=network_open, open_file=slow_open)
    assert found == [True, True]
    assert not list(tmp_path.iterdir())


def test_parameters_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    peer = saved_pair(tmp_path)
    before = list_checkpoints(tmp_path)
    with torch.no_grad():
        next(peer.module.parameters()).fill_(torch.nan)

    async def scene() -> None:
        saving = asyncio.create_task(peer.keeper.save())
        await asyncio.sleep(0.01)
        peer.trainer_keeper.after_step()
        await saving

    run(scene())
    assert list_checkpoints(tmp_path) == before
    assert "not finite" in peer.seen[-1].sentence()


def test_copies_that_wait_for_the_disk_are_bounded(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    peer.trainer_keeper._copy_bytes = 1
    peer.begin()
    run(peer.steps(5))
    run(peer.save())
    again = resumed(tmp_path)
    assert max(float(one.abs().max()) for one in again.sums()) < 1e-6


# --- what does not fit ---


def test_a_trainers_part_of_another_module_or_optimizer_changes_nothing(tmp_path: Path, caplog: Any) -> None:
    peer = saved_pair(tmp_path)
    number = peer.mailbox.trainer.moment
    other = Peer(tmp_path, torch.optim.SGD)
    assert other.trainer_keeper.restore(number) is not None
    assert "no state of an optimizer SGD" in caplog.text
    wider = torch.nn.Linear(6, 9)
    layout = build_layout([(name, tuple(value.shape)) for name, value in wider.named_parameters()], 2)
    link = TrainerLink(
        wider.named_parameters(), layout, Mailbox.in_process(layout.sizes), sync_every=4, clock=lambda: 0.0, pause=None
    )
    optimizer = torch.optim.AdamW(wider.parameters())
    before = [value.clone() for value in wider.parameters()]
    keeper = TrainerKeeper(tmp_path, link, wider, [optimizer], lambda: 0, BlockOrder(0, "me"))
    assert keeper.restore(number) is None
    assert all(torch.equal(old, new) for old, new in zip(before, wider.parameters(), strict=True))
    assert not optimizer.state
    assert "has no live.weight" in caplog.text


def test_an_optimizer_that_json_cannot_hold_is_left_out_with_a_sentence(tmp_path: Path, caplog: Any) -> None:
    class Odd(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "odd": object()}

    saved_pair(tmp_path, make_optimizer=Odd)
    assert caplog.text.count("optimizer.odd is a object") == 1
    again = Peer(tmp_path, Odd)
    assert again.trainer_keeper.restore(1) is not None


def test_a_moment_that_an_interrupt_broke_off_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        peer.begin()
        await peer.steps(5)
        copy, left = peer.trainer_keeper._kept.copy_of, [3]

        def copy_of(held: Any) -> torch.Tensor:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return copy(held)

        monkeypatch.setattr(peer.trainer_keeper._kept, "copy_of", copy_of)
        saving = asyncio.create_task(peer.keeper.save(is_last=True))
        num_interrupts = 0
        while not saving.done():
            try:
                peer.training.idle()
            except KeyboardInterrupt:
                num_interrupts += 1
            await asyncio.sleep(0.005)
        await saving
        assert num_interrupts == 1
        assert isinstance(peer.seen[-1].fact, CheckpointSaved)
        before = picture_of(peer)
        assert picture_of(resumed(tmp_path)) == before

    run(scene())
