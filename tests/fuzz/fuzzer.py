"""Fuzz every decoder and every command: only the faults it documents, in bounded time and memory.

    python -m tests.fuzz --seconds 60                    # all targets, seconds in all, mutations of valid inputs
    python -m tests.fuzz --seconds 600 --engine atheris  # guided by coverage; needs the extra `fuzz`
    python -m tests.fuzz --target wire --inputs 100000

A finding is printed with its input, kept in ``tests/corpus/TARGET/`` with ``--keep``, and read again by
`tests/fuzz/test_decoders.py` from then on. The exit code is 1 when there was one.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import logging
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.commands import command_targets
from tests.fuzz.targets import Target, all_targets

CORPUS = Path(__file__).parents[1] / "corpus"
MAX_INPUT_BYTES = 4096
"""Of one input of a decoder under atheris."""
MAX_GROWTH_MIB = 256.0
_INTERESTING = (0, 1, 0x7F, 0x80, 0x81, 0x90, 0xC0, 0xC1, 0xC4, 0xC6, 0xCB, 0xCF, 0xD3, 0xD9, 0xDD, 0xDF, 0xFF)


_VALUE = re.compile(rb'-?\d[\d.e+-]*|"(?:[^"\\\\]|\\\\.)*"|true|false|null')
"""A number, text or constant of JSON or TOML."""
_ODD_VALUES = (
    *(b"0", b"-1", b"1", b"64", b"65536", b"4294967296", b"1152921504606846976", b"9223372036854775807", b"1e18"),
    *(b"1e-300", b"1e308", b"1e999", b"-0.0", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b'"[/nope]"'),
    *(b"[0]", b"[1, 2, 3, 4, 5]", b'"\\u001b[2J\\u202e"', b'"' + 300 * b"a" + b'"', b'"../../x"', b'"/dev/zero"'),
)


def _change_value(data: bytearray, chance: random.Random) -> None:
    """Put another value in the place of one of a text's; bytes without any stay as they are."""
    found = list(_VALUE.finditer(bytes(data[:8192])))
    if found:
        chosen = chance.choice(found)
        data[chosen.start() : chosen.end()] = chance.choice(_ODD_VALUES)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one target did with `num_inputs` inputs; `findings` are (input, what happened)."""

    target: str
    num_inputs: int
    seconds: float
    slowest_seconds: float
    grown_mib: float
    findings: tuple[tuple[bytes, str], ...]


def mutations(target: Target, corpus: list[bytes], seed: int) -> Iterator[bytes]:
    """Endless inputs made of valid ones and of earlier findings; the same ones for the same seed."""
    chance = random.Random(f"{target.name} {seed}")
    sources = [*target.seeds, *corpus]
    while True:
        data = bytearray(chance.choice(sources))
        for _ in range(chance.choice((1, 1, 2, 3, 8))):
            place = chance.randrange(len(data) + 1)
            match chance.randrange(10):
                case 0 if data:
                    data[place % len(data)] ^= 1 << chance.randrange(8)
                case 1 if data:
                    data[place % len(data)] = chance.choice(_INTERESTING)
                case 2:
                    data[place:place] = chance.randbytes(chance.choice((1, 1, 2, 4, 16)))
                case 3:
                    del data[place : place + chance.choice((1, 2, 4, 32))]
                case 4:
                    other = chance.choice(sources)
                    data[place:] = other[chance.randrange(len(other) + 1) :]
                case 5:
                    data[place : place + 8] = chance.choice((bytes(8), b"\xff" * 8, chance.randbytes(8)))
                case 6:
                    data[place:place] = data[place : place + 64] * chance.choice((1, 4, 50))
                case 7:
                    data = data[:place]
                case _:
                    _change_value(data, chance)
        yield bytes(data[: target.most_bytes])


def corpus_of(name: str) -> list[bytes]:
    """Earlier findings of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*.bin"))]


def fuzz(target: Target, *, seconds: float, num_inputs: int | None, seed: int) -> Outcome:
    """Mutate for so long, or so often."""
    findings: list[tuple[bytes, str]] = []
    began = time.perf_counter()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count, slowest = 0, 0.0
    for data in mutations(target, corpus_of(target.name), seed):
        before = time.perf_counter()
        if (count >= num_inputs) if num_inputs is not None else (before - began >= seconds):
            break
        what = problem_with(target, data)
        slowest = max(slowest, time.perf_counter() - before)
        count += 1
        if what and len(findings) < 10:
            findings.append((data, what))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    if grown > MAX_GROWTH_MIB:
        findings.append((b"", f"memory grew by {grown:.0f} MiB; at most {MAX_GROWTH_MIB:.0f} are expected"))
    return Outcome(target.name, count, time.perf_counter() - began, slowest, grown, tuple(findings))


