"""Several optimizers of one module: when an inner step is over, and loops that are not what they seem."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dht.ground.errors import LocalFault, UsageFault
from peer.trainer.loop import local_training
from peer.trainer.loop.local_training import FEW_CALLS, MANY_CALLS, PATIENCE_SECONDS, LocalTraining
from peer.trainer.loop.several_optimizers import MAX_STEPS_ALONE, Optimizers
from tests.kit.clock import Clock
from tests.kit.trainer.trainer_link import link_of


def module_of() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))


def pair_of(module: nn.Sequential) -> list[torch.optim.Optimizer]:
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return [torch.optim.SGD(module[0].parameters(), lr=0.1), torch.optim.AdamW(module[1].parameters())]


def test_a_step_is_counted_when_each_has_stepped_whatever_their_order() -> None:
    module = module_of()
    pair = pair_of(module)
    begun: list[int] = []
    counted: list[int] = []
    optimizers = Optimizers(pair, module)
    optimizers.hook(lambda: begun.append(1), lambda: counted.append(1))
    for order in ([0, 1], [1, 0], [0, 0, 0, 1]):
        for number in order[:-1]:
            pair[number].step()
        before = len(counted)
        pair[order[-1]].step()
        assert len(counted) == before + 1
    optimizers.unhook()
    pair[0].step()
    pair[1].step()
    assert len(counted) == 3
    assert len(begun) == 8


def test_a_loop_that_steps_only_one_of_them_is_told() -> None:
    module = module_of()
    pair = pair_of(module)
    Optimizers(pair, module).hook(lambda: None, lambda: None)
    for _ in range(MAX_STEPS_ALONE - 1):
        pair[1].step()
    with pytest.raises(LocalFault, match=r"optimizer 1 \(AdamW\) has taken 1000 steps and optimizer 0 \(SGD\) none"):
        pair[1].step()


def test_together_they_hold_all_parameters_and_each_of_them_some() -> None:
    module = module_of()
    first, second = pair_of(module)
    Optimizers((first, second), module)
    with pytest.raises(LocalFault, match=r"the optimizer does not have parameter '1\.weight'"):
        Optimizers(first, module)
    elsewhere = torch.optim.SGD(module_of().parameters(), lr=0.1)
    with pytest.raises(LocalFault, match=r"the 2 optimizers together do not have parameter '1\.weight'"):
        Optimizers([first, torch.optim.SGD([module[1].bias], lr=0.1)], module)
    with pytest.raises(LocalFault, match=r"optimizer 2 \(SGD\) has no trained parameter"):
        Optimizers([first, second, elsewhere], module)
    with pytest.raises(LocalFault, match="one of them twice"):
        Optimizers([first, first, second], module)
    with pytest.raises(LocalFault, match=r"optimizers 0 and 2 both have parameter '[01]\.weight'"):
        Optimizers([first, second, torch.optim.SGD(module.parameters(), lr=0.1)], module)
    with pytest.raises(LocalFault, match="no optimizer"):
        Optimizers([], module)


MAX_CALLS = MANY_CALLS + 50


@pytest.fixture
def _few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_training, "MAX_CALLS", MAX_CALLS)


class Loop:
    """A loop of one's own that joined with `joined`, on a clock that stands still; gradients cost nothing."""

    def __init__(self, module: nn.Module, joined: torch.optim.Optimizer | list[torch.optim.Optimizer]) -> None:
        self.module, self.clock = module, Clock(1000.0)
        self.link = link_of(module, sync_every=10_000, clock=self.clock)
        self.training = LocalTraining(module, joined, self.link, seed=1, peer_id="me").__enter__()

    def step(self, optimizer: torch.optim.Optimizer, micro_batches: int = 1, seconds: float = 0.0) -> None:
        optimizer.zero_grad()
        for _ in range(micro_batches):
            self.training.next_positions(2, 0, 100_000)
            for parameter in self.module.parameters():
                parameter.grad = torch.ones_like(parameter)
            self.training.report(1.0)
            self.clock.now += seconds
        optimizer.step()

    def steps(self, optimizer: torch.optim.Optimizer, count: int, seconds: float = 0.0) -> None:
        for _ in range(count):
            self.step(optimizer, seconds=seconds)


@pytest.mark.usefixtures("_few_calls")
@pytest.mark.parametrize(("first", "seconds"), [(1, 0.0), (0, 3.0), (30, 3.0)])
def test_a_loop_that_makes_its_optimizer_anew_is_told(first: int, seconds: float) -> None:
    module = module_of()
    optimizer = torch.optim.AdamW(module.parameters())
    loop = Loop(module, optimizer)
    loop.steps(optimizer, first)
    another = torch.optim.SGD(module.parameters(), 0.01)
    most = int(max(FEW_CALLS, PATIENCE_SECONDS / seconds)) if seconds else MAX_CALLS // 2
    with pytest.raises(UsageFault, match=r"without a step of the optimizer that join\(\) was given"):
        loop.steps(another, 1 + most, seconds)
    assert loop.link.inner_steps == first


@pytest.mark.usefixtures("_few_calls")
def test_a_loop_that_accumulates_for_minutes_is_not_disturbed() -> None:
    module = module_of()
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    loop = Loop(module, optimizer)
    for _ in range(2):
        loop.step(optimizer, MAX_CALLS, seconds=1.0)
    assert loop.link.inner_steps == 2


def test_a_critic_with_many_steps_of_its_own_is_not_disturbed() -> None:
    module = module_of()
    critic, generator = pair_of(module)
    loop = Loop(module, [critic, generator])
    for _ in range(3):
        loop.steps(critic, 40, seconds=2.0)
        loop.step(generator)
    assert loop.link.inner_steps == 3
