"""What a loop has beside one optimizer: several of them, schedulers, loaders. All of it comes back, or a sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR

from dht.ground.errors import UsageFault
from peer.checkpoint.checkpoint import TRAINER_FACTS_NAME, TRAINER_TENSORS_NAME, checkpoint_path
from peer.trainer.loop.checkpoint_portion import check_state, specs_of, warn_of_schedule
from peer.trainer.loop.checkpoint_values import joined, open_tensors, split, write_tensors
from tests.kit.trainer.checkpoint_peer import INPUTS, NUM_SAMPLES, Peer, picture_of, resumed, run


class Pair(torch.optim.Optimizer):
    """Momentum for the matrices, AdamW for the rest: a loop's `optimizer.step()` is that of both."""

    def __init__(self, parameters: Any, lr: float) -> None:
        held = list(parameters)
        self.both: Sequence[torch.optim.Optimizer] = (
            torch.optim.SGD([one for one in held if one.dim() == 2], lr=lr, momentum=0.9),
            torch.optim.AdamW([one for one in held if one.dim() != 2], lr=lr),
        )


class PairPeer(Peer):
    def __init__(self, folder: Path, **options: Any) -> None:
        self.pair: Any = None

        def make(parameters: Any, lr: float) -> Any:
            self.pair = Pair(parameters, lr)
            return list(self.pair.both)

        super().__init__(folder, make, **options)

    @property
    def optimizer(self) -> Any:
        return _Stepper(self.pair.both)

    @optimizer.setter
    def optimizer(self, optimizers: Any) -> None:
        self.given = optimizers


class _Stepper(list[Any]):
    def zero_grad(self) -> None:
        for one in self:
            one.zero_grad()

    def step(self) -> None:
        for one in self:
            one.step()