def problem_with(target: Target, data: bytes) -> str:
    """What is wrong with how a target takes an input; empty: nothing."""
    before = time.process_time()
    try:
        target.take(data)
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} ({Path(place.filename).name}:{place.lineno})"
    taken = time.process_time() - before
    return f"took {taken:.1f} s" if taken > target.most_seconds else ""


def fuzz_guided(name: str, seconds: float) -> Outcome:
    """The same with atheris, in a process of its own, which libFuzzer ends."""
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        seeds = Path(folder) / "seeds"
        seeds.mkdir()
        for number, data in enumerate([*all_targets()[name].seeds, *corpus_of(name)]):
            (seeds / str(number)).write_bytes(data)
        limits = [f"-max_total_time={max(1, int(seconds))}", f"-max_len={MAX_INPUT_BYTES}", "-rss_limit_mb=2048"]
        limits += ["-timeout=10", f"-artifact_prefix={folder}/", "-print_final_stats=1"]
        ended = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.guided", name, str(seeds), *limits],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        counted = re.findall(r"stat::number_of_executed_units:\s*(\d+)", ended.stderr)
        found = [path for path in Path(folder).iterdir() if path.is_file()]
        why = next((line for line in ended.stderr.splitlines() if "Error" in line or "ERROR" in line), "it ended")
        findings = tuple((path.read_bytes(), f"{path.name.split('-')[0]}: {why[:200]}") for path in found)
        if not counted and not findings:
            findings = ((b"", f"atheris ended with {ended.returncode}: {ended.stderr[-300:]}"),)
        return Outcome(name, int(counted[-1]) if counted else 0, seconds, 0.0, 0.0, findings)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="in all, shared by the targets")
    parser.add_argument("--inputs", type=int, help="per target, in place of --seconds")
    parser.add_argument("--target", action="append", help="one decoder; may be given several times")
    parser.add_argument("--engine", choices=("mutate", "atheris"), default="mutate")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true", help="keep findings in tests/corpus")
    given = parser.parse_args(arguments)
    targets = all_targets()
    if given.engine == "mutate" and not (given.target and set(given.target) <= targets.keys()):
        targets |= {target.name: target for target in command_targets()}
    unknown = [name for name in given.target or () if name not in targets]
    if unknown:
        print(f"no decoder is called {unknown[0]!r}; expected one of {', '.join(targets)}", file=sys.stderr)
        return 2
    if given.engine == "atheris" and importlib.util.find_spec("atheris") is None:
        print(
            "atheris is not installed; expected the extra `fuzz`; run: pip install '.[fuzz]', or use --engine mutate",
            file=sys.stderr,
        )
        return 2
    logging.disable(logging.WARNING)  # decoders of files on this machine's disk warn of what they leave out
    try:
        return _run(given, targets)
    finally:
        logging.disable(logging.NOTSET)


def _run(given: argparse.Namespace, targets: dict[str, Target]) -> int:
    chosen = given.target or list(targets)
    each = given.seconds / len(chosen)
    outcomes = []
    for name in chosen:
        if given.engine == "atheris":
            outcome = fuzz_guided(name, each)
        else:
            outcome = fuzz(targets[name], seconds=each, num_inputs=given.inputs, seed=given.seed)
        outcomes.append(outcome)
        print(
            f"{name:20} {outcome.num_inputs:9} inputs  {outcome.num_inputs / max(outcome.seconds, 1e-9):8.0f}/s  "
            f"slowest {1000 * outcome.slowest_seconds:6.1f} ms  grew {outcome.grown_mib:5.1f} MiB  "
            f"{len(outcome.findings)} findings",
            flush=True,
        )
        for data, what in outcome.findings:
            print(f"    {what}\n    {data[:200].hex()}")
            if given.keep and data:
                path = CORPUS / name / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
    num_findings = sum(len(outcome.findings) for outcome in outcomes)
    print(f"{sum(outcome.num_inputs for outcome in outcomes)} inputs, {num_findings} findings, seed {given.seed}")
    return 1 if num_findings else 0
