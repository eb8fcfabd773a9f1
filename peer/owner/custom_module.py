"""Checks on the module of a custom run: whether its buffers are averaged, and the digest of its frozen values. No
torch.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from blake3 import blake3

from averaging.outer.fragment_layout import averages_few_buffers
from dht.ground.errors import Incompatible, UsageFault
from peer.config.manifest import RunManifest
from peer.config.model_shapes import OwnModule, bare_name, shared_buffers, trained_parameters

_VALUES_AT_ONCE = 1 << 20

Buffers = Literal["local", "mean"]


def check_module(module: OwnModule) -> None:
    """Check that a run can be made from `module`.

    Raises:
        UsageFault: `module` is not a torch module, trains nothing, or has parameters that cannot be averaged or are
            not finite.
    """
    check_trained(module)
    for name, parameter in trained_parameters(module):
        if not (parameter.is_meta or bool(parameter.isfinite().all())):
            raise UsageFault(f"parameter {name!r} has values that are NaN or infinite; expected finite initial values.")


def check_trained(module: OwnModule) -> None:
    """Check that the parameters can be averaged, whatever their values are.

    Raises:
        UsageFault: `module` is not a torch module, trains nothing, or has parameters that cannot be averaged.
    """
    if not hasattr(module, "named_parameters"):
        raise UsageFault(f"module is a {type(module).__name__}; expected a torch.nn.Module.")
    for name, parameter in module.named_parameters():
        if type(parameter).__name__ == "UninitializedParameter":
            raise UsageFault(
                f"parameter {name!r} has no shape yet; expected a shape for each parameter; call the module once on an "
                "example."
            )
    found = trained_parameters(module)
    if not found:
        raise UsageFault("the module has no parameter with requires_grad; expected at least one to train.")
    for name, parameter in found:
        if not parameter.dtype.is_floating_point:
            raise UsageFault(
                f"parameter {name!r} is {parameter.dtype}, which cannot be averaged; expected a floating-point type; "
                "convert it, or register it as a buffer."
            )


def check_has_values(name: str, parameter: Any) -> None:
    """Raise UsageFault for a parameter on the meta device, where libraries put parameters that they keep on disk."""
    if parameter.is_meta:
        raise UsageFault(
            f"parameter {name!r} is on the meta device and has no values; expected values; create the module on a "
            "real device"
        )


def chosen_buffers(module: OwnModule, asked: str | None) -> Buffers:
    """Return whether a new run averages running statistics: as asked, or by default if there are few of them.

    Raises:
        UsageFault: `asked` is not a valid choice, or the module has no buffers to average.
    """
    num_values = sum(buffer.numel() for _, buffer in shared_buffers(module))
    num_parameters = sum(parameter.numel() for _, parameter in trained_parameters(module))
    if asked not in (None, "local", "mean"):
        raise UsageFault(f"buffers is {asked!r}; expected 'local' or 'mean'; omit it for the default.")
    if asked == "mean" and not num_values:
        raise UsageFault(
            "buffers is 'mean', but the module has no saved floating-point buffers apart from masks; expected at least "
            "one; omit buffers."
        )
    is_mean = averages_few_buffers(num_values, num_parameters) if asked is None else asked == "mean"
    return "mean" if is_mean else "local"


def frozen_digest(module: OwnModule) -> str | None:
    """Return the BLAKE3 digest (64 hexadecimal digits) of the frozen parameters, or None if nothing is frozen.

    The digest covers names, shapes and values. Values are hashed as float32, so a base that is held at 16 bits has the
    same digest as the same values at 32 bits.

    Raises:
        UsageFault: a frozen parameter has no values.
    """
    digest, has_any = blake3(), False
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            continue
        check_has_values(name, parameter)
        has_any = True
        digest.update(repr((bare_name(name, module), tuple(parameter.shape))).encode())
        flat = parameter.detach().reshape(-1)
        for start in range(0, math.prod(parameter.shape), _VALUES_AT_ONCE):
            digest.update(flat[start : start + _VALUES_AT_ONCE].float().cpu().numpy().tobytes())
    return digest.hexdigest() if has_any else None


def check_frozen_digest(manifest: RunManifest, module: OwnModule) -> None:
    """Check the frozen parameters before a peer trains.

    Raises:
        Incompatible: the run was created with different frozen values.
    """
    expected = manifest.model.frozen_digest
    if expected is None:
        return
    found = frozen_digest(module)
    if found != expected:
        got = f"different frozen parameters ({found[:16]})" if found else "no frozen parameters"
        raise Incompatible(
            f"this module has {got}; expected those of the run ({expected[:16]}), because training beside a different "
            "base model is useless; load the base model that the run's owner specifies, and freeze the same "
            "parameters"
        )
