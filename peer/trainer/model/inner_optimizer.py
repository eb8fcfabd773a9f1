"""The optimizer of the built-in inner loop, which the manifest selects."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from dht.ground.errors import UsageFault
from peer.config.model_shapes import is_hidden_matrix
from peer.config.peer_config import OptimizerBits
from peer.config.training_section import TrainingSection, check_optimizer_bits
from peer.trainer.model.muon import Muon


def load_optimizers() -> None:
    """Trigger the imports that torch makes with a process's first optimizer: its compiler, most of a second."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])


BETAS = (0.9, 0.95)
"""Decays of AdamW's moments (arXiv 1412.6980). The second as in published runs of language models: 0.99 lowered the
loss of eight small peers by half a percent, less than two seeds differ."""
WEIGHT_DECAY = 0.1
"""Decoupled (arXiv 1711.05101), for matrices: as in published runs of language models; no run needed another value."""


def has_fused(parameters: Iterable[Tensor]) -> bool:
    """Return whether torch has fused AdamW kernels for parameters of this type and device."""
    # torch has no public function for this; its own optimizers call the same one.
    from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

    devices = _get_fused_kernels_supported_devices()
    return all(one.device.type in devices and one.is_floating_point() for one in parameters)


def make_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]],
    settings: TrainingSection,
    *,
    fused: bool = False,
    bits: OptimizerBits = "32",
    betas: tuple[float, float] = BETAS,
) -> torch.optim.Optimizer:
    """Make AdamW (arXiv 1711.05101), or Muon (see `muon.py`) for matrices between hidden layers and AdamW for the rest.

    Vectors do not decay: decaying norm gains only slows them down.

    Args:
        parameters: (name, parameter); parameters without gradients are left out.
        fused: use AdamW's fused kernels; Muon has none.
        betas: decay rates of AdamW's moments.
        bits: bits of the moments; 8 (arXiv 2110.02861) requires bitsandbytes.

    Raises:
        UsageFault: 8 bits with Muon, or without bitsandbytes.
    """
    check_optimizer_bits(settings.optimizer, bits)
    eight_bit_adamw = _eight_bit_adamw() if bits == "8" else None
    trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    decayed = [(name, parameter) for name, parameter in trained if parameter.dim() >= 2]
    vectors = [parameter for _, parameter in trained if parameter.dim() < 2]
    if settings.optimizer == "muon":
        hidden = [is_hidden_matrix(name, tuple(parameter.shape)) for name, parameter in decayed]
        return Muon(
            [parameter for (_, parameter), is_hidden in zip(decayed, hidden, strict=True) if is_hidden],
            [parameter for (_, parameter), is_hidden in zip(decayed, hidden, strict=True) if not is_hidden],
            undecayed=vectors,
            lr=settings.learning_rate,
            betas=betas,
            weight_decay=WEIGHT_DECAY,
        )
    groups = [
        {"params": [parameter for _, parameter in decayed], "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if eight_bit_adamw is not None:
        return eight_bit_adamw([group for group in groups if group["params"]], lr=settings.learning_rate, betas=betas)
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=settings.learning_rate, betas=betas, fused=fused
    )


def _eight_bit_adamw() -> Callable[..., torch.optim.Optimizer]:
    try:
        from bitsandbytes.optim import AdamW8bit
    except (ImportError, OSError, RuntimeError) as error:
        raise UsageFault(
            f"--optimizer-bits 8 needs bitsandbytes, which cannot be loaded here ({' '.join(str(error).split())[:200]})"
            "; run: `pip install bitsandbytes`, or omit --optimizer-bits."
        ) from error
    made: Callable[..., torch.optim.Optimizer] = AdamW8bit
    return made
