"""Builds a transformers module from a config text, with the head of a task; loads no code but the library's own.

A child with limits builds it first (`peer.memory.architecture_sizes`): a config of a few hundred bytes could exhaust
the memory of the process that reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dht.ground.errors import Incompatible, UsageFault
from peer.memory.architecture_sizes import sizes_of
from peer.trainer.hf.library_modules import (
    check_library,
    config_and_head,
    library,
    library_config,
    library_module,
    refused,
)

_CPU_FORM = "support_avx512bf16_for_cpu"
"""Attribute of bitsandbytes' 4-bit layers."""
_WRAPPERS = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "module")
"""Attributes in which wrappers store a model; the names of all its tensors then begin with one of them."""
_NAMES_ALONE = {"device_map": "meta"}
"""Makes the library read only names and shapes of weights, no values."""


def config_of(text: str, task: str | None = None) -> Any:
    """Return the library's config object for a config text.

    Args:
        task: the task of the module; None: no task.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: the library does not know the architecture, rejects these values, or exceeds its limits with them.
    """
    check_library()
    sizes_of(text, task)
    return library_config(text)


def build_architecture(text: str, task: str, *, without_values: bool = False) -> nn.Module:
    """Build a module of the library in training mode, initialised by the library.

    Args:
        text: config of a manifest, as `peer.config.hf_config.checked_config` accepts it.
        task: one of `TASKS`.
        without_values: build on torch's meta device, where tensors take no memory.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: the library has no such architecture with such a head, or cannot build it with these values.
    """
    check_library()
    sizes_of(text, task)
    return library_module(text, task, torch.device("meta" if without_values else "cpu"))


