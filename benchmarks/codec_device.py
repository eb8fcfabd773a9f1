"""Rates of the kernels for CUDA devices, for `bench_codec.py --device`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from averaging.codec.cuda_codec import INTEGER_CODECS, DeviceCodec

WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class DeviceRate:
    """One operation; a rate is of float32 values, the traffic is all that has to cross the device's memory.

    Attributes:
        of_copy: traffic a second over that of copying a tensor of the same size in the same run.
    """

    codec: str
    operation: str
    median_gigabytes_per_second: float
    traffic_gigabytes_per_second: float
    of_copy: float


def device_rates(names: Sequence[str], num_values: int, repeats: int, device: torch.device) -> Iterator[DeviceRate]:
    """A copy first, then encoding (alone, with residual) and decoding (alone, accumulating) with each codec."""
    values = torch.randn(num_values, device=device, generator=torch.Generator(device).manual_seed(1))
    work, out = values.clone(), torch.zeros_like(values)
    copy_seconds = _seconds(lambda: out.copy_(values), lambda: None, repeats)
    copy_traffic = 8 * num_values / copy_seconds / 1e9
    yield DeviceRate("-", "memcpy", copy_traffic / 2, copy_traffic, 1.0)
    for name in names:
        if name not in INTEGER_CODECS:
            continue
        codec = DeviceCodec(name)
        whole = num_values // codec.block_size * codec.block_size
        scales, codes, _ = codec.launch_encode(values[:whole], keeps_residual=False)
        encoded_bytes = (scales.nbytes + codes.nbytes) / whole

        def encode(keeps_residual: bool, codec: DeviceCodec = codec, whole: int = whole) -> Callable[[], object]:
            return lambda: codec.launch_encode(work[:whole], keeps_residual)

        def decode(
            weight: float | None,
            codec: DeviceCodec = codec,
            given: tuple[torch.Tensor, torch.Tensor, int] = (scales, codes, whole),
        ) -> Callable[[], object]:
            return lambda: codec.launch_decode(given[0], given[1], weight, out[: given[2]])

        for operation, action, bytes_per_value in (
            ("encode", encode(False), 4 + encoded_bytes),
            ("encode_with_residual", encode(True), 8 + encoded_bytes),
            ("decode", decode(None), 4 + encoded_bytes),
            ("decode_accumulate", decode(WEIGHT), 8 + encoded_bytes),
        ):
            seconds = _seconds(action, lambda: work.copy_(values), repeats)
            traffic = bytes_per_value * whole / seconds / 1e9
            yield DeviceRate(name, operation, 4 * whole / seconds / 1e9, traffic, traffic / copy_traffic)


def _seconds(action: Callable[[], object], prepare: Callable[[], object], repeats: int) -> float:
    """Median time on the device; the first one compiles and is not counted."""
    found = []
    for repeat in range(repeats + 1):
        prepare()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        action()
        ended.record()
        ended.synchronize()
        if repeat:
            found.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(found)
