"""Fills a module with a run's values: anchors, or the values in an export of the owner's code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from averaging.arrays import F32
from dht.ground.errors import Incompatible, LocalFault, UsageFault
from peer.config.manifest import RunManifest
from peer.config.model_shapes import (
    averaged_parts,
    bare_name,
    layout_digest_of,
    layout_of,
    tensor_shapes,
    trained_parameters,
)
from peer.export.formats.anchors import parameters_sha256, tensors_of
from peer.export.formats.model_header import ModelHeader, read_header, run_json
from peer.export.formats.stored_weights import open_stored

FRAGMENT = "fragment."
"""Prefix of a fragment's number, in weights without names."""


def custom_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of a custom module's values, in the order of their names: 64 hexadecimal digits."""
    return parameters_sha256({name: tensors[name] for name in sorted(tensors)})


def load_export(module: nn.Module, path: str | Path) -> ModelHeader:
    """Copy the model that `peer export` wrote into your own module.

    Args:
        module: a module with the run's trained parameters in the same order. Their types and devices stay the same.
        path: a folder that `peer export` wrote.

    Returns:
        the header of the export: `run_id`, `versions`, `tokens`, `manifest` and more.

    Raises:
        UsageFault: the folder does not exist, or different software wrote it.
        Incompatible: the module is not the run's module, or the run is of a different kind.
        LocalFault: the export is damaged.
    """
    path = Path(path)
    try:
        with open_stored(path) as files:
            _, header, manifest = read_header(path, run_json(path))
            if manifest.model.kind != "custom":
                raise Incompatible(
                    f"{path} is of a run of kind {manifest.model.kind!r}; expected a model from its owner's code; read "
                    "this one with murmuration.read_model"
                )
            found = {name: file.get_tensor(name) for name, file in files.items()}
    except (OSError, SafetensorError) as error:
        raise UsageFault(f"{path} is not a complete safetensors file ({error}); export the model again.") from error
    if header.parameters_sha256 != custom_sha256(found):
        raise LocalFault(f"{path} is damaged: its values do not match the digest in its config; export it again")
    _fill(module, manifest, found)
    return header


@torch.no_grad()
def fill_module(module: nn.Module, manifest: RunManifest, values: Mapping[int, F32]) -> None:
    """Write anchors (fragment -> float32 [num_values]) into a module.

    Raises:
        Incompatible: the module is not the one that the run trains.
    """
    parameters, buffers = averaged_parts(module, manifest)
    shapes, buffer_shapes = tensor_shapes(parameters), tensor_shapes(buffers)
    layout = layout_of(manifest, shapes, buffer_shapes)
    if layout.digest != layout_digest_of(manifest):
        raise Incompatible(
            f"the module has the layout {layout.digest.hex()[:16]}, with {layout.num_values} values; the run trains a "
            f"module with {layout_digest_of(manifest).hex()[:16]}; expected the same parameters in the same order; "
            "build the module as for the run"
        )
    _copy(tensors_of(layout, [*shapes, *buffer_shapes], values), dict([*parameters, *buffers]))


def _fill(module: nn.Module, manifest: RunManifest, found: Mapping[str, Tensor]) -> None:
    if all(name.startswith(FRAGMENT) and name.removeprefix(FRAGMENT).isdecimal() for name in found):
        values = {int(name.removeprefix(FRAGMENT)): tensor.numpy() for name, tensor in found.items()}
        fill_module(module, manifest, values)
        return
    buffers = {bare_name(name, module): buffer for name, buffer in module.named_buffers()}
    # Running statistics are exported by runs that average them, and otherwise stay the module's own.
    targets: dict[str, Tensor] = {name: buffer for name, buffer in buffers.items() if name in found}
    targets |= dict(trained_parameters(module))
    wrong = sorted(
        name for name in found.keys() | targets.keys() if _shape(found.get(name)) != _shape(targets.get(name))
    )
    if wrong:
        name = wrong[0]
        raise Incompatible(
            f"{name} is {_shape(targets.get(name)) or 'missing'} in the module and "
            f"{_shape(found.get(name)) or 'missing'} in the export; expected the same names and shapes; build the "
            "module as for the run"
        )
    _copy(found, targets)


@torch.no_grad()
def _copy(values: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    for name, target in targets.items():
        target.copy_(values[name])


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)