@dataclass(frozen=True, slots=True)
class Compressed:
    """Frozen weights of 8 (arXiv 2208.07339) or 4 bits (NF4, arXiv 2305.14314) on a device, through bitsandbytes."""

    num_bits: int
    device: torch.device

    def check(self) -> None:
        """Check with one small layer that bitsandbytes is installed and computes on the device.

        Raises:
            UsageFault: bitsandbytes is not installed, or does not compute on the device.
        """
        try:
            from bitsandbytes.nn import Linear4bit, Linear8bitLt

            layer = Linear8bitLt(64, 64, has_fp16_weights=False) if self.num_bits == 8 else Linear4bit(64, 64)
            inputs = torch.ones(1, 64, device=self.device, requires_grad=True)
            layer.to(self.device)(inputs).sum().backward()
        except Exception as error:  # Builds for different hardware raise different errors.
            is_missing = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("bitsandbytes")
            why = "is not installed" if is_missing else f"does not compute on {self.device}"
            reason = "" if is_missing else f" ({' '.join(str(error).split())[:200]})"
            raise UsageFault(
                f"--base-bits {self.num_bits} needs bitsandbytes, which {why} here{reason}; expected a working "
                "bitsandbytes; run: pip install bitsandbytes, or omit --base-bits"
            ) from error

    def options(self) -> dict[str, Any]:
        """Return arguments for the library's `from_pretrained`, which does not compress output layers.

        Raises:
            UsageFault: see `check`.
        """
        self.check()
        kind = {"load_in_8bit": True} if self.num_bits == 8 else {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
        return {"quantization_config": library().BitsAndBytesConfig(**kind), "device_map": {"": self.device}}


def load_architecture(text: str, task: str, folder: Path, compressed: Compressed | None = None) -> nn.Module:
    """Load a module of the library with pretrained weights, in training mode, on the CPU and in the config's type.

    Args:
        folder: folder with safetensors files; no other file in it is loaded.
        compressed: fewer bits for linear layers, which are then on its device; None: all bits.

    Raises:
        UsageFault: transformers or bitsandbytes is not installed.
        Incompatible: the weights do not fit the config, or are only an adapter for other weights.
    """
    return _to_train(_loaded(text, task, folder, {} if compressed is None else compressed.options()))


def _to_train(module: nn.Module) -> nn.Module:
    for layer in module.modules():
        # Measuring on a processor with AVX-512 permanently converts such a layer to a form without gradients.
        if hasattr(layer, _CPU_FORM):
            setattr(layer, _CPU_FORM, False)
    trained: nn.Module = module.train()
    return trained


def check_weights(text: str, task: str, folder: Path) -> None:
    """Check the names and shapes of pretrained weights, without their values.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: see `load_architecture`.
    """
    _loaded(text, task, folder, _NAMES_ALONE)


@dataclass(frozen=True, slots=True)
class WeightsFit:
    """Which tensors of pretrained weights an architecture uses.

    Attributes:
        unused: names of tensors that the library does not load.
        tied: each additional name of a parameter with several names, mapped to its first name.
    """

    unused: Collection[str]
    tied: Mapping[str, str]


def weights_fit(text: str, task: str, folder: Path) -> WeightsFit:
    """Compare the names of pretrained weights with those of an architecture; missing weights are not an error here.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: see `load_architecture`.
    """
    _, found = _opened(text, task, folder, _NAMES_ALONE)
    firsts: dict[int, str] = {}
    tied: dict[str, str] = {}
    # Built again, because the opened module is not tied where the files contain both tensors.
    for name, parameter in build_architecture(text, task, without_values=True).named_parameters(remove_duplicate=False):
        first = firsts.setdefault(id(parameter), name)
        if first != name:
            tied[name] = first
    return WeightsFit(found["unexpected_keys"], tied)


def _opened(text: str, task: str, folder: Path, options: Mapping[str, Any]) -> tuple[nn.Module, Mapping[str, Any]]:
    """Return the module with the pretrained weights that the library uses, and its `loading_info`."""
    sizes_of(text, task)
    config, head = config_and_head(text, task)
    if (folder / "adapter_config.json").exists():
        raise Incompatible(
            f"{folder} has an adapter_config.json, which refers to other weights; expected complete weights; merge the "
            "adapter into its base model"
        )
    try:
        module, found = head.from_pretrained(
            folder,
            config=config,
            dtype=config.dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # Each mismatch is reported by name below.
            **options,
        )
    except (MemoryError, UsageFault):
        raise
    except Exception as error:  # Weights that do not fit raise any exception of the architecture's code.
        raise refused(config.model_type, error) from error
    return module, found


def _loaded(text: str, task: str, folder: Path, options: Mapping[str, Any]) -> nn.Module:
    """Load the module with all of its weights from a folder."""
    module, found = _opened(text, task, folder, options)
    if found["mismatched_keys"]:
        name, shape, expected = min(found["mismatched_keys"])
        raise Incompatible(
            f"the weights in {folder} have {list(shape)} as shape of {name}, but the config specifies "
            f"{list(expected)}; expected weights of these sizes; use the config.json that belongs to the weights"
        )
    if found["error_msgs"]:
        raise refused(config_of(text, task).model_type, ValueError(str(found["error_msgs"])))
    num_tensors, lacking = len(module.state_dict()), sorted(found["missing_keys"])
    if 2 * len(lacking) > num_tensors:  # weights of a different architecture match almost no name
        others = f", and others such as {min(found['unexpected_keys'])}" if found["unexpected_keys"] else ""
        if wrapper := next((one for one in _WRAPPERS if any(f"{one}." in key for key in found["unexpected_keys"])), ""):
            raise Incompatible(
                f"the names of the weights in {folder} contain {wrapper}.{others}, so they were saved from a wrapped "
                f"model, as with torch.compile or DDP; expected the names of {type(module).__name__}; save the bare "
                f"model, which is the wrapper's attribute {wrapper}"
            )
        raise Incompatible(
            f"the weights in {folder} have {num_tensors - len(lacking)} of the {num_tensors} tensors of "
            f"{type(module).__name__}{others}; expected the tensors of this architecture; use the config.json that "
            "belongs to the weights"
        )
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise Incompatible(
            f"the weights in {folder} lack {', '.join(lacking[:3])}{more}, of the {num_tensors} tensors of "
            f"{type(module).__name__}; expected all of them; use complete weights, or a config.json with the same "
            f"number of layers, or add a new head with transformers: {type(module).__name__}.from_pretrained(DIR)"
            ".save_pretrained(DIR)"
        )
    return module
