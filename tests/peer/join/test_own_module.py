"""Runs of own modules: what their manifest says, and what a session refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from dht.errors import Incompatible, UsageFault
from peer.config.layouts import layout_digest_of, seed_sizes
from peer.config.manifest import RunManifest
from peer.join.connection import fitting_layout
from peer.join.session import join
from peer.owner.new_run import create_custom_run, trained_parameters

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_loop.py"


def small_module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def shapes_of(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(tensor.shape)) for name, tensor in trained_parameters(module)]


def test_a_custom_run_says_what_is_trained_and_any_seed_can_cut_it(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Linear(7, 5))
    module[2].bias.requires_grad = False
    run = create_custom_run("own", module, {"averaging": {"num_fragments": 3}}, tmp_path)
    trained = sum(tensor.numel() for tensor in module.parameters() if tensor.requires_grad)
    assert run.manifest.model.num_parameters == trained
    assert run.manifest.averaging.fragment_by == "balanced"
    layout = fitting_layout(run.manifest, shapes_of(module))
    assert layout.sizes == seed_sizes(run.manifest)
    assert layout.digest == layout_digest_of(run.manifest)
    assert RunManifest.from_bytes(run.manifest.to_bytes()) == run.manifest


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"averaging": {"fragment_by": "layers"}}, "balanced"),
        ({"averaging": {"num_fragments": 64}, "model": {}}, "follows from the module"),
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


def test_a_module_may_be_wrapped_for_compilation(tmp_path: Path) -> None:
    manifest = create_custom_run("own", small_module(), None, tmp_path).manifest
    # What torch.compile returns names its parameters like this.
    wrapped = nn.Module()
    wrapped.add_module("_orig_mod", small_module())
    fitting_layout(manifest, shapes_of(wrapped))


def test_join_names_the_argument_that_is_wrong() -> None:
    module = small_module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(UsageFault, match="run_id"):
        join("not a run", module=module, optimizer=optimizer)
    with pytest.raises(UsageFault, match="name"):
        join("own.aaaaaaaaaaaaaaaaaaaa", module=module, optimizer=optimizer, nam="me")


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40
