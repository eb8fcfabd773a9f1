"""What the codec tests feed to codecs, and how they look at the results."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from averaging.arrays import F32, F64
from averaging.codec import compiled_kernels
from averaging.codec.blocks import EncodedBlocks
from averaging.codec.codec import Codec, KernelChoice, make_codec

BLOCK_CODECS = ("int4", "int8")
ALL_CODECS = (*BLOCK_CODECS, "fp32")
TOP_CODE = {"int4": 7, "int8": 127}

KERNELS: tuple[KernelChoice, ...] = ("numpy", "compiled") if compiled_kernels.kernels() else ("numpy",)
block_sizes = st.sampled_from((8, 16, 64, 128, 384))

relaxed = settings(deadline=None)


def codecs(*names: str) -> st.SearchStrategy[Codec]:
    return st.builds(make_codec, st.sampled_from(names), block_sizes, st.sampled_from(KERNELS))


@st.composite
def arrays(draw: st.DrawFn, max_values: int = 1500, largest: float = 2.0**126) -> F32:
    """Flat float32 arrays whose blocks look like training, like trouble, and like sums of halves (ties)."""
    num_values = draw(st.integers(0, max_values))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(("normal", "wide", "sparse", "ties", "near ties", "tiny", "zero", "huge")))
    values = chance.standard_normal(num_values, dtype=np.float32)
    if kind == "wide":
        values = np.ldexp(values, chance.integers(-140, 120, num_values, dtype=np.int32))
    elif kind == "sparse":
        values *= chance.random(num_values) < 0.02
    elif kind == "ties":
        values = chance.integers(-14, 15, num_values).astype(np.float32)
        values *= 0.5 * 2.0 ** draw(st.integers(-120, 100))
    elif kind == "near ties":
        # Halves of a scale with 8 significant bits, and their float32 neighbours: where a wrong rounding would show.
        top_code = draw(st.sampled_from(sorted(set(TOP_CODE.values()))))
        scale = draw(st.integers(128, 255)) * 2.0 ** draw(st.integers(-90, 80))
        halves = chance.integers(-2 * top_code, 2 * top_code + 1, num_values)
        values = (halves * (scale / 2)).astype(np.float32)
        aside = chance.integers(-1, 2, num_values)
        neighbours = np.nextafter(values, np.where(aside < 0, -np.inf, np.inf).astype(np.float32))
        values = np.where(aside == 0, values, neighbours).clip(-top_code * scale, top_code * scale)
        values[::8] = top_code * scale
    elif kind == "tiny":
        values *= 2.0 ** draw(st.integers(-149, -95))
    elif kind == "zero":
        values *= 0.0
    elif kind == "huge":
        values = values.clip(-1, 1) * 2.0**126
    return values.clip(-largest, largest)


def decoded(codec: Codec, encoded: EncodedBlocks) -> F32:
    out = np.full(encoded.num_values, math.nan, dtype=np.float32)
    codec.decode(encoded, out)
    return out


def scales_of(encoded: EncodedBlocks) -> F64:
    """float64 scale of each value."""
    bits = np.frombuffer(encoded.scales, dtype="<u2").astype(np.uint32) << 16
    return np.repeat(bits.view(np.float32).astype(np.float64), encoded.block_size)[: encoded.num_values]


def same_bits(first: F32, second: F32) -> bool:
    assert first.dtype == second.dtype == np.float32
    return np.array_equal(first.view(np.int32), second.view(np.int32))
