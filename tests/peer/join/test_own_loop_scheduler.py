"""Schedulers by the run's clock: base rate times share, set after each step, nothing left behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dht.ground.errors import UsageFault
from peer.join.own_loop_scheduler import RunSchedulers, warm_up_share


def stepped(optimizer: torch.optim.Optimizer) -> list[float]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return [float(group["lr"]) for group in optimizer.param_groups]


def test_rates_follow_the_share_by_themselves_and_a_second_call_changes_nothing() -> None:
    weight, bias = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [weight], "lr": 0.5}, {"params": [bias]}], lr=0.25)
    share = [0.5]
    schedulers = RunSchedulers([optimizer], lambda: share[0])
    scheduler = schedulers.of(optimizer)
    assert schedulers.of(optimizer) is scheduler
    # Before the first step, too.
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.125]
    share[0] = 0.1
    assert stepped(optimizer) == [0.05, 0.025]
    scheduler.step()
    assert scheduler.get_last_lr() == [0.05, 0.025]
    scheduler.load_state_dict(scheduler.state_dict())
    schedulers.close()
    assert stepped(optimizer) == [0.5, 0.25]
    assert all("initial_lr" not in group for group in optimizer.param_groups)


def test_the_base_is_what_was_given_and_not_what_a_checkpoint_brings_back() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=torch.tensor(0.5))
    schedulers = RunSchedulers([optimizer], lambda: 0.5)
    saved = optimizer.state_dict()
    saved["param_groups"][0] |= {"lr": torch.tensor(0.01), "initial_lr": 0.2}
    optimizer.load_state_dict(saved)
    schedulers.of(optimizer)
    assert stepped(optimizer) == [0.25]


def test_an_optimizer_that_was_not_given_is_refused() -> None:
    schedulers = RunSchedulers([torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5)], lambda: 1.0)
    with pytest.raises(UsageFault, match=r"this AdamW was not passed to join\(\); expected one of the 1"):
        schedulers.of(torch.optim.AdamW([nn.Parameter(torch.ones(2))]))


def test_new_moments_warm_up_and_restored_ones_do_not() -> None:
    assert [warm_up_share(age, 4) for age in (0, 1, 3, 4, 400)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert warm_up_share(0, 0) == 1.0
