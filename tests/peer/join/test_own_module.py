"""Runs of own modules: what their manifest says, and what a session refuses."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.config.manifest import RunManifest
from peer.config.model_shapes import (
    averaged_parts,
    layout_digest_of,
    layout_of,
    seed_sizes,
    shared_buffers,
    trained_parameters,
)
from peer.config.peer_config import ChoiceMark, PeerConfig, choices_with
from peer.events.peer_events import Event, SwarmContact
from peer.files.checked_folder import checked_folder
from peer.files.layout_file import named_shapes
from peer.join.run_connection import fitting_layout
from peer.join.session import NOT_OF_AN_OWN_LOOP, Swarm, join
from peer.owner.custom_module import check_frozen_digest
from peer.owner.new_run import ROBUST_COMBINE, create_custom_run
from peer.trainer.loop.several_optimizers import innermost
from tests.kit.trainer.lone_swarm import LoneSwarm

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_loop.py"


def small_module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def frozen_on_meta() -> nn.Linear:
    return nn.Linear(3, 3, device="meta").requires_grad_(False)


def shapes_of(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(tensor.shape)) for name, tensor in trained_parameters(module)]


def test_a_custom_run_says_what_is_trained_and_any_seed_can_cut_it(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Linear(7, 5))
    module[2].bias.requires_grad = False
    run = create_custom_run("own", module, {"averaging": {"num_fragments": 3}}, tmp_path)
    trained = sum(tensor.numel() for tensor in module.parameters() if tensor.requires_grad)
    assert run.manifest.model.num_parameters == trained
    assert run.manifest.model.num_buffer_values == 6
    layout = fitting_layout(run.manifest, shapes_of(module), [("1.running_mean", (3,)), ("1.running_var", (3,))])
    assert layout.sizes == seed_sizes(run.manifest)
    assert layout.fragments[-1].num_values == 6
    assert run.manifest.buffers_fragment == 3
    with pytest.raises(Incompatible, match="0 values in 0 buffers of real numbers; the run expects 6"):
        fitting_layout(run.manifest, shapes_of(module))
    assert layout.digest == layout_digest_of(run.manifest)
    assert RunManifest.from_bytes(run.manifest.to_bytes()) == run.manifest


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"averaging": {"num_fragments": 64}, "model": {}}, "the module determines it"),
        ({"averagin": {}}, "averaging"),
        ({"averaging": 3}, "averaging"),
    ],
)
def test_wrong_settings_leave_nothing_behind(tmp_path: Path, settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageFault, match=said):
        create_custom_run("own", small_module(), settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_more_fragments_than_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="num_fragments=4"):
        create_custom_run("own", nn.Linear(1, 1, bias=False), None, tmp_path / "run")


def test_another_module_is_refused(tmp_path: Path) -> None:
    manifest = create_custom_run("own", small_module(), None, tmp_path).manifest
    with pytest.raises(Incompatible, match="49 trained elements in 4 parameters"):
        fitting_layout(
            manifest.model_copy(update={"model": manifest.model.model_copy(update={"num_parameters": 50})}),
            shapes_of(small_module()),
        )
    renamed = nn.ModuleDict({"a": nn.Linear(4, 8), "b": nn.Linear(8, 1)})
    with pytest.raises(Incompatible, match=r"begins with a.weight \[8, 4\]"):
        fitting_layout(manifest, shapes_of(renamed))
    with pytest.raises(Incompatible, match="names, shapes or order"):
        fitting_layout(manifest, list(reversed(shapes_of(small_module()))))


class Holder(nn.Module):
    """Keeps a module under a name, as wrappers do."""

    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.add_module(name, inner)


class Replicated(nn.parallel.DistributedDataParallel):
    """Of a library that derives from torch's, made without a group of processes."""

    def __init__(self, inner: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = inner

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__  # not the group, which a copy needs

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda inner: Holder(inner, "_orig_mod"),
    "checkpointed": lambda inner: Holder(inner, "_checkpoint_wrapped_module"),
    "set up by Lightning": lambda inner: Holder(inner, "_forward_module"),
    "averaged": torch.optim.swa_utils.AveragedModel,
    "data parallel": nn.DataParallel,
    "replicated": Replicated,
}


