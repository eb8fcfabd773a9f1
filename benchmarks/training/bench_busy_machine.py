"""How fast do inner steps go on while other programs want the same cores, by how long idle threads spin?

    python -m benchmarks.training.bench_busy_machine [--busy 0,2,8] [--seconds 6] [--pairs 3] [--threads N] [--json]

A process trains the built-in model with several threads, beside so many others that compute without end. Threads of
libgomp wait for each other by spinning, then sleep. Its own choice spins long; `peer` chooses `SPIN_COUNT`. Both arms
take turns; the ratio is of their medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.machine import machine
from peer.process_setup import SPIN_COUNT

ARMS = {"libgomp's choice": {}, f"{SPIN_COUNT} spins": {"GOMP_SPINCOUNT": str(SPIN_COUNT)}}
WARM_UP_STEPS = 3


def steps_per_second(num_threads: int, seconds: float) -> float:
    """Inner steps of the model that `peer demo` trains: 0.8 M parameters, 4 sequences of 128."""
    import torch

    from peer.trainer.model.gpt import GPT

    torch.set_num_threads(num_threads)
    module = GPT(num_layers=4, d_model=128, num_heads=4, vocab_size=256, context=128)
    optimizer = torch.optim.AdamW(module.parameters())
    tokens = torch.randint(0, 256, (4, 128))

    def step() -> None:
        optimizer.zero_grad()
        logits = module(tokens)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for _ in range(WARM_UP_STEPS):
        step()
    began, steps = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        step()
        steps += 1
    return steps / (time.monotonic() - began)


@contextlib.contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """So many processes that compute without end."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _measured(arm: str, num_threads: int, seconds: float) -> float:
    usual = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [
        sys.executable,
        "-m",
        __spec__.name,
        "--worker",
        "--threads",
        str(num_threads),
        "--seconds",
        str(seconds),
    ]
    return float(subprocess.check_output(command, env={**usual, **ARMS[arm]}, text=True))


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each number of busy processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", default="0,2,8", help="numbers of other processes, separated by commas")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the training process")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--pairs", type=int, default=3, help="measurements of each arm")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        print(steps_per_second(options.threads, options.seconds))
        return 0
    rows = []
    for number in map(int, options.busy.split(",")):
        found: dict[str, list[float]] = {arm: [] for arm in ARMS}
        with busy_processes(number):
            for _ in range(options.pairs):
                for arm in ARMS:
                    found[arm].append(_measured(arm, options.threads, options.seconds))
        rows.append({"busy": number, **{arm: statistics.median(values) for arm, values in found.items()}})
    facts = {"command": " ".join(sys.argv), "machine": machine(), "threads": options.threads, "rows": rows}
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0
    print(f"{facts['command']}\n{facts['machine']}")
    for row in rows:
        usual, chosen = (float(row[arm]) for arm in ARMS)
        print(f"{row['busy']} busy: {usual:.2f} steps/s by libgomp's choice, {chosen:.2f} here: {chosen / usual:.1f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
