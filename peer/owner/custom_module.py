"""What a custom run says of its owner's module: whether running statistics are averaged, what is frozen. No torch."""

from __future__ import annotations

import math
from typing import Literal

from blake3 import blake3

from averaging.outer.fragment_layout import averages_few_buffers
from dht.errors import Incompatible, UsageFault
from peer.config.manifest import RunManifest
from peer.config.model_shapes import OwnModule, bare_name, shared_buffers, trained_parameters

_VALUES_AT_ONCE = 1 << 20

Buffers = Literal["local", "mean"]


def check_module(module: OwnModule) -> None:
    """Can a run be made of it?

    Raises:
        UsageFault: it is no module, it trains nothing, or its parameters cannot be averaged or are no numbers.
    """
    if not hasattr(module, "named_parameters"):
        raise UsageFault(f"module is a {type(module).__name__}; expected a torch.nn.Module.")
    found = trained_parameters(module)
    if not found:
        raise UsageFault("the module has no parameter with requires_grad; expected something to train.")
    for name, parameter in found:
        if type(parameter).__name__ == "UninitializedParameter":
            raise UsageFault(
                f"parameter {name!r} has no shape yet; expected all of them; call the module once on an example."
            )
        if not parameter.dtype.is_floating_point:
            raise UsageFault(
                f"parameter {name!r} is {parameter.dtype}, which cannot be averaged; expected real numbers; keep it as "
                "one of these, or as a buffer."
            )
        if not (parameter.is_meta or bool(parameter.isfinite().all())):
            raise UsageFault(f"parameter {name!r} has values that are NaN or infinite; expected numbers to begin with.")


def chosen_buffers(module: OwnModule, asked: str | None) -> Buffers:
    """What a new run does with running statistics: as asked; by default they are averaged where they are few.

    Raises:
        UsageFault: another word, or there are none to average.
    """
    num_values = sum(buffer.numel() for _, buffer in shared_buffers(module))
    num_parameters = sum(parameter.numel() for _, parameter in trained_parameters(module))
    if asked not in (None, "local", "mean"):
        raise UsageFault(f"buffers is {asked!r}; expected 'local' or 'mean'; leave it out for the usual choice.")
    if asked == "mean" and not num_values:
        raise UsageFault("buffers is 'mean', and the module has none of real numbers that are saved; leave it out.")
    is_mean = averages_few_buffers(num_values, num_parameters) if asked is None else asked == "mean"
    return "mean" if is_mean else "local"


def frozen_digest(module: OwnModule) -> str | None:
    """BLAKE3 (64 hexadecimal digits) of names, shapes and values of what is not trained; None when all is.

    Values count as float32, so a base that is held at 16 bits has the digest of the same values at 32.
    """
    digest, has_any = blake3(), False
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            continue
        has_any = True
        digest.update(repr((bare_name(name, module), tuple(parameter.shape))).encode())
        flat = parameter.detach().reshape(-1)
        for start in range(0, math.prod(parameter.shape), _VALUES_AT_ONCE):
            digest.update(flat[start : start + _VALUES_AT_ONCE].float().cpu().numpy().tobytes())
    return digest.hexdigest() if has_any else None


def check_frozen_digest(manifest: RunManifest, module: OwnModule) -> None:
    """Before a peer trains beside what it does not train.

    Raises:
        Incompatible: the run was made beside other values.
    """
    expected = manifest.model.frozen_digest
    if expected is None:
        return
    found = frozen_digest(module)
    if found != expected:
        got = "no frozen parameter" if found is None else f"other frozen parameters ({found[:16]})"
        raise Incompatible(
            f"this module has {got} than the run was made with ({expected[:16]}); expected the same base model, frozen "
            "in the same places; what is trained beside another one is worth nothing: load the base that the run's "
            "owner names"
        )