@pytest.mark.parametrize("outer", WRAPPERS)
@pytest.mark.parametrize("inner", WRAPPERS)
def test_names_are_those_of_the_bare_module_whatever_wraps_it_or_parts_of_it(outer: str, inner: str) -> None:
    # `module` is a name like any other outside of these wrappers.
    bare = nn.ModuleDict({"module": normed(), "end": nn.Linear(2, 2)})
    parameters, buffers = ([*shapes_of(bare)], [name for name, _ in shared_buffers(bare)])
    assert all(name.startswith("module.") for name, _ in parameters[:2])
    wrapped = WRAPPERS[outer](WRAPPERS[inner](bare))
    assert shapes_of(wrapped) == parameters
    assert [name for name, _ in shared_buffers(wrapped)] == buffers
    parts = nn.ModuleDict({"module": WRAPPERS[outer](WRAPPERS[inner](bare["module"])), "end": bare["end"]})
    assert shapes_of(parts) == parameters
    assert [name for name, _ in shared_buffers(parts)] == buffers


def test_buffers_that_a_wrapper_saves_under_the_bare_names_are_found() -> None:
    class SavesWhatItWraps(Holder):
        def state_dict(self, *args: Any, **given: Any) -> Any:
            return self._forward_module.state_dict(*args, **given)

    wrapped = SavesWhatItWraps(normed(), "_forward_module")
    assert [name for name, _ in shared_buffers(wrapped)] == [name for name, _ in shared_buffers(normed())]


def test_a_module_of_ones_own_that_is_called_as_a_wrapper_keeps_its_names() -> None:
    class AveragedModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)

    assert [name for name, _ in shapes_of(AveragedModel())] == ["module.weight", "module.bias"]


def test_an_unknown_wrapper_is_named(tmp_path: Path) -> None:
    manifest = create_custom_run("own", normed(), None, tmp_path).manifest
    parts = [[(name, tuple(t.shape)) for name, t in part] for part in averaged_parts(Holder(normed(), "_w"), manifest)]
    with pytest.raises(Incompatible, match=r"begin with '_w', as in a wrapper.* pass the bare module"):
        fitting_layout(manifest, *parts)


@pytest.mark.parametrize("name", NOT_OF_AN_OWN_LOOP)
def test_a_choice_that_an_own_loop_cannot_follow_is_refused(name: str) -> None:
    module = small_module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(UsageFault, match=f"got {name}, which has no effect on your own training loop") as refused:
        join("own.aaaaaaaaaaaaaaaaaaaa", module=module, optimizer=optimizer, **{name: 3})
    assert ("(max_steps is an argument" in str(refused.value)) == (name == "max_steps")
    # Its default asks for nothing, as track=None.
    usual: Any = PeerConfig.model_fields[name].default
    join("own.aaaaaaaaaaaaaaaaaaaa", module=module, optimizer=optimizer, **{name: usual})


def test_what_seeds_do_not_have_own_loops_do_not_have_either() -> None:
    assert set(choices_with(ChoiceMark.TRAINING)) <= set(NOT_OF_AN_OWN_LOOP) <= set(PeerConfig.model_fields)


def test_an_open_custom_run_resists_liars_and_a_named_combination_holds(tmp_path: Path) -> None:
    def combine(folder: str, settings: dict[str, object] | None, *, replace: bool = False) -> str:
        manifest = create_custom_run("own", small_module(), settings, tmp_path / folder, replace=replace).manifest
        return manifest.averaging.combine

    assert combine("open", None) == ROBUST_COMBINE
    assert combine("named", {"averaging": {"combine": "mean"}}) == "mean"
    assert combine("named", None, replace=True) == "mean"
    assert combine("private", {"access": {"mode": "allowlist"}}) == "mean"


def normed() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 16))
    module.register_buffer("cache", torch.zeros(3), persistent=False)
    return module


def test_running_statistics_are_averaged_unless_they_are_many_or_that_is_not_wanted(tmp_path: Path) -> None:
    assert [name for name, _ in shared_buffers(normed())] == ["1.running_mean", "1.running_var"]
    assert create_custom_run("own", normed(), None, tmp_path / "few").manifest.model.num_buffer_values == 16
    model = create_custom_run("own", normed(), None, tmp_path / "own", buffers="local").manifest.model
    assert model.num_buffer_values is None
    many = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8))
    assert create_custom_run("own", many, None, tmp_path / "many").manifest.model.num_buffer_values is None
    assert (
        create_custom_run("own", many, None, tmp_path / "asked", buffers="mean").manifest.model.num_buffer_values == 16
    )
    assert create_custom_run("own", small_module(), None, tmp_path / "none").manifest.model.num_buffer_values is None
    for buffers, said in (("newest", "expected 'local' or 'mean'"), ("mean", "has no saved floating-point buffers")):
        with pytest.raises(UsageFault, match=said):
            create_custom_run("own", small_module(), None, tmp_path / "wrong", buffers=buffers)
    assert not (tmp_path / "wrong").exists()


