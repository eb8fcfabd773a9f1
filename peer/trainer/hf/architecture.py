"""A config text as a module of transformers, with the head of a task; nothing but the library's own code is loaded.

A child with limits builds it first (`peer.memory.architecture_sizes`): a config of a few hundred bytes may take all
memory of the process that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
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
"""Attribute of bitsandbytes' layers of 4 bits."""
_WRAPPERS = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "module")
"""Attributes under which wrappers of a model keep it, so that the names of all its tensors begin with one."""
_NAMES_ALONE = {"device_map": "meta"}
"""Has the library read names and shapes of weights, and no values."""


def config_of(text: str, task: str | None = None) -> Any:
    """The library's config object of a config text.

    Args:
        task: whose module it is for; None: for none.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: it does not know the architecture, does not take these values, or takes too much for them.
    """
    check_library()
    sizes_of(text, task)
    return library_config(text)


def build_architecture(text: str, task: str, *, without_values: bool = False) -> nn.Module:
    """A module of the library in training mode, initialised by the library.

    Args:
        text: config of a manifest, as `peer.config.hf_config.checked_config` takes it.
        task: one of `TASKS`.
        without_values: on torch's meta device, where nothing takes memory.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: it has no such architecture with such a head, or cannot build it with these values.
    """
    check_library()
    sizes_of(text, task)
    return library_module(text, task, torch.device("meta" if without_values else "cpu"))


