"""Several optimizers of one module: when an inner step is over, and loops that are not what they seem."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dht.ground.errors import LocalFault, UsageFault
from peer.trainer.loop.local_training import FEW_CALLS, MAX_CALLS, PATIENCE_SECONDS, LocalTraining
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
    with pytest.raises(LocalFault, match=r"the optimizer does not hold parameter '1\.weight'"):
        Optimizers(first, module)
    elsewhere = torch.optim.SGD(module_of().parameters(), lr=0.1)
    with pytest.raises(LocalFault, match=r"the 2 optimizers together do not hold parameter '1\.weight'"):
        Optimizers([first, torch.optim.SGD([module[1].bias], lr=0.1)], module)
    with pytest.raises(LocalFault, match=r"optimizer 2 \(SGD\) holds no trained parameter"):
        Optimizers([first, second, elsewhere], module)
    with pytest.raises(LocalFault, match="one of them twice"):
        Optimizers([first, first, second], module)
    with pytest.raises(LocalFault, match=r"optimizers 0 and 2 both hold parameter '[01]\.weight'"):
        Optimizers([first, second, torch.optim.SGD(module.parameters(), lr=0.1)], module)
    with pytest.raises(LocalFault, match="no optimizer"):
        Optimizers([], module)


def training_of(module: nn.Module, optimizer: torch.optim.Optimizer, clock: Clock) -> LocalTraining:
    link = link_of(module, sync_every=10_000, clock=clock)
    return LocalTraining(module, optimizer, link, seed=1, peer_id="me").__enter__()


def one_step(
    training: LocalTraining, module: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int = 1
) -> None:
    """As own loops do it."""
    optimizer.zero_grad()
    for _ in range(micro_batches):
        training.next_positions(2, 0, 100)
        module(torch.ones(2, 3)).square().mean().backward()
        training.report(1.0)
    optimizer.step()


def steps_until_told(training: LocalTraining, clock: Clock, seconds: float, step: Callable[[], object]) -> int:
    """How many steps a loop takes until a sentence says that none of them was counted."""
    for number in range(2 * MAX_CALLS):
        try:
            step()
        except UsageFault as fault:
            assert "without a step of the optimizer that join() was given" in str(fault)  # noqa: PT017
            return number
        clock.now += seconds
    raise AssertionError("not a word")


@pytest.mark.parametrize(("first", "seconds"), [(1, 0.0), (0, 3.0), (30, 3.0)])
def test_a_loop_that_makes_its_optimizer_anew_is_told(first: int, seconds: float) -> None:
    module, clock = module_of(), Clock(1000.0)
    optimizer = torch.optim.AdamW(module.parameters())
    training = training_of(module, optimizer, clock)
    for _ in range(first):
        one_step(training, module, optimizer)
    another = torch.optim.SGD(module.parameters(), 0.01)
    num_steps = steps_until_told(training, clock, seconds, lambda: one_step(training, module, another))
    assert training.link.inner_steps == first
    assert num_steps <= (max(FEW_CALLS, PATIENCE_SECONDS / seconds) if seconds else MAX_CALLS / 2)


def test_a_loop_that_accumulates_for_minutes_is_not_disturbed() -> None:
    module, clock = module_of(), Clock(1000.0)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    training = training_of(module, optimizer, clock)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(MAX_CALLS):
            training.next_positions(2, 0, 100)
            module(torch.ones(2, 3)).square().mean().backward()
            training.report(1.0)
            clock.now += 1.0
        optimizer.step()
    assert training.link.inner_steps == 2


def test_a_critic_with_many_steps_of_its_own_is_not_disturbed() -> None:
    module, clock = module_of(), Clock(1000.0)
    critic, generator = pair_of(module)
    link = link_of(module, sync_every=10_000, clock=clock)
    training = LocalTraining(module, [critic, generator], link, seed=1, peer_id="me").__enter__()
    for _ in range(3):
        for _ in range(100):
            one_step(training, module, critic)
            clock.now += 2.0
        one_step(training, module, generator)
    assert link.inner_steps == 3