class Masked(nn.Module):
    """Attention that keeps its mask as a saved buffer."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(40)
        self.register_buffer("mask", mask)


def masks() -> dict[str, torch.Tensor]:
    above = torch.ones(3, 3).triu(1)
    return {
        "minus infinity": torch.zeros(3, 3).masked_fill(above.bool(), -torch.inf),
        "the least number": torch.zeros(3, 3).masked_fill(above.bool(), torch.finfo(torch.float32).min),
        "in a short format": torch.zeros(3, 3, dtype=torch.float16).masked_fill(above.bool(), -1e4),
        "ones": above,
        "nan": torch.full((2,), torch.nan),
    }


@pytest.mark.parametrize("kind", masks())
def test_masks_are_no_running_statistics(tmp_path: Path, kind: str) -> None:
    module = Masked(masks()[kind])
    run = create_custom_run("own", module, None, tmp_path, buffers="mean")
    assert run.manifest.model.num_buffer_values == 80
    parameters, buffers = averaged_parts(module, run.manifest)
    assert [name for name, _ in buffers] == ["norm.running_mean", "norm.running_var"]
    fitting_layout(run.manifest, shapes_of(module), [(name, tuple(buffer.shape)) for name, buffer in buffers])
    assert len(parameters) == 2
    only = nn.ParameterDict({"weight": nn.Parameter(torch.ones(200))})
    only.register_buffer("mask", masks()[kind])
    assert create_custom_run("own", only, None, tmp_path / "only").manifest.model.num_buffer_values is None


def test_a_custom_manifest_has_no_fact_that_nobody_gave(tmp_path: Path) -> None:
    plain = create_custom_run("own", small_module(), None, tmp_path / "plain").manifest
    written = json.loads(plain.to_bytes())
    assert set(written["model"]) == {"num_parameters", "layout_digest"}
    assert "training" not in written
    assert "data" not in written
    assert RunManifest.from_bytes(plain.to_bytes()).to_bytes() == plain.to_bytes()
    given = {"training": {"learning_rate": 0.5}}
    some = create_custom_run("own", small_module(), given, tmp_path / "some").manifest
    assert json.loads(some.to_bytes())["training"] == {"learning_rate": 0.5}
    assert RunManifest.from_bytes(some.to_bytes()) == some


def test_names_and_shapes_of_buffers_are_among_the_runs_files(tmp_path: Path) -> None:
    run = create_custom_run("own", normed(), {"averaging": {"num_fragments": 2}}, tmp_path)
    named = named_shapes(run.manifest, checked_folder(tmp_path, run.manifest))
    assert named == (shapes_of(normed()), [("1.running_mean", (8,)), ("1.running_var", (8,))])
    assert layout_of(run.manifest, *named).sizes == seed_sizes(run.manifest)


def test_frozen_parameters_are_those_of_the_run(tmp_path: Path) -> None:
    def with_base(value: float) -> nn.Sequential:
        module = small_module()
        module[0].requires_grad_(False)
        nn.init.constant_(module[0].weight, value)
        nn.init.constant_(module[0].bias, 0.0)
        return module

    manifest = create_custom_run("own", with_base(0.5), None, tmp_path).manifest
    assert manifest.model.frozen_digest is not None
    check_frozen_digest(manifest, with_base(0.5))
    # Held at 16 bits the values are the same ones.
    check_frozen_digest(manifest, with_base(0.5).to(torch.bfloat16))
    with pytest.raises(Incompatible, match=r"different frozen parameters .* load the base"):
        check_frozen_digest(manifest, with_base(0.25))
    with pytest.raises(Incompatible, match=r"has no frozen parameters; expected those of the run"):
        check_frozen_digest(manifest, small_module())
    check_frozen_digest(create_custom_run("own", small_module(), None, tmp_path / "all").manifest, with_base(1.0))


class Wrapper(torch.optim.Optimizer):
    """As accelerate's: an Optimizer by name, which was never made as one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


class Lookahead(torch.optim.Optimizer):
    """As timm's: with the hooks of an Optimizer, which torch never runs."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._base_optimizer = optimizer
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self.param_groups = optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self._base_optimizer.step(closure)


class SharesWhatIsInside(torch.optim.Optimizer):
    """As that of Lightning's Fabric: it has all that the optimizer has, its hooks too."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.__dict__ = dict(vars(optimizer))
        self._optimizer = optimizer

    def step(self, closure: Any = None) -> Any:
        return self._optimizer.step(closure)