@dataclass(frozen=True, slots=True)
class Compressed:
    """Frozen weights of 8 (arXiv 2208.07339) or 4 bits (NF4, arXiv 2305.14314) through bitsandbytes, on a device.

    Attributes:
        trained: names of modules that are not frozen, and keep all bits as output layers do.
    """

    num_bits: int
    device: torch.device
    trained: tuple[str, ...] = ()

    def check(self) -> None:
        """See on one small layer that this machine has the library, and that it computes on the device.

        Raises:
            UsageFault: bitsandbytes is not installed, or cannot do it here.
        """
        try:
            from bitsandbytes.nn import Linear4bit, Linear8bitLt

            layer = Linear8bitLt(64, 64, has_fp16_weights=False) if self.num_bits == 8 else Linear4bit(64, 64)
            inputs = torch.ones(1, 64, device=self.device, requires_grad=True)
            layer.to(self.device)(inputs).sum().backward()
        except Exception as error:  # Builds for other hardware fail in ways of their own.
            is_missing = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("bitsandbytes")
            why = "is not installed" if is_missing else f"does not compute on {self.device}"
            reason = "" if is_missing else f" ({' '.join(str(error).split())[:200]})"
            raise UsageFault(
                f"--base-bits {self.num_bits} needs bitsandbytes, which {why} here{reason}; expected it; run: pip "
                "install bitsandbytes, or leave --base-bits out"
            ) from error

    def options(self, text: str, task: str) -> dict[str, Any]:
        """For the library's `from_pretrained` of a config text.

        Raises:
            UsageFault: as from `check`.
        """
        self.check()
        kind = {"load_in_8bit": True} if self.num_bits == 8 else {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
        # The library leaves output layers out by itself, unless it is given names.
        kept = [*self.trained, *_output_layers(text, task)] if self.trained else None
        config = library().BitsAndBytesConfig(**kind, llm_int8_skip_modules=kept)
        return {"quantization_config": config, "device_map": {"": self.device}}


def load_architecture(
    text: str, task: str, folder: Path, missing: Callable[[], nn.Module], compressed: Compressed | None = None
) -> nn.Module:
    """A module of the library with given weights, in training mode, on the CPU and of the config's type.

    Args:
        folder: with safetensors files and nothing else that is loaded.
        missing: builds the same module with initial values, for parameters that the weights lack, such as a new head.
        compressed: fewer bits for linear layers, which are then on its device; None: all bits.

    Raises:
        UsageFault: the library, or the one for fewer bits, is not installed.
        Incompatible: the weights do not fit the config, or are only an adapter of others.
    """
    options = {} if compressed is None else compressed.options(text, task)
    module, missing_names = _loaded(text, task, folder, options)
    if missing_names:
        _fill_in(module, missing(), missing_names)
    return _to_train(module)


def _to_train(module: nn.Module) -> nn.Module:
    for layer in module.modules():
        # While such a layer measures on a processor with AVX-512, it takes a form without gradients, and keeps it.
        if hasattr(layer, _CPU_FORM):
            setattr(layer, _CPU_FORM, False)
    trained: nn.Module = module.train()
    return trained


def check_weights(text: str, task: str, folder: Path) -> Collection[str]:
    """The names of parameters that given weights lack; only names and shapes are looked at.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: as from `load_architecture`.
    """
    return _loaded(text, task, folder, _NAMES_ALONE)[1]


@dataclass(frozen=True, slots=True)
class WeightsFit:
    """Which tensors of given weights an architecture takes.

    Attributes:
        unused: names of tensors that the library does not load.
        tied: each further name of a parameter that has several, and its first name.
    """

    unused: Collection[str]
    tied: Mapping[str, str]


def weights_fit(text: str, task: str, folder: Path) -> WeightsFit:
    """Compare the names of given weights with those of an architecture; what the weights lack is no fault here.

    Raises:
        UsageFault: the library is not installed.
        Incompatible: as from `load_architecture`.
    """
    _, found = _opened(text, task, folder, _NAMES_ALONE)
    firsts: dict[int, str] = {}
    tied: dict[str, str] = {}
    # Built anew: what was opened is not tied where the files have both.
    for name, parameter in build_architecture(text, task, without_values=True).named_parameters(remove_duplicate=False):
        first = firsts.setdefault(id(parameter), name)
        if first != name:
            tied[name] = first
    return WeightsFit(found["unexpected_keys"], tied)


def _is_below_head(module: nn.Module, name: str) -> bool:
    """Whether weights that were trained for another task have a tensor, too."""
    if name.endswith(".num_batches_tracked") or "pooler" in name:
        # Files of older versions have no such counts; who learned to fill in words pooled nothing.
        return False
    prefix = str(getattr(module, "base_model_prefix", ""))
    if prefix and hasattr(module, prefix):
        return name.startswith(f"{prefix}.")
    return any(part.isdecimal() for part in name.split("."))


def _opened(text: str, task: str, folder: Path, options: Mapping[str, Any]) -> tuple[nn.Module, Mapping[str, Any]]:
    """The module with what the library takes of given weights, and its `loading_info`."""
    sizes_of(text, task)
    config, head = config_and_head(text, task)
    if (folder / "adapter_config.json").exists():
        raise Incompatible(
            f"{folder} has an adapter_config.json, which leads to other weights; expected a model's own weights; merge "
            "the adapter into them"
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
            ignore_mismatched_sizes=True,  # They are told below, each by its name.
            **options,
        )
    except (MemoryError, UsageFault):
        raise
    except Exception as error:  # Weights that do not fit come as whatever the architecture's code ran into.
        raise refused(config.model_type, error) from error
    return module, found


def _loaded(text: str, task: str, folder: Path, options: Mapping[str, Any]) -> tuple[nn.Module, Collection[str]]:
    """The module with given weights, and the names of the parameters that these lack."""
    module, found = _opened(text, task, folder, options)
    if found["mismatched_keys"]:
        name, shape, expected = min(found["mismatched_keys"])
        raise Incompatible(
            f"the weights in {folder} have {list(shape)} as shape of {name}, and the config makes it "
            f"{list(expected)}; expected weights of these sizes; take the config.json that belongs to them"
        )
    if found["error_msgs"]:
        raise refused(config_of(text, task).model_type, ValueError(str(found["error_msgs"])))
    num_tensors, lacking = len(module.state_dict()), found["missing_keys"]
    # A new head or a pooler is a few of them; another architecture's weights have nearly none.
    if 2 * len(lacking) > num_tensors:
        others = f", and others such as {min(found['unexpected_keys'])}" if found["unexpected_keys"] else ""
        if wrapper := next((one for one in _WRAPPERS if any(f"{one}." in key for key in found["unexpected_keys"])), ""):
            raise Incompatible(
                f"the names of the weights in {folder} have {wrapper}. in them{others}: they were saved from a wrapped "
                f"model, as torch.compile or DDP makes one; expected the names of {type(module).__name__}; save the "
                f"bare model, which is the wrapper's attribute {wrapper}"
            )
        raise Incompatible(
            f"the weights in {folder} have {num_tensors - len(lacking)} of the {num_tensors} tensors of "
            f"{type(module).__name__}{others}; expected those of this architecture; take the config.json that belongs "
            "to them"
        )
    if below := sorted(name for name in lacking if _is_below_head(module, name)):
        more = f" and {len(below) - 3} more" if len(below) > 3 else ""
        raise Incompatible(
            f"the weights in {folder} lack {', '.join(below[:3])}{more}, of the {num_tensors} tensors of "
            f"{type(module).__name__}; expected all but those of a new head, as the rest would begin with random "
            "values; take whole weights, or a config.json with as many layers as they have"
        )
    return module, lacking


def _output_layers(text: str, task: str) -> list[str]:
    module: Any = build_architecture(text, task, without_values=True)
    output = module.get_output_embeddings()
    return [name for name, part in module.named_modules() if part is output]


@torch.no_grad()
def _fill_in(module: nn.Module, initial: nn.Module, names: Iterable[str]) -> None:
    values = initial.state_dict()
    for name, tensor in module.state_dict().items():
        if name in names and name in values:
            tensor.copy_(values[name])
