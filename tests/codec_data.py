"""What the codec tests feed to codecs, and how they look at the results."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from averaging import compiled
from averaging.codec import Codec, KernelChoice, make_codec
from averaging.encoded import SCALE_BYTES, EncodedBlocks

BLOCK_CODECS = ("int4", "e3m0", "int8", "int2")
ALL_CODECS = (*BLOCK_CODECS, "fp16", "fp32")
TOP_CODE = {"int4": 7, "e3m0": 1, "int8": 127, "int2": 1}

KERNELS: tuple[KernelChoice, ...] = ("torch", "compiled") if compiled.kernels() else ("torch",)
block_sizes = st.sampled_from((8, 16, 64, 128, 384))

relaxed = settings(deadline=None)


def codecs(*names: str, scales: tuple[str, ...] = tuple(SCALE_BYTES)) -> st.SearchStrategy[Codec]:
    return st.builds(
        make_codec, st.sampled_from(names), block_sizes, st.sampled_from(KERNELS), scale=st.sampled_from(scales)
    )


@st.composite
def tensors(draw: st.DrawFn, max_values: int = 1500, largest: float = 2.0**126) -> Tensor:
    """Flat float32 tensors whose blocks look like training, like trouble, and like sums of halves (ties)."""
    num_values = draw(st.integers(0, max_values))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(("normal", "wide", "sparse", "ties", "near ties", "tiny", "zero", "huge")))
    values = torch.randn(num_values, generator=generator)
    if kind == "wide":
        values *= torch.exp2(torch.randint(-140, 120, (num_values,), generator=generator).to(torch.float32))
    elif kind == "sparse":
        values *= torch.rand(num_values, generator=generator) < 0.02
    elif kind == "ties":
        values = torch.randint(-14, 15, (num_values,), generator=generator) * 0.5
        values *= 2.0 ** draw(st.integers(-120, 100))
    elif kind == "near ties":
        # Halves of a scale with 8 significant bits, and their float32 neighbours: where a wrong rounding would show.
        top_code = draw(st.sampled_from(sorted(set(TOP_CODE.values()))))
        scale = draw(st.integers(128, 255)) * 2.0 ** draw(st.integers(-90, 80))
        values = torch.randint(-2 * top_code, 2 * top_code + 1, (num_values,), generator=generator) * (scale / 2)
        aside = torch.randint(-1, 2, (num_values,), generator=generator) * torch.inf
        values = torch.where(aside.isnan(), values, torch.nextafter(values, aside)).clamp(
            -top_code * scale, top_code * scale
        )
        values[::8] = top_code * scale
    elif kind == "tiny":
        values *= 2.0 ** draw(st.integers(-149, -95))
    elif kind == "zero":
        values *= 0.0
    elif kind == "huge":
        values = values.clamp(-1, 1) * 2.0**126
    return values.to(torch.float32).clamp(-largest, largest)


def values_for(codec: Codec, values: Tensor) -> Tensor:
    return values.clamp(-65504, 65504) if codec.name == "fp16" else values


def decoded(codec: Codec, encoded: EncodedBlocks) -> Tensor:
    out = torch.full((encoded.num_values,), math.nan)
    codec.decode(encoded, out)
    return out


def scales_of(encoded: EncodedBlocks) -> Tensor:
    """float64 scale of each value."""
    stored = np.frombuffer(encoded.scales, dtype=f"<u{SCALE_BYTES[encoded.scale]}").astype(np.uint32)
    bits = stored << {"bf16": 16, "fp32": 0, "pow2": 23}[encoded.scale]
    return torch.from_numpy(bits.view(np.float32).astype(np.float64)).repeat_interleave(encoded.block_size)[
        : encoded.num_values
    ]


def same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.view(torch.int32), second.view(torch.int32))
