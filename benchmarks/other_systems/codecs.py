"""What others encode with, for `bench_codec.py`: hivemind's compressions, bitsandbytes' blocks on the CPU.

hivemind is called in parts of 512 KB, as its averager does. The package bitsandbytes is no dependency of ours. Without
it (and where something else is missing or broken) a sentence says what was left out, and the rest is measured.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

PART_VALUES = 512 * 1024 // 4
BLOCK_SIZE = 128


@dataclass(frozen=True, slots=True)
class Other:
    """A codec that is not ours; `encode` and `decode` go over all values once.

    Attributes:
        bits_per_value: on the wire, scales included.
        broken: why `decode` does not work with what is installed; empty when it does.
    """

    name: str
    bits_per_value: float
    encode: Callable[[], object]
    decode: Callable[[], object] | None
    broken: str = ""


def others(values: Tensor, say: Callable[[str], None]) -> Iterator[Other]:
    """Every codec that is installed; what is left out is said in a sentence."""
    parts = list(torch.split(values, PART_VALUES))
    yield from _of_hivemind(parts, say)
    if importlib.util.find_spec("bitsandbytes") is None:
        say(
            "bitsandbytes is not installed, so its codecs and hivemind's blockwise one are left out; install it with: "
            "pip install bitsandbytes"
        )
        return
    yield from _of_bitsandbytes(values)


def _of_hivemind(parts: list[Tensor], say: Callable[[str], None]) -> Iterator[Other]:
    from hivemind.compression import (
        BlockwiseQuantization,
        CompressionInfo,
        Float16Compression,
        Uniform8BitQuantization,
    )
    from hivemind.utils import TensorDescriptor

    infos = [CompressionInfo(key=0, descriptor=TensorDescriptor.from_tensor(part)) for part in parts]
    for compression in (Float16Compression(), Uniform8BitQuantization(), BlockwiseQuantization()):
        name = f"hivemind {type(compression).__name__}"

        def encode(compression=compression):  # type: ignore[no-untyped-def]
            return [compression.compress(part, info) for part, info in zip(parts, infos, strict=True)]

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                encoded = encode()
        except ImportError:
            continue
        bits = 8 * sum(len(message.buffer) for message in encoded) / sum(len(part) for part in parts)

        def decode(compression=compression, encoded=encoded):  # type: ignore[no-untyped-def]
            return [compression.extract(message) for message in encoded]

        try:
            decode()
        except (TypeError, ValueError, RuntimeError) as error:
            broken = f"{name} cannot decode what it encoded with the packages here ({type(error).__name__}: {error})"
            say(f"{broken}; only encoding is measured, and its averager cannot use it (see benchmarks/README.md)")
            yield Other(name, bits, encode, None, broken)
            continue
        yield Other(name, bits, encode, decode)


def _of_bitsandbytes(values: Tensor) -> Iterator[Other]:
    from bitsandbytes import functional

    for kind in ("nf4", "fp4"):
        codes, state = functional.quantize_4bit(values, blocksize=BLOCK_SIZE, quant_type=kind)
        yield Other(
            f"bitsandbytes {kind}",
            4 + 32 / BLOCK_SIZE,
            lambda kind=kind: functional.quantize_4bit(values, blocksize=BLOCK_SIZE, quant_type=kind),  # type: ignore[misc]
            lambda codes=codes, state=state: functional.dequantize_4bit(codes, state),  # type: ignore[misc]
        )
    codes, state = functional.quantize_blockwise(values, blocksize=4096)
    yield Other(
        "bitsandbytes 8-bit",
        8 + 32 / 4096,
        lambda: functional.quantize_blockwise(values, blocksize=4096),
        lambda: functional.dequantize_blockwise(codes, state),
    )
