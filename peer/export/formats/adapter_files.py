"""An adapter in peft's format: `adapter_config.json` and `adapter_model.safetensors`, without the base."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from averaging.arrays import F32
from dht.ground.errors import LocalFault, UsageFault
from dht.ground.regular_files import open_regular
from peer.config.manifest import RunManifest
from peer.export.formats.hf_architecture import trained_tensors
from peer.trainer.hf.adapter import with_adapter
from peer.trainer.hf.architecture import build_architecture
from peer.trainer.hf.run_model import build_run_architecture

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_HUB = "hub:"


def adapter_tensors(manifest: RunManifest, values: Mapping[int, F32]) -> tuple[dict[str, Tensor], bytes]:
    """Return (tensors under peft's names, adapter_config.json) of anchors (fragment -> float32 [num_values]).

    The base's weights are not needed.

    Raises:
        UsageFault: transformers or peft is not installed.
        Incompatible: this machine's libraries build a different module from the run's config.
    """
    section = manifest.model
    assert section.adapter is not None
    tensors = trained_tensors(manifest, values)
    base = build_architecture(*section.described, without_values=True)
    model: Any = with_adapter(base, section.adapter, None)
    from peft import get_peft_model_state_dict

    named = get_peft_model_state_dict(model, state_dict=tensors, save_embedding_layers=False)
    repository, _, revision = base_of(manifest).partition("@")
    config = model.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": repository or None, "revision": revision or None, "inference_mode": True}
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
    return dict(named), json.dumps(plain, indent=2, sort_keys=True).encode() + b"\n"


def read_adapter(manifest: RunManifest, folder: Path, base: Path | None) -> nn.Module:
    """Return the module of an exported adapter, merged into its base, in float32 on the CPU.

    Args:
        base: the result of `find_base`.

    Raises:
        UsageFault, Incompatible: see `build_run_architecture`.
        LocalFault: the folder contains a different adapter.
    """
    model: Any = build_run_architecture(manifest, base).float()
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    path = folder / WEIGHTS_NAME
    try:
        open_regular(path).close()
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageFault(f"{path} is not a complete safetensors file ({error}); export the adapter again.") from error
    # By default peft would also expect the base's matrix if an output layer has the adapter.
    shapes = get_peft_model_state_dict(model, save_embedding_layers=False)
    expected = {name: tuple(tensor.shape) for name, tensor in shapes.items()}
    if expected != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise LocalFault(f"{path} has other parameters than its manifest describes; export the adapter again")
    set_peft_model_state_dict(model, tensors)
    merged: nn.Module = model.merge_and_unload()
    return merged.eval()


def base_of(manifest: RunManifest) -> str:
    """Return the base's place on the hub, ``org/name@REVISION``; empty: each volunteer has it in a folder."""
    init = manifest.model.init
    return init.source.removeprefix(_HUB) if init is not None and init.source.startswith(_HUB) else ""


def save_adapter(tensors: Mapping[str, Tensor], config: bytes, folder: Path) -> None:
    """Write both files.

    Raises:
        OSError, SafetensorError: the disk is full or broken.
    """
    save_file(dict(tensors), folder / WEIGHTS_NAME, metadata={"format": "pt"})
    (folder / CONFIG_NAME).write_bytes(config)