class Counter:
    """A loader of somebody's own."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"epoch": 0}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "epoch" not in state:
            raise KeyError("epoch")
        self.state = state


def states_of(peer: Any) -> list[Any]:
    return [one.state_dict() for one in peer.pair.both]


def test_several_optimizers_come_back_with_their_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        peer = PairPeer(tmp_path)
        peer.begin()
        await peer.steps(7)
        assert peer.link.inner_steps == 7
        await peer.leave()
        monkeypatch.setattr("tests.kit.trainer.checkpoint_peer.Peer", PairPeer)
        again: Any = resumed(tmp_path)
        for before, after in zip(states_of(peer), states_of(again), strict=True):
            assert before["state"].keys() == after["state"].keys() != set()
            torch.testing.assert_close(before, after, rtol=0, atol=0)

    run(scene())


def test_a_schedule_and_a_loader_go_on(tmp_path: Path) -> None:
    async def scene() -> None:
        loader = Counter()
        state: dict[str, Any] = {"loader": loader}
        peer = Peer(tmp_path, torch.optim.SGD, state=state)
        scheduler = CosineAnnealingLR(peer.optimizer, 100)
        peer.trainer_keeper._kept._state["scheduler"] = scheduler
        peer.begin()
        for _ in range(30):
            await peer.steps(1)
            scheduler.step()
        loader.state = {"epoch": 3, "rng": np.arange(5, dtype=np.uint32), "seen": (1, 2), "raw": b"\0x", "best": np.inf}
        rate = scheduler.get_last_lr()
        await peer.leave()
        loader_again = Counter()

        class Scheduled(torch.optim.SGD):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                held["scheduler"] = CosineAnnealingLR(self, 100)

        held: dict[str, Any] = {"loader": loader_again}
        Scheduled.__name__ = "SGD"
        again = resumed(tmp_path, make_optimizer=Scheduled, state=held)
        assert held["scheduler"].last_epoch == 30
        assert held["scheduler"].get_last_lr() == rate == [group["lr"] for group in again.optimizer.param_groups]
        assert loader_again.state["rng"].dtype == np.uint32
        assert loader_again.state.pop("rng").tolist() == [0, 1, 2, 3, 4]
        assert loader_again.state == {"epoch": 3, "seen": (1, 2), "raw": b"\0x", "best": np.inf}

    run(scene())


class Batches(Counter):
    """A loader that knows what it has given."""

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            self.state = {"epoch": self.state["epoch"] + 1}
            yield [self.state["epoch"] % NUM_SAMPLES, 0, 1]


def test_after_a_kill_module_optimizer_scheduler_and_loader_are_of_the_same_step(tmp_path: Path) -> None:
    """A loop reads, steps the optimizer, then the scheduler; the checkpoint is made in the middle of it."""

    def scheduled(state: dict[str, Any]) -> Any:
        def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
            optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
            state["scheduler"] = ExponentialLR(optimizer, 0.9)
            return optimizer

        return {"make_optimizer": make, "state": state}

    async def scene() -> None:
        state: dict[str, Any] = {"loader": Batches()}
        peer = Peer(tmp_path, **scheduled(state))
        peer.begin()
        after = [picture_of(peer)]
        rates = [0.01]
        saving = None
        for batch in state["loader"]:
            peer.optimizer.zero_grad()
            peer.module(INPUTS[batch]).square().sum().backward()
            peer.optimizer.step()
            after.append(picture_of(peer))
            state["scheduler"].step()
            rates += [group["lr"] for group in peer.optimizer.param_groups]
            await asyncio.sleep(0.01)
            if len(after) == 4:
                saving = asyncio.create_task(peer.keeper.save())
            if saving is not None and saving.done():
                break
        held: dict[str, Any] = {"loader": Batches()}
        again = resumed(tmp_path, **scheduled(held))
        steps = again.link.inner_steps
        assert 4 <= steps < len(after)
        assert picture_of(again) == replace(after[steps], counts=picture_of(again).counts)
        assert held["loader"].state == {"epoch": steps}
        assert held["scheduler"].last_epoch == steps
        assert again.optimizer.param_groups[0]["lr"] == rates[steps]

    run(scene())


def test_a_state_that_is_missing_or_refused_leaves_everything_else(tmp_path: Path, caplog: Any) -> None:
    async def scene() -> None:
        one, other = Counter(), Counter()
        one.state = {"no": 1}
        peer = Peer(tmp_path, state={"one": one})
        peer.begin()
        await peer.steps(3)
        await peer.leave()
        again = resumed(tmp_path, state={"one": other, "two": Counter()})
        assert again.link.inner_steps == 3
        assert other.state == {"epoch": 0}
        assert "'one' rejects its saved state ('epoch')" in caplog.text
        assert "no state of 'two'" in caplog.text

    run(scene())


def test_what_becomes_impossible_to_keep_is_left_out_with_one_warning(tmp_path: Path, caplog: Any) -> None:
    async def scene() -> None:
        odd = Counter()
        peer = Peer(tmp_path, state={"odd": odd})
        peer.begin()
        odd.state = {"epoch": 1, "hook": print}
        await peer.save()
        await peer.save()
        number = peer.mailbox.trainer.moment
        assert caplog.text.count("state.odd.hook is a builtin_function_or_method") == 1
        facts = json.loads((checkpoint_path(tmp_path, number) / TRAINER_FACTS_NAME).read_text())
        assert facts["content"]["state"] == {}
        assert (checkpoint_path(tmp_path, number) / TRAINER_TENSORS_NAME).exists()

    run(scene())


@pytest.mark.parametrize(
    ("stateful", "said"),
    [
        (3, r"state\['x'\] is a int; expected an object with state_dict"),
        (type("Odd", (Counter,), {"state_dict": lambda self: {"a": [print]}})(), r"state\.x\.a\.0 is a builtin"),
        (type("Odd", (Counter,), {"state_dict": lambda self: {"a": np.array([None])}})(), r"state\.x\.a is an array"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_first_step(stateful: Any, said: str) -> None:
    with pytest.raises(UsageFault, match=said):
        check_state({"x": stateful})


def test_a_schedule_that_nobody_keeps_is_told(caplog: Any) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    warn_of_schedule({}, [optimizer])
    scheduler = CosineAnnealingLR(optimizer, 10)
    warn_of_schedule({"scheduler": scheduler}, [optimizer])
    accelerated = SimpleNamespace(scheduler=scheduler, state_dict=scheduler.state_dict, load_state_dict=print)
    warn_of_schedule({"scheduler": accelerated}, [optimizer])
    assert not caplog.text
    warn_of_schedule({}, [optimizer])
    assert 'state={"scheduler": scheduler}' in caplog.text


@pytest.mark.parametrize("follows_run", [False, True])
def test_the_first_step_warns_of_it_once_unless_the_run_says_the_rate(
    tmp_path: Path, follows_run: bool, caplog: Any
) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path, torch.optim.SGD)
        CosineAnnealingLR(peer.optimizer, 100)
        peer.begin()
        assert "scheduler" not in caplog.text
        if follows_run:
            peer.training.follow_run()
        await peer.steps(3)
        assert caplog.text.count("scheduler that checkpoints do not contain") == int(not follows_run)

    run(scene())


@pytest.mark.parametrize("odd", [{"pickle": "x"}, {"array": ["a", "O", [1]]}])
def test_a_file_never_makes_an_object(tmp_path: Path, odd: Any) -> None:
    tensors: dict[str, Any] = {}
    split({"a": torch.zeros(8, dtype=torch.uint8)}, "s", tensors)
    write_tensors(tmp_path / "t", specs_of(tensors), tensors.values())
    with pytest.raises(ValueError, match="it contains a"):
        joined(odd, open_tensors(tmp_path / "t"), keep=True)
