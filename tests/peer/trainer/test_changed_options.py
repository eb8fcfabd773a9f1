"""What an owner changes between two sessions holds; all else goes on from the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from peer.trainer.loop.optimizer_options import as_plain, options_of, take_changed
from tests.kit.trainer.checkpoint_peer import Net, muon_for_all, resumed, run, saved_pair


def adamw(lr_factor: float = 1.0, **options: Any) -> Any:
    return lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr_factor * lr, **options)


def test_a_lower_learning_rate_holds_after_the_way_back(tmp_path: Path) -> None:
    """As the error about parameters that are not finite advises."""
    before = saved_pair(tmp_path)
    again = resumed(tmp_path, make_optimizer=adamw(0.1))
    assert again.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    state = again.optimizer.state_dict()["state"]
    assert state.keys() == before.optimizer.state_dict()["state"].keys() != set()  # Adam's moments came back


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"weight_decay": 0.3}, {"weight_decay": 0.3}),
        ({"betas": (0.5, 0.6)}, {"betas": (0.5, 0.6)}),
        ({"eps": 1e-4, "amsgrad": False}, {"eps": 1e-4}),
        ({"maximize": True}, {"maximize": True}),
    ],
)
def test_any_option_of_a_parameter_group_does(tmp_path: Path, options: Any, changed: Any) -> None:
    saved = saved_pair(tmp_path).optimizer.param_groups[0]
    again = resumed(tmp_path, make_optimizer=adamw(**options)).optimizer.param_groups[0]
    differing = {name: again[name] for name in saved if name != "params" and again[name] != saved[name]}
    assert differing == changed


def test_a_schedule_goes_on_where_it_was_unless_its_start_changed(tmp_path: Path) -> None:
    def with_schedule(lr_factor: float) -> Any:
        return lambda parameters, lr: make(parameters, lr_factor * lr)

    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters, lr=lr)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return optimizer

    peer = saved_pair(tmp_path, make_optimizer=with_schedule(1.0))
    for group in peer.optimizer.param_groups:
        group["lr"] = 0.0042  # as its schedule did by then

    async def save() -> None:
        await peer.save()

    run(save())
    assert resumed(tmp_path, make_optimizer=with_schedule(1.0)).optimizer.param_groups[0]["lr"] == 0.0042
    lowered = resumed(tmp_path, make_optimizer=with_schedule(0.5)).optimizer.param_groups[0]
    assert (lowered["lr"], lowered["initial_lr"]) == (0.005, 0.005)


def test_the_choice_of_the_session_before_counts_and_not_the_first(tmp_path: Path) -> None:
    saved_pair(tmp_path)
    lowered = resumed(tmp_path, make_optimizer=adamw(0.1))

    async def save() -> None:
        await lowered.steps(3)
        await lowered.save()

    run(save())
    assert resumed(tmp_path, make_optimizer=adamw(0.1)).optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    assert resumed(tmp_path).optimizer.param_groups[0]["lr"] == 0.01


def test_groups_and_tensors_are_told_apart() -> None:
    def make(lr: float, momentum: float) -> torch.optim.Optimizer:
        net = Net()
        optimizer = torch.optim.AdamW(net.body[0].parameters(), lr=torch.tensor(lr), capturable=False, foreach=False)
        optimizer.add_param_group({"params": list(net.body[3].parameters()), "lr": 0.5, "betas": (momentum, 0.9)})
        return optimizer

    before = as_plain(options_of(make(0.25, 0.8)))
    optimizer = make(0.125, 0.7)
    given = options_of(optimizer)
    for group in optimizer.param_groups:
        group["lr"], group["betas"] = 0.0, (0.0, 0.0)
    changes = take_changed(optimizer, given, before)
    assert changes == [
        "lr 0.125 in place of 0.25 in parameter group 0",
        "betas [0.7, 0.9] in place of [0.8, 0.9] in parameter group 1",
    ]
    assert float(optimizer.param_groups[0]["lr"]) == 0.125
    assert optimizer.param_groups[1]["lr"] == 0.0
    assert optimizer.param_groups[1]["betas"] == (0.7, 0.9)


@pytest.mark.parametrize("before", [None, 3, "x", [], [None, 4], [[]], {"lr": 1}])
def test_what_an_earlier_version_or_a_damaged_file_says_changes_nothing(before: Any) -> None:
    optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
    assert take_changed(optimizer, options_of(torch.optim.SGD(Net().parameters(), lr=0.2)), before) == []
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_muon_too(tmp_path: Path) -> None:
    saved_pair(tmp_path, make_optimizer=muon_for_all)
    again = resumed(tmp_path, make_optimizer=lambda parameters, lr: muon_for_all(parameters, 0.5 * lr))
    fresh = muon_for_all(Net().parameters(), 0.005)
    assert [group["lr"] for group in again.optimizer.param_groups] == [group["lr"] for group in fresh.param_groups]
