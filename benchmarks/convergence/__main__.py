"""Which way of averaging learns most from the same tokens: simulated swarms on a small model, one process, one core.

    python -m benchmarks.convergence --base num_peers=4,sync_every=20 --rounds 40 --seeds 0,1,2 \
        --arm mode=data_parallel --arm mode=sync,delay_rounds=0 --arm mode=carry,overlay_gain=.5/.7,outer_lr=.7/1

An arm is a list of KEY=VALUE of `arms.Arm` over `--base`; values with `/` between them make one arm each, in every
combination. All arms of one command see the same number of tokens. Arms with the same seed and number of peers start
from the same parameters and read the same text. The validation loss is that of the anchor (data_parallel: of the
parameters) after everything was committed. Progress goes to stderr, the table to stdout.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.convergence.arms import Arm, Outcome, Task, with_length
from benchmarks.convergence.swarm import run_arm
from peer.config.model_section import ModelSection
from peer.config.training_section import TrainingSection
from peer.trainer.data.corpus import open_corpus
from peer.trainer.model.gpt import build_model


def parse_arms(text: str, base: Arm) -> Iterator[Arm]:
    """Every combination of the values in ``KEY=VALUE[/VALUE...],...`` over `base`.

    Raises:
        ValueError: unknown key, or a value that does not fit it.
    """
    choices = []
    for pair in filter(None, text.split(",")):
        key, _, values = pair.partition("=")
        choices.append([(key, _value(key, value)) for value in values.split("/")])
    for combination in itertools.product(*choices):
        yield replace(base, **dict(combination))


def _value(key: str, text: str) -> Any:
    kinds = {field.name: field.type for field in fields(Arm)}
    if key not in kinds:
        raise ValueError(f"unknown key {key!r}; expected one of {', '.join(kinds)}")
    try:
        if kinds[key] == "str":
            return text
        if kinds[key] == "bool":
            return {"true": True, "false": False}[text.lower()]
        return int(text) if kinds[key] == "int" else float(text)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{key}={text}; expected a value of type {kinds[key]}") from error


def machine() -> dict[str, Any]:
    """What the figures may depend on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
    }


