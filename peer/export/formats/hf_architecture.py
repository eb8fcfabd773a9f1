"""A run's transformers architecture filled with the anchors, or its adapter, written and read in the formats of
transformers and peft.

Weights are float32, as the anchors are. The library writes them under the names of its checkpoints, which may differ
from the module's. Only safetensors are read, never a pickle, and never code from a folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from averaging.arrays import F32
from dht.ground.errors import LocalFault, UsageFault
from dht.ground.regular_files import open_regular, read_regular
from peer.config.manifest import RunManifest
from peer.config.model_shapes import averaged_parts, layout_of
from peer.export.formats.anchors import tensors_of
from peer.export.formats.custom_module import fill_module
from peer.export.formats.model_header import MAX_CONFIG_BYTES
from peer.trainer.hf.adapter import with_adapter
from peer.trainer.hf.architecture import build_architecture
from peer.trainer.hf.run_model import build_run_architecture, check_architecture, run_shapes
from peer.trainer.model.gpt import tensors_digest

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_HUB = "hub:"
_NOT_WRITTEN = ("use_cache", "_from_model_config")
"""Fields that are not written. The cache is off in training, but generation needs the cache's default. The other field
states that the generation config was derived from the model's config, which is wrong for the end token.
"""


def trained_architecture(manifest: RunManifest, values: Mapping[int, F32], base: Path | None = None) -> nn.Module:
    """Build the run's architecture, filled with anchors (fragment -> float32 [num_values]), on the CPU in float32.

    An adapter is merged into its base.

    Args:
        base: folder with the weights on which the run is based (`find_base`); required for an adapter.

    Raises:
        UsageFault: transformers is not installed, or an adapter has no base.
        Incompatible: transformers builds a different module from the run's config.
    """
    module = build_run_architecture(manifest, base).float()
    fill_module(module, manifest, values)
    if manifest.model.adapter is not None:
        adapted: Any = module
        module = adapted.merge_and_unload()
    return module.eval()


def architecture_digest(manifest: RunManifest, module: nn.Module) -> str:
    """Return the SHA-256 of a module's parameters in order, and its averaged buffers: 64 hexadecimal digits."""
    _, buffers = averaged_parts(module, manifest)
    return tensors_digest([*module.parameters(), *(buffer for _, buffer in buffers)]).hex()


def trained_tensors(manifest: RunManifest, values: Mapping[int, F32]) -> dict[str, Tensor]:
    """Return only the trained parameters and averaged buffers, under the module's own names.

    Raises:
        UsageFault, Incompatible: see `trained_architecture`.
    """
    check_architecture(manifest)
    shapes, buffer_shapes = run_shapes(manifest)
    return tensors_of(layout_of(manifest, shapes, buffer_shapes), [*shapes, *buffer_shapes], values)


def save_architecture(trained: nn.Module, folder: Path, max_shard_bytes: int, end_token: int | None) -> None:
    """Write config.json, generation_config.json and weights.

    Args:
        end_token: end token of the run's tokenizer; None: the config's, if it has one.

    Raises:
        OSError, SafetensorError: the disk is full or broken.
    """
    module: Any = trained
    with _without_bars():
        module.save_pretrained(folder, max_shard_size=max_shard_bytes)
    ends = {} if end_token is None else {"eos_token_id": end_token, "pad_token_id": end_token}
    if "MaskedLM" in type(trained).__name__ and getattr(module.config, "pad_token_id", None) is not None:
        # RoBERTa counts positions from the tokens that are not padding, so it keeps the padding token of training.
        ends = {}
    for path in (folder / "config.json", folder / "generation_config.json"):
        if path.exists():
            fields = json.loads(read_regular(path, MAX_CONFIG_BYTES)) | ends
            kept = {name: value for name, value in fields.items() if name not in _NOT_WRITTEN}
            path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def read_architecture(manifest: RunManifest, folder: Path) -> nn.Module:
    """Read the module in a folder written by `save_architecture`, with the class and config of the manifest.

    Raises:
        UsageFault: transformers is not installed.
        Incompatible: transformers builds a different module from the run's config.
        LocalFault: the folder contains different weights.
    """
    check_architecture(manifest)
    built: Any = build_architecture(*manifest.model.described, without_values=True)
    with _without_bars():
        module, report = type(built).from_pretrained(
            folder,
            config=built.config,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    wrong = sorted({str(name) for problem in report.values() for name in problem})
    if wrong:
        raise LocalFault(
            f"{folder} does not have the parameters that its manifest describes ({', '.join(wrong)[:200]}); export the "
            "model again"
        )
    found: nn.Module = module
    return found


@contextmanager
def _without_bars() -> Iterator[None]:
    """Disable the progress bar that the library shows for each weights file."""
    from transformers.utils import logging as its_logging

    logging: Any = its_logging
    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def architecture_notes(manifest: RunManifest, module: nn.Module) -> tuple[str, ...]:
    """Return sentences for the model card about values that the run does not have."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    buffers = [name for name in module.state_dict() if name not in parameters]
    if not buffers or manifest.model.num_buffer_values is not None:
        return ()
    return (
        f"{len(buffers)} buffers, such as `{buffers[0]}`, are not part of the run: here they have their initial "
        "values. Estimate running statistics again on data before use.",
    )


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

    path = folder / ADAPTER_WEIGHTS
    try:
        open_regular(path).close()
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageFault(f"{path} is not a complete safetensors file ({error}); export the adapter again.") from error
    # By default peft would also expect the base's matrix if an output layer has the adapter.
    shapes = get_peft_model_state_dict(model, save_embedding_layers=False)
    expected = {name: tuple(tensor.shape) for name, tensor in shapes.items()}
    if expected != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise LocalFault(f"{path} does not have the parameters that its manifest describes; export the adapter again")
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
    save_file(dict(tensors), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_bytes(config)
