"""Runs of own code: the names come home where the run has them, and the module is filled again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import murmuration
from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.export.formats import model_folder
from peer.export.formats.anchors import Anchors, own_module_tensors
from peer.export.formats.model_folder import write_folder
from peer.files.checked_folder import checked_folder
from peer.owner.new_run import create_custom_run
from tests.kit.trainer.exported_models import NOW, anchors_of, anchors_of_module, changed, trained_model


def network(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def run_of(folder: Path, module: nn.Module) -> Anchors:
    """The anchors of a run of own code that are the module, with the run's files."""
    run = create_custom_run("tiny", module, {"averaging": {"num_fragments": 2}}, folder)
    anchors = anchors_of_module(module, run.manifest)
    return replace(anchors, files=checked_folder(folder, run.manifest))


def trained() -> nn.Module:
    module = changed(network())
    module(torch.randn(64, 3, generator=torch.Generator().manual_seed(2)) * 3 + 1)  # statistics of its own
    return module.eval()


def test_names_come_home_and_fill_a_module_again(tmp_path: Path) -> None:
    module = trained()
    anchors = run_of(tmp_path / "owner", module)
    path = tmp_path / "model"
    write_folder(anchors, path, NOW, replace=False)
    tensors = load_file(path / "model.safetensors")
    assert {entry.name for entry in path.iterdir()} == {"README.md", "model.safetensors", "run.json"}
    expected = {name: value.detach() for name, value in module.named_parameters()}
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], value) for name, value in expected.items())
    other = network().half()
    header = murmuration.load_export(other, path)
    assert (header.tokens, header.versions) == (4321, [7, 7])
    assert other[0].weight.dtype == torch.float16
    assert all(
        torch.equal(value, expected[name].half()) for name, value in other.state_dict().items() if name in expected
    )


def test_fragments_without_names_fill_a_module_of_the_same_layout(tmp_path: Path) -> None:
    module = trained()
    anchors = run_of(tmp_path / "owner", module)
    path = tmp_path / "model"
    write_folder(replace(anchors, files=None), path, NOW, replace=False)
    assert load_file(path / "model.safetensors").keys() == {"fragment.0", "fragment.1"}
    other = network()
    murmuration.load_export(other, path)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(other.parameters(), module.parameters(), strict=True))
    with pytest.raises(Incompatible, match="expected the same parameters in the same order"):
        murmuration.load_export(network(5), path)


def test_running_statistics_that_came_home_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = trained()
    anchors, mean = run_of(tmp_path / "owner", module), torch.arange(4.0)
    averaged = {**own_module_tensors(anchors), "1.running_mean": mean}
    monkeypatch.setattr(model_folder, "own_module_tensors", lambda _: averaged)
    write_folder(anchors, tmp_path / "model", NOW, replace=False)
    other: Any = network()
    murmuration.load_export(other, tmp_path / "model")
    assert torch.equal(other[1].running_mean, mean)
    assert torch.equal(other[1].running_var, torch.ones(4))
    assert torch.equal(other[1].weight, module[1].weight)  # type: ignore[index]


def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    anchors = run_of(tmp_path / "owner", trained())
    path = tmp_path / "model"
    write_folder(anchors, path, NOW, replace=False)
    other = network(5)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(Incompatible, match=r"0\.bias is \[5\] in the module and \[4\] in the export"):
        murmuration.load_export(other, path)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(LocalFault, match="do not match the digest"):
        murmuration.load_export(network(), path)
    (path / "model.safetensors").write_bytes(whole[:-9])
    with pytest.raises(UsageFault, match="is not a complete safetensors file"):
        murmuration.load_export(network(), path)
    write_folder(anchors_of(trained_model()), tmp_path / "gpt", NOW, replace=False)
    with pytest.raises(
        Incompatible, match=r"expected a model from its owner's code; read this one with murmuration\.read_model"
    ):
        murmuration.load_export(network(), tmp_path / "gpt")