def test_an_optimizer_may_be_wrapped() -> None:
    bare = torch.optim.SGD(small_module().parameters(), lr=0.1)
    assert innermost(bare) is bare
    assert innermost(Wrapper(Wrapper(bare))) is bare
    for wrapper in (Lookahead(bare), SharesWhatIsInside(bare)):
        assert innermost(wrapper) is bare
    with pytest.raises(LocalFault, match=r"a str, whose steps call no hooks; expected a torch\.optim\.Optimizer"):
        innermost("adamw")  # type: ignore[arg-type]
    alone = Lookahead(bare)
    del alone._base_optimizer
    with pytest.raises(LocalFault, match="a Lookahead, whose steps call no hooks"):
        innermost(alone)


def test_join_names_the_argument_that_is_wrong() -> None:
    module = small_module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(UsageFault, match="neither a run id nor the name of a run here"):
        join("not a run", module=module, optimizer=optimizer)
    with pytest.raises(UsageFault, match="name"):
        join("own.aaaaaaaaaaaaaaaaaaaa", module=module, optimizer=optimizer, nam="me")


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"module": "model"}, "module is a str; expected a torch.nn.Module"),
        ({"module": small_module().requires_grad_(False)}, "no parameter with requires_grad"),
        ({"module": nn.LazyLinear(3)}, "'weight' has no shape yet"),
        ({"module": nn.Linear(3, 3, dtype=torch.complex64)}, "'weight' is torch.complex64, which cannot be averaged"),
        ({"module": nn.ParameterList([nn.Parameter(torch.tensor([1.0, torch.nan]))])}, "'0' has values that are NaN"),
        ({"settings": "run.toml"}, "settings is 'run.toml'; expected a mapping"),
        ({"files": "tokenizer.json"}, "files is 'tokenizer.json'; expected a list"),
        ({"files": [3]}, r"files is \[3\]; expected a list"),
        ({"folder": 3}, "folder is 3; expected a path"),
        (
            {"module": nn.ParameterList([torch.ones(3), nn.UninitializedParameter(requires_grad=False)])},
            "'1' has no sh",
        ),
        ({"module": nn.Sequential(small_module(), frozen_on_meta())}, "'1.weight' is on the meta device"),
    ],
)
def test_what_no_run_can_be_made_of_costs_one_sentence(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageFault, match=said):
        create_custom_run("own", **{"module": small_module(), "folder": tmp_path / "run", **wrong})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"module": "model"}, "module is a str"),
        ({"state": [1]}, "state is a list; expected a mapping"),
        ({"on_event": 3}, "on_event is 3; expected a function"),
        ({"stop": True}, "stop is True; expected a function"),
        ({"peers": "/ip4/127.0.0.1/tcp/1"}, "peers is .*; expected a list"),
        ({"data_dir": 5}, "data_dir is 5; expected"),
        ({"module": nn.LazyLinear(3)}, "'weight' has no shape yet"),
        ({"module": nn.Linear(3, 3, device="meta")}, "'weight' is on the meta device"),
        ({"module": small_module().requires_grad_(False)}, "no parameter with requires_grad"),
        ({"module": nn.Linear(3, 3, dtype=torch.complex64)}, "'weight' is torch.complex64, which cannot be averaged"),
        ({"module": nn.Linear(3, 3)}, "the optimizer does not have parameter 'weight'"),
        ({"optimizer": "sgd"}, "the optimizer is a str"),
        ({"optimizer": []}, "there is no optimizer"),
    ],
)
def test_wrong_arguments_of_join_are_told_before_anything_starts(wrong: dict[str, Any], said: str) -> None:
    module = small_module()
    given = {"module": module, "optimizer": torch.optim.SGD(module.parameters()), **wrong}
    with pytest.raises(UsageFault, match=said):
        join("own.aaaaaaaaaaaaaaaaaaaa", **given)


