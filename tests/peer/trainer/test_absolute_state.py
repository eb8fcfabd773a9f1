"""Optimizers that keep values of parameters: what the others did is not taken back, and not sent as own work."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from peer.mailbox.slots import MergeKind
from peer.trainer.loop.absolute_state import AbsoluteState
from peer.trainer.loop.local_training import LocalTraining
from tests.kit.trainer.checkpoint_peer import resumed, run, saved_pair
from tests.kit.trainer.trainer_link import flat, fragments_joined, link_of, module_of, unsent_work

OTHERS = 0.01


class Lookahead(torch.optim.Optimizer):
    """As timm's: without `Optimizer.__init__`, slow weights in the state of the one inside."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._base_optimizer = inner
        self.param_groups = inner.param_groups
        self.defaults = inner.defaults
        self.state = defaultdict(dict)
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        self.num_steps = 0

    def slow_of(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self._base_optimizer.state[parameter]
        if "lookahead_slow_buff" not in state:
            state["lookahead_slow_buff"] = parameter.detach().clone()
        slow: torch.Tensor = state["lookahead_slow_buff"]
        return slow

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._base_optimizer.step(closure)
        self.num_steps += 1
        for parameter in [one for group in self.param_groups for one in group["params"]]:
            slow = self.slow_of(parameter)
            if self.num_steps % 6 == 0:
                slow.add_(parameter - slow, alpha=0.5)
                parameter.copy_(slow)


class OwnState(Lookahead):
    """Keeps them in a state of its own."""

    def slow_of(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        return state.setdefault("slow_param", parameter.detach().clone())


class Listed(Lookahead):
    """Keeps them in lists beside the groups, from its first moment on."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner)
        self.slow_weights = [[one.detach().clone() for one in group["params"]] for group in self.param_groups]

    def slow_of(self, parameter: torch.Tensor) -> torch.Tensor:
        pairs = zip(self.param_groups, self.slow_weights, strict=True)
        both = [pair for group, slow in pairs for pair in zip(group["params"], slow, strict=True)]
        return next(slow for one, slow in both if one is parameter)


class Masters(torch.optim.Optimizer):
    """Steps float32 copies and writes them into the parameters."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in [one for group in self.param_groups for one in group["params"]]:
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
                state["master_param"] = parameter.detach().float().clone()
            state["exp_avg"].mul_(0.9).add_(parameter.grad.float(), alpha=0.1)
            state["master_param"].sub_(0.01 * state["exp_avg"])
            parameter.copy_(state["master_param"])


class ScheduleFree(torch.optim.Optimizer):
    """Of the parameters y, the iterate z that gradients move; y = mean of z with the average of all z."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            for y in group["params"]:
                state = self.state[y]
                z = state.setdefault("z", y.detach().clone())
                y.lerp_(z, 1 / (group["k"] + 1))
                y.sub_(0.1 * group["lr"] * y.grad)
                z.sub_(group["lr"] * y.grad)


MAKERS: dict[str, Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, weight_decay=0.0),
    "Lookahead": lambda parameters: Lookahead(torch.optim.SGD(parameters, 0.1, momentum=0.9)),
    "slow weights in an own state": lambda parameters: OwnState(torch.optim.SGD(parameters, 0.1)),
    "slow weights in lists": lambda parameters: Listed(torch.optim.SGD(parameters, 0.1)),
    "masters": Masters,
    "schedule-free": ScheduleFree,
}


def training_of(module: nn.Module, optimizer: Any, **options: Any) -> LocalTraining:
    link = link_of(module, sync_every=10_000, **options)
    return LocalTraining(module, optimizer, link, seed=1, peer_id="me").__enter__()


def step(optimizers: Sequence[torch.optim.Optimizer], count: int) -> None:
    for _ in range(count):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()


def deliver(training: LocalTraining, kind: MergeKind) -> None:
    """All values move by `OTHERS`."""
    link = training.link
    link.poll()
    for fragment in link.layout.fragments:
        values = np.full(fragment.num_values, OTHERS, np.float32)
        if kind is not MergeKind.ADD:
            live = torch.empty(fragment.num_values)
            link.ranks.gather_live(link.portion, fragment, live)
            values += (live + unsent_work(link, fragment.index)).numpy()
        if not link.mailbox.inbox.try_post(kind, fragment.index, values, version=1):
            link.poll()
            assert link.mailbox.inbox.try_post(kind, fragment.index, values, version=1)


@pytest.mark.parametrize("kind", [MergeKind.ADD, MergeKind.REBASE, MergeKind.SET])
@pytest.mark.parametrize("name", MAKERS)
def test_a_merge_of_others_is_not_sent_back(name: str, kind: MergeKind) -> None:
    module = module_of()
    optimizer = MAKERS[name](list(module.parameters()))
    training = training_of(module, optimizer)
    step([optimizer], 7)
    before = flat(module)
    deliver(training, kind)
    step([optimizer], 12)
    assert fragments_joined(training.link, partial(unsent_work, training.link)).abs().max() < 1e-6
    torch.testing.assert_close(flat(module), before + OTHERS, rtol=0, atol=1e-6)


def test_groups_several_optimizers_and_short_formats() -> None:
    module = module_of(torch.bfloat16)
    first, second, third, fourth = module.parameters()
    groups: Any = [{"params": [first]}, {"params": [third]}]
    optimizers = [Masters(groups), Listed(torch.optim.SGD([second, fourth], 0.1))]
    training = training_of(module, optimizers, num_fragments=4)
    step(optimizers, 3)
    before = flat(module)
    deliver(training, MergeKind.ADD)
    step(optimizers, 12)
    rounding = fragments_joined(training.link, partial(unsent_work, training.link))
    assert rounding.abs().max() < OTHERS / 5
    assert (flat(module) - before - OTHERS).abs().max() < OTHERS / 2


def test_moments_and_counts_are_no_copies() -> None:
    module = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(1.0)), "weight": nn.Parameter(torch.ones(3))})
    optimizer = torch.optim.AdamW(module.parameters(), amsgrad=True)
    absolute = AbsoluteState([optimizer], [optimizer])
    step([optimizer], 1)
    absolute.look()
    assert absolute.names == []
    assert [absolute.beside(parameter) for parameter in module.parameters()] == [[], []]


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda parameters, lr: Masters(parameters),
        lambda parameters, lr: ScheduleFree(parameters),
        lambda parameters, lr: Lookahead(torch.optim.SGD(parameters, lr)),
        lambda parameters, lr: Listed(torch.optim.SGD(parameters, lr)),
        lambda parameters, lr: OwnState(torch.optim.SGD(parameters, lr)),
    ],
)
def test_a_later_session_still_moves_them(tmp_path: Path, make_optimizer: Any) -> None:
    saved_pair(tmp_path, make_optimizer=make_optimizer)
    work = []
    for is_merging in (False, True):
        peer = resumed(tmp_path, make_optimizer=make_optimizer)
        if is_merging:
            deliver(peer.training, MergeKind.REBASE)
        step([peer.optimizer], 40)
        work.append(fragments_joined(peer.link, partial(unsent_work, peer.link)))
    assert work[0].abs().max() > 0  # what was under way at the end of the first session
    torch.testing.assert_close(work[1], work[0], rtol=0, atol=OTHERS / 1000)


def test_copies_that_have_gone_far_are_known_again(tmp_path: Path) -> None:
    def make_optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return ScheduleFree(parameters, lr)

    peer = saved_pair(tmp_path, make_optimizer=make_optimizer)
    for values in peer.optimizer.state.values():
        values["z"].add_(10.0)
    run(peer.save())
    assert resumed(tmp_path, make_optimizer=make_optimizer).training._absolute.names == ["0.state.z"]


def test_a_moment_is_no_copy_where_the_gradient_is_the_parameter() -> None:
    module = module_of()
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
    absolute = AbsoluteState([optimizer], [optimizer])
    for parameter in module.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    absolute.look()
    assert absolute.names == []


def test_copies_that_are_far_away_at_the_start_are_named(caplog: pytest.LogCaptureFixture) -> None:
    module = module_of()
    optimizer = ScheduleFree(module.parameters())
    step([optimizer], 1)
    for values in optimizer.state.values():
        values["z"].add_(10.0)
    training_of(module, optimizer)
    assert "the optimizer ScheduleFree has 'z'" in caplog.text
