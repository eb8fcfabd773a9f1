"""How fast the codecs are on this machine, beside a plain copy, a plain float32 accumulate, and what others use.

    python -m benchmarks.bench_codec [--json] [--values 25000000] [--threads 1,2] [--repeats 7] [--codecs int4,int8]
                                     [--others] [--means]

Rates are gigabytes (10^9 bytes) of float32 input or output a second, median and best of the repeats. Our kernels use
one thread each; with more, they run on as many slices at once, and what others use takes torch's own threads. With one
thread the share of a core is what the operation takes at a line of 400 Mbit/s. It makes or reads every bit of that
line. `--means` times what a reducer makes of int4 contributions instead: nanoseconds of processor time for each value
of each member, of a mean and of `centered_clip`. `--others` adds hivemind's compressions and bitsandbytes (see
`other_systems/codecs.py`), in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from averaging.arrays import F32
from averaging.codec.blocks import CODE_BITS
from averaging.codec.codec import DEFAULT_BLOCK_SIZE, Codec, KernelChoice, make_codec
from averaging.outer.contribution_weights import Terms
from averaging.outer.outer_settings import OuterRule
from averaging.outer.robust_mean import combine
from benchmarks.machine import machine
from benchmarks.other_systems.codecs import others

WEIGHT = 0.3
LINE_BITS_PER_SECOND = 400e6
MEANS_OF = (4, 16, 48)
"""Members: few, a usual number, and the most of a round whose means go directly to all."""


@dataclass(frozen=True, slots=True)
class Rate:
    """One line of the table."""

    codec: str
    kernels: str
    operation: str
    threads: int
    median_gigabytes_per_second: float
    best_gigabytes_per_second: float
    bits_per_value: float = 32.0

    @property
    def share_of_core(self) -> float:
        """Of one core, at the line of `LINE_BITS_PER_SECOND`."""
        values_per_second = LINE_BITS_PER_SECOND / self.bits_per_value
        return 4 * values_per_second / (1e9 * self.median_gigabytes_per_second)


def measure(
    num_values: int, repeats: int, action: Callable[[], object], prepare: Callable[[], object] | None = None
) -> tuple[float, float]:
    """Median and best rate of `action`; `prepare` runs before each repeat, off the clock."""
    rates = []
    for repeat in range(repeats + 1):
        if prepare is not None:
            prepare()
        start = time.perf_counter()
        action()
        seconds = time.perf_counter() - start
        if repeat:  # the first one compiles, and touches the memory
            rates.append(4 * num_values / seconds / 1e9)
    return statistics.median(rates), max(rates)


def pieces(num_values: int, num_pieces: int) -> list[tuple[int, int]]:
    """(first value, number of values) of equal slices of whole blocks."""
    step = -(-num_values // (num_pieces * DEFAULT_BLOCK_SIZE)) * DEFAULT_BLOCK_SIZE
    return [(start, min(step, num_values - start)) for start in range(0, num_values, step)]


class Slices:
    """Runs an action on one equal slice of the values per thread."""

    def __init__(self, num_values: int, threads: int, executor: ThreadPoolExecutor) -> None:
        self._slices = pieces(num_values, threads)
        self._executor = executor

    def each(self, action: Callable[[int, int], object]) -> Callable[[], object]:
        """Call `action` with (first value, number of values) of every slice; one slice: in this thread."""
        if len(self._slices) == 1:
            return lambda: action(*self._slices[0])
        return lambda: list(self._executor.map(lambda piece: action(*piece), self._slices))


def bench_codec(codec: Codec, values: F32, threads: int, repeats: int, executor: ThreadPoolExecutor) -> list[Rate]:
    """Rates of the four operations of one codec."""
    num_values = values.size
    work, out = values.copy(), np.zeros_like(values)
    encoded = codec.encode(values)
    each = Slices(num_values, threads, executor).each

    operations: list[tuple[str, Callable[[], object], Callable[[], object] | None]] = [
        ("encode", each(lambda start, count: codec.encode(values[start : start + count])), None),
        (
            "encode_with_residual",
            each(lambda start, count: codec.encode_with_residual(work[start : start + count])),
            lambda: np.copyto(work, values),
        ),
        (
            "decode",
            each(lambda start, count: codec.decode(encoded.slice_blocks(start, count), out[start : start + count])),
            None,
        ),
        (
            "decode_accumulate",
            each(
                lambda start, count: codec.decode_accumulate(
                    encoded.slice_blocks(start, count), WEIGHT, out[start : start + count]
                )
            ),
            None,
        ),
    ]
    return [
        Rate(
            *(codec.name, codec.kernels, name, threads),
            *measure(num_values, repeats, action, prepare),
            bits_per_value(codec),
        )
        for name, action, prepare in operations
    ]


def bench_anchors(values: F32, threads: int, repeats: int, executor: ThreadPoolExecutor) -> list[Rate]:
    """What memory alone allows: copy, and accumulate without decoding."""
    out = np.zeros_like(values)

    def copy(start: int, count: int) -> None:
        out[start : start + count] = values[start : start + count]

    def accumulate(start: int, count: int) -> None:
        out[start : start + count] += values[start : start + count]

    each = Slices(values.size, threads, executor).each
    return [
        Rate("-", "numpy", name, threads, *measure(values.size, repeats, each(action)))
        for name, action in (("memcpy", copy), ("fp32 accumulate", accumulate))
    ]


def bench_others(values: F32, threads: int, repeats: int, say: Callable[[str], None]) -> Iterator[Rate]:
    """Rates of encoding and decoding with what others use."""
    for other in others(torch.from_numpy(values), say):
        for operation, action in (("encode", other.encode), ("decode", other.decode)):
            if action is not None:
                rates = measure(values.size, repeats, action)
                yield Rate(other.name, "theirs", operation, threads, *rates, other.bits_per_value)


def bench_means(num_values: int, repeats: int) -> Iterator[tuple[int, float, float]]:
    """(members, nanoseconds a value and member of a mean, and of centered_clip), the best of the repeats."""
    codec, chance = make_codec("int4"), np.random.default_rng(1)
    mean = OuterRule("sync", 0.7, 0.5)
    clipped = replace(mean, combine="centered_clip", clip_norm_ratio=2.0, clip_weight_ratio=3.0)
    for num_members in MEANS_OF:
        size = max(codec.block_size, num_values // num_members)
        works = (chance.standard_normal(size, dtype=np.float32) for _ in range(num_members))
        contributions = [(index, Terms(1, 1, 0), codec.encode(work)) for index, work in enumerate(works)]
        nanoseconds = []
        for rule in (mean, clipped):
            seconds = math.inf
            for _ in range(repeats):
                start = time.process_time()
                combine(contributions, rule, codec, size)
                seconds = min(seconds, time.process_time() - start)
            nanoseconds.append(1e9 * seconds / size / num_members)
        yield num_members, nanoseconds[0], nanoseconds[1]


def bits_per_value(codec: Codec) -> float:
    """The payload bits of one value in a whole block, including its share of the scale."""
    return 8 * codec.encoded_num_bytes(codec.block_size) / codec.block_size


def quality(name: str, values: F32) -> dict[str, Any]:
    """Size, and the relative root-mean-square error of a round trip of normal data."""
    codec = make_codec(name)
    sample = values[:1_000_000].copy()
    norm = float(np.linalg.norm(sample))
    codec.encode_with_residual(sample)
    relative_error = float(np.linalg.norm(sample)) / norm
    return {"codec": name, "bits_per_value": bits_per_value(codec), "relative_error": relative_error}


def run(
    names: Sequence[str],
    num_values: int,
    threads: Sequence[int],
    repeats: int,
    report: Callable[[Rate], None],
    with_others: bool = False,
) -> dict[str, Any]:
    """Every figure; `report` sees each as it comes."""
    left_out: list[str] = []

    def say(sentence: str) -> None:
        if sentence not in left_out:
            left_out.append(sentence)
            print(sentence, file=sys.stderr)

    values: F32 = np.random.default_rng(1).standard_normal(num_values, dtype=np.float32)
    rates: list[Rate] = []

    def add(new: list[Rate]) -> None:
        rates.extend(new)
        for rate in new:
            report(rate)

    for num_threads in threads:
        torch.set_num_threads(num_threads)  # of what others use
        with ThreadPoolExecutor(num_threads) as executor:
            add(bench_anchors(values, num_threads, repeats, executor))
            for name in names:
                for kernels in kernel_choices(name):
                    add(bench_codec(make_codec(name, kernels=kernels), values, num_threads, repeats, executor))
        for rate in bench_others(values, num_threads, repeats, say) if with_others else ():
            add([rate])
    described = [{**asdict(rate), "share_of_core_at_400_mbit": rate.share_of_core} for rate in rates]
    return {"quality": [quality(name, values) for name in names], "rates": described, "left_out": left_out}


def kernel_choices(name: str) -> list[KernelChoice]:
    """Kernels that are installed and make a difference to this codec."""
    fastest = make_codec(name).kernels
    return ["numpy", "compiled"] if fastest == "compiled" else ["numpy"]


def counts(text: str) -> list[int]:
    """Comma-separated positive integers."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Speed of the codecs on this machine.")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    parser.add_argument("--values", type=int, default=25_000_000, help="float32 values (default 25000000)")
    parser.add_argument("--threads", type=counts, default=[1], help="thread counts to try, e.g. 1,2 (default 1)")
    parser.add_argument("--repeats", type=int, default=7, help="timed repeats of each operation (default 7)")
    parser.add_argument("--codecs", default=",".join(CODE_BITS), help="comma-separated (default: all)")
    parser.add_argument("--others", action="store_true", help="also hivemind's compressions and bitsandbytes")
    parser.add_argument("--means", action="store_true", help="time means of contributions instead")
    options = parser.parse_args(arguments)
    names = options.codecs.split(",")
    if options.values < 1 or options.repeats < 1:
        parser.error(f"--values {options.values} --repeats {options.repeats}: expected both to be at least 1")
    if unknown := [name for name in names if name not in CODE_BITS]:
        parser.error(f"--codecs {','.join(unknown)}: expected some of {', '.join(CODE_BITS)}")

    command = " ".join(["python -m benchmarks.bench_codec", *(sys.argv[1:] if arguments is None else arguments)])
    described = {"command": command, "machine": machine(), "values": options.values, "repeats": options.repeats}

    def show(rate: Rate) -> None:
        share = f"{rate.share_of_core:8.1%}" if rate.threads == 1 and rate.bits_per_value < 32 else ""
        print(
            f"{rate.codec:33} {rate.kernels:8} {rate.operation:21} {rate.threads:7} "
            f"{rate.median_gigabytes_per_second:8.2f} {rate.best_gigabytes_per_second:8.2f} {share}",
            flush=True,
        )

    if options.means:
        for num_members, plain, clipped in bench_means(options.values, options.repeats):
            print(
                f"{num_members:3} members: mean {plain:.2f} ns a value and member, centered_clip {clipped:.2f} "
                f"({clipped / plain:.1f} times)",
                flush=True,
            )
        return
    if options.json:
        found = run(names, options.values, options.threads, options.repeats, lambda _: None, options.others)
        print(json.dumps({**described, **found}))
        return
    print(command)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    print(f"{options.values} values, {options.repeats} repeats; GB/s of float32")
    print(f"{'codec':33} {'kernels':8} {'operation':21} {'threads':>7} {'median':>8} {'best':>8} {'core':>8}")
    for line in run(names, options.values, options.threads, options.repeats, show, options.others)["quality"]:
        print(
            f"{line['codec']:6} {line['bits_per_value']:6.3f} bits a value, relative error {line['relative_error']:.5f}"
        )


if __name__ == "__main__":
    main()