def test_a_session_is_used_inside_its_block_with_counts_that_can_be(tmp_path: Path) -> None:
    module = small_module()
    swarm = LoneSwarm("own.aaaaaaaaaaaaaaaaaaaa", module, torch.optim.SGD(module.parameters(), lr=0.1), {})
    for use in (
        *(lambda: swarm.tokens, lambda: swarm.report(1.0), lambda: swarm.samples(2, 3), lambda: swarm.peer_id),
        *(lambda: swarm.manifest, lambda: swarm.files, lambda: swarm.progress, lambda: swarm.accumulation_steps),
        lambda: Swarm.__exit__(swarm, None, None, None),
    ):
        with pytest.raises(UsageFault, match="was not entered"):
            use()
    with swarm:
        for wrong, said in {
            lambda: swarm.samples(0, 3): "batch_size is 0",
            lambda: swarm.samples(2, 0): "num_samples is 0",
            lambda: swarm.positions(2, 8, 8): "num_tokens is 8 and context is 8",
            lambda: swarm.report("low"): "loss is 'low'; expected one number",  # type: ignore[arg-type]
            lambda: swarm.report(torch.zeros(3)): "loss is tensor.*; expected one number",  # type: ignore[arg-type]
            lambda: swarm.report(np.zeros(3)): "loss is array.*; expected one number",  # type: ignore[arg-type]
            lambda: swarm.report(10**400): "loss is 1000.*; expected one number",
            lambda: swarm.report(tokens=2**30 + 1): "1073741825 tokens .* for one step; expected at most 1073741824",
        }.items():
            with pytest.raises(UsageFault, match=said):
                wrong()
        assert len(next(swarm.samples(2, 3))) == 2
        assert len(next(swarm.positions(2, 7, 8))) == 2
    swarm._end()
    assert swarm.inner_steps == 0
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for use in (
        *(lambda: swarm.report(1.0), lambda: swarm.samples(2, 3), lambda: swarm.should_stop, swarm.anchor),
        lambda: swarm.scheduler(optimizer),
    ):
        with pytest.raises(UsageFault, match="with block has ended"):
            use()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_trains_by_itself_and_leaves_the_session_alone() -> None:
    module = small_module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def is_told_nothing(swarm: LoneSwarm) -> bool:
        module[0].weight.grad = torch.ones_like(module[0].weight)
        optimizer.step()
        Swarm.__exit__(swarm, None, None, None)  # says no goodbye for the other process
        for use in (lambda: swarm.report(1.0), swarm.anchor, lambda: swarm.scheduler(optimizer)):
            with pytest.raises(UsageFault, match=r"before this process was forked.* call join\(\) here"):
                use()
        return swarm.inner_steps == 0

    with LoneSwarm("own.aaaaaaaaaaaaaaaaaaaa", module, optimizer, {}) as swarm:
        if (process := os.fork()) == 0:
            os._exit(0 if is_told_nothing(swarm) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        optimizer.step()
        assert swarm.inner_steps == 1


def test_a_module_is_in_one_session_at_a_time() -> None:
    module = small_module()
    first, second = (
        LoneSwarm("own.aaaaaaaaaaaaaaaaaaaa", module, torch.optim.SGD(module.parameters(), lr=0.1), {})
        for _ in range(2)
    )
    first._claim([*module.parameters()])
    with pytest.raises(UsageFault, match="another session of this process"):
        second._claim([*module.parameters()][:1])
    second._end()
    with pytest.raises(UsageFault, match="another session of this process"):
        second._claim([*module.parameters()])
    first._end()
    second._claim([*module.parameters()])
    second._end()


def test_an_on_event_that_fails_is_told_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise KeyError("mine")

    module = small_module()
    swarm = LoneSwarm(
        "own.aaaaaaaaaaaaaaaaaaaa", module, torch.optim.SGD(module.parameters(), lr=0.1), {"on_event": fail}
    )
    for _ in range(2):
        swarm._show(Event(0.0, "me", SwarmContact("lost", 1.0)))
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ["on_event failed"]


@pytest.mark.parametrize(("error", "times"), [(None, 2), (KeyboardInterrupt, 1)])
def test_a_loop_that_measures_does_so_once_more_when_it_leaves(error: type[BaseException] | None, times: int) -> None:
    module = small_module()
    swarm = LoneSwarm("own.aaaaaaaaaaaaaaaaaaaa", module, torch.optim.SGD(module.parameters(), lr=0.1), {})
    measured: list[float] = []

    def validation_loss() -> float:
        measured.append(float(module[0].weight[0, 0]))
        return 1.0

    swarm.__enter__()
    swarm.evaluate(validation_loss)
    swarm.deliver(0.5)
    swarm.__exit__(error, None, None)
    assert len(measured) == times
    assert measured[-1] == 0.5 or error
    assert swarm.training.link.is_unmeasured == (error is not None)
