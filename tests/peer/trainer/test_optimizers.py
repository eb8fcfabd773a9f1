"""Several optimizers of one module: when an inner step is over, and loops that are not what they seem."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dht.errors import LocalFault
from peer.trainer.loop.several_optimizers import MAX_STEPS_ALONE, Optimizers


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
    with pytest.raises(LocalFault, match=r"optimizer 1 \(AdamW\) has taken 100 steps and optimizer 0 \(SGD\) none"):
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


def test_torchs_muon_beside_adamw() -> None:
    module = module_of()
    matrices = [parameter for parameter in module.parameters() if parameter.dim() == 2]
    rest = [parameter for parameter in module.parameters() if parameter.dim() != 2]
    Optimizers([torch.optim.Muon(matrices), torch.optim.AdamW(rest)], module)
