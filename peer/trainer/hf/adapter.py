"""LoRA (arXiv 2106.09685) through peft: only small matrices beside frozen weights are trained, averaged and saved.

Every peer begins with the same bits: A is drawn from the run's seed, and B is zero, so that the first step computes
what the base computes. Adapters are float32, whatever the base's type.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import torch
from torch import nn

from dht.ground.errors import Incompatible, UsageFault
from peer.config.model_section import AdapterSection
from peer.optional_libraries import needing
from peer.trainer.hf.initial_values import fill_uniform

ALL_LINEAR = "all-linear"
"""The name that peft uses for all linear layers except the output head."""
ALPHA_PER_RANK = 2
"""Alpha / rank: the factor of an adapter's output. Changing the learning rate has the same effect as another value."""


def check_adapters() -> None:
    """Check that adapters can be used.

    Raises:
        UsageFault: peft is not installed.
    """
    with needing("an adapter", "peft", "hf"):
        import peft  # noqa: F401


def with_adapter(base: nn.Module, section: AdapterSection, seed: int | None) -> nn.Module:
    """Freeze `base`, add trainable adapters to it, and return the `peft.PeftModel`.

    Args:
        base: a module of transformers.
        seed: seed of the initial values; None: no values, because the base is on the meta device.

    Raises:
        UsageFault: peft is not installed.
        Incompatible: no layer of the base matches a target, or the base does not support adapters.
    """
    check_adapters()
    from peft import LoraConfig, get_peft_model

    _check_targets(base, section.targets)
    config = LoraConfig(
        r=section.rank,
        lora_alpha=ALPHA_PER_RANK * section.rank,
        target_modules=list(section.targets),
        lora_dropout=0.0,
        bias="none",
    )
    device = next(base.parameters()).device
    try:
        with device, warnings.catch_warnings():
            # peft uses an attribute that newer versions of transformers have renamed.
            warnings.simplefilter("ignore", FutureWarning)
            # peft detects by itself that GPT-2's matrices are transposed.
            warnings.filterwarnings("ignore", "fan_in_fan_out")
            model: nn.Module = get_peft_model(base, config)
    except (TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:300]
        raise Incompatible(
            f"peft cannot put this adapter into {type(base).__name__}: {text}; choose other targets"
        ) from error
    if seed is not None:
        _initialise(model, seed)
    return model


def candidates(base: nn.Module) -> list[str]:
    """Return the names of linear layers in the model's blocks, without their paths: the valid targets."""
    head = getattr(base, "get_output_embeddings", lambda: None)()
    return list(
        dict.fromkeys(
            name.rpartition(".")[2]
            for name, module in base.named_modules()
            if _is_linear(module) and module is not head and any(part.isdecimal() for part in name.split("."))
        )
    )


def chosen_targets(base: nn.Module, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the targets for `--targets`: the given names, or all linear layers of the blocks.

    Raises:
        UsageFault: no layer has such a name, or the layer shares its matrix with another part of the model.
    """
    if not asked or asked == (ALL_LINEAR,):
        asked = tuple(candidates(base))
    try:
        _check_targets(base, asked)
    except Incompatible as fault:
        raise UsageFault(str(fault)) from fault
    owners: dict[int, list[str]] = {}
    for name, parameter in base.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name.rpartition(".")[0])
    for names in owners.values():
        tied = [(name, target) for name in names for target in asked if f".{name}".endswith(f".{target}")]
        if tied and len(names) > 1:
            name, target = tied[0]
            other = next(one for one in names if one != name)
            raise UsageFault(
                f"--targets has {target!r}, which shares its matrix with {other}, so a merged adapter would change "
                f"both; expected layers with separate matrices, such as {', '.join(candidates(base)[:4])}; leave out "
                f"{target}."
            )
    return asked


def _check_targets(base: nn.Module, targets: tuple[str, ...]) -> None:
    modules = dict(base.named_modules())
    for target in targets:
        found = [module for name, module in modules.items() if name == target or name.endswith(f".{target}")]
        if not found or not all(_is_linear(module) for module in found):
            known = ", ".join(candidates(base)) or "none: this architecture has no linear layer in its blocks"
            raise Incompatible(
                f"the adapter's target {target!r} is not a linear layer of {type(base).__name__}; expected some of "
                f"{known}"
            )
    if not targets:
        raise Incompatible(f"{type(base).__name__} has no linear layer in its blocks; train it without an adapter")


def _is_linear(module: nn.Module) -> bool:
    # GPT-2's layers are of a class of transformers with transposed matrices.
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


@torch.no_grad()
def _initialise(model: nn.Module, seed: int) -> None:
    for name, parameter in _trained(model):
        if "lora_A" in name:
            # The distribution that peft uses: He's uniform distribution with a = sqrt(5).
            fill_uniform(parameter, seed, name, 0.0, 1 / math.sqrt(parameter.shape[1]))
        elif "lora_B" in name:
            parameter.zero_()


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