def summary(arm: Arm, base: Arm, seeds: Sequence[int], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One line of the table: mean and deviation over seeds, and the mean curve."""
    losses = [outcome.loss for outcome in outcomes]
    deviation = statistics.stdev(losses) if len(losses) > 1 else math.nan
    shortest = min(len(outcome.curve) for outcome in outcomes)
    curve = [
        (outcomes[0].curve[point][0], statistics.fmean(outcome.curve[point][1] for outcome in outcomes))
        for point in range(shortest)
    ]
    return {
        "arm": arm.changes_from(base),
        "settings": asdict(arm),
        "seeds": list(seeds),
        "losses": losses,
        "mean": statistics.fmean(losses),
        "deviation": deviation,
        "averaged": statistics.fmean(outcome.averaged_loss for outcome in outcomes),
        "num_refused": [outcome.num_refused for outcome in outcomes],
        "live": statistics.fmean(outcome.live_loss for outcome in outcomes),
        "curve": curve,
        "projection": statistics.fmean(outcome.projection for outcome in outcomes),
        "diverged_at": [outcome.diverged_at for outcome in outcomes],
        "megabytes_per_peer": outcomes[0].bytes_per_peer / 1e6,
    }


def options_of(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Arm, list[Arm]]:
    """Parsed and checked: options, the base arm, all arms."""
    parser = argparse.ArgumentParser(description="Validation loss of ways of averaging, at equal tokens.")
    parser.add_argument("--arm", action="append", default=[], help="KEY=VALUE[/VALUE...],... ; may be repeated")
    parser.add_argument("--base", default="", help="KEY=VALUE,... that all arms share")
    parser.add_argument("--rounds", type=int, default=40, help="length of the run: rounds of the base's sync_every")
    parser.add_argument("--seeds", default="0", help="comma-separated (default 0)")
    parser.add_argument("--layers", type=int, default=2, help="model: transformer blocks (default 2)")
    parser.add_argument("--width", type=int, default=96, help="model: d_model (default 96)")
    parser.add_argument("--heads", type=int, default=4, help="model: attention heads (default 4)")
    parser.add_argument("--context", type=int, default=64, help="tokens per sequence (default 64)")
    parser.add_argument("--batch-size", type=int, default=4, help="sequences per inner step and peer (default 4)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="peak inner rate (default 3e-3)")
    parser.add_argument("--evaluation-batches", type=int, default=64, help="held-out batches (default 64)")
    parser.add_argument("--losses", type=int, default=4, help="points of the curve (default 4)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--source", default="stdlib:", help="data source (default stdlib:)")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    options = parser.parse_args(arguments)
    try:
        options.seeds = [int(seed) for seed in options.seeds.split(",")]
        (base,) = parse_arms(options.base, Arm())
        arms = [arm for text in options.arm or [""] for arm in parse_arms(text, base)]
    except ValueError as error:
        parser.error(str(error))
    if min(options.rounds, options.losses, options.threads, options.evaluation_batches) < 1:
        parser.error("--rounds, --losses, --threads and --evaluation-batches: expected at least 1")
    return options, base, arms


def task_of(options: argparse.Namespace, base: Arm) -> Task:
    """Model, data and length from the options."""
    model = ModelSection(
        num_layers=options.layers, d_model=options.width, num_heads=options.heads, context=options.context
    )
    training = TrainingSection(batch_size=options.batch_size, learning_rate=options.learning_rate)
    corpus = open_corpus(options.source, vocab_size=256, context=options.context, held_out_fraction=0.05)
    num_steps = options.rounds * base.sync_every
    return Task(model, with_length(training, num_steps), corpus, options.evaluation_batches, num_steps)


def main(arguments: Sequence[str] | None = None) -> None:
    options, base, arms = options_of(arguments)
    torch.set_num_threads(options.threads)
    task = task_of(options, base)
    every = max(1, task.num_steps // options.losses)
    lines = []
    for arm in arms:
        outcomes = []
        for seed in options.seeds:
            started = time.perf_counter()
            outcomes.append(run_arm(arm, task, seed, every))
            seconds = time.perf_counter() - started
            note = f"{arm.changes_from(base)} seed {seed}: {outcomes[-1].loss:.4f} in {seconds:.0f} s"
            note += f", live {outcomes[-1].live_loss:.4f}, projection {outcomes[-1].projection:.3f}"
            note += f", averaged {outcomes[-1].averaged_loss:.4f}, {outcomes[-1].bytes_per_peer / 1e6:.2f} MB a peer"
            if outcomes[-1].num_refused:
                note += f", {outcomes[-1].num_refused} refused"
            print(note, file=sys.stderr, flush=True)
        lines.append(summary(arm, base, options.seeds, outcomes))
    given = sys.argv[1:] if arguments is None else list(arguments)
    num_parameters = sum(shape.numel() for shape in _parameter_shapes(task))
    about: dict[str, Any] = machine()
    described: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.convergence", *given]),
        "machine": about,
        "num_parameters": num_parameters,
        "steps": task.num_steps,
        "tokens_per_peer": task.num_steps * task.training.batch_size * task.model.context,
    }
    if options.json:
        print(json.dumps(_finite({**described, "base": asdict(base), "arms": lines})))
        return
    print(described["command"])
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    lengths = ("num_parameters", "steps", "tokens_per_peer")
    print(", ".join(f"{key} {described[key]}" for key in lengths))
    print(f"{'arm':60} {'loss':>8} {'dev':>7} {'live':>8}  curve")
    for line in lines:
        curve = " ".join(f"{loss:.3f}" for _, loss in line["curve"])
        print(f"{line['arm']:60} {line['mean']:8.4f} {line['deviation']:7.4f} {line['live']:8.4f}  {curve}")


def _finite(value: Any) -> Any:
    """Return the value with None instead of NaN and infinity, which are not JSON."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parameter_shapes(task: Task) -> list[torch.Size]:
    return [parameter.shape for parameter in build_model(task.model, 0).parameters()]


if __name__ == "__main__":
    main()
