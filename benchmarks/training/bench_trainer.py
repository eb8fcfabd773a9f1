"""Tokens per second of our inner loop against a bare loop with the same settings, in turn in one process.

    python -m benchmarks.training.bench_trainer [--seconds 20] [--pairs 5] [--arms alone,averaging] [--json]
    python -m benchmarks.training.bench_trainer --model gpt
    python -m benchmarks.training.bench_trainer --device cuda --precision bf16 --compile --layers 12 --width 768

The bare loop is what anybody writes. It has the architecture of transformers (or the built-in GPT), its own loss, fused
AdamW, clipping, blocks at random places of the same tokens. Ours is the loop of `peer join`. Both train the same model
with one thread on one core, or on one GPU, with all cores but one; `--compile` is for both. Each runs for `--seconds`,
and they take turns in who is first; a pair gives one ratio.

`alone`: ours has a mailbox and sends nothing. `averaging`: it is a member of a real run with a second peer, and sends
each fragment every `--sync-every` steps over loopback. Its network process and daemon, and the other peer, which
computes nothing, have the other core. While the bare loop runs, they go on.

The goals: at least 97 % alone, at least 95 % with averaging. With the defaults it measures for 400 s, and takes up to a
minute more to start. Each measurement is told on standard error as it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.machine import machine
from dht.ground.errors import LocalFault
from dht.records.signed_manifest import decode_run_record
from peer.config.manifest import RunManifest
from peer.config.model_shapes import layout_of, trained_parameters
from peer.config.peer_config import PeerConfig
from peer.join.run_connection import READY_SECONDS, RunConnection
from peer.join.session import join
from peer.mailbox.mailbox import Mailbox
from peer.owner.new_run import NewRun, create_run
from peer.trainer.computing.compute_choices import ComputeChoices
from peer.trainer.data.context_blocks import TokenStream
from peer.trainer.data.corpus import Corpus
from peer.trainer.devices.device_choice import select_device
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.hf.run_model import build_run_model
from peer.trainer.loop.inner_step import GRAD_CLIP
from peer.trainer.loop.mailbox_link import TrainerLink
from peer.trainer.loop.trainer import Trainer
from peer.trainer.model.gpt import GPT
from peer.trainer.model.inner_optimizer import BETAS, WEIGHT_DECAY

ARMS = ("alone", "averaging")
GOALS = {"alone": 0.97, "averaging": 0.95}
NUM_TOKENS = 1_000_000
NEVER = 10**9
WARM_UP_STEPS = 3
"""Before each measurement; the first of them take what came while the other loop ran."""
LISTEN = ("/ip4/127.0.0.1/tcp/0",)

RUN = """
seed = 1
[data]
source = "tokens:"
[training]
batch_size = {batch}
warmup_steps = 10
[averaging]
sync_every = {sync_every}
num_fragments = {fragments}
combine = "mean"
[network]
announce_seconds = 2.0
[model]
context = {context}
vocab_size = {vocab}
"""
GPT_SHAPE = """
num_layers = {layers}
d_model = {width}
num_heads = {heads}
"""


class BareLoop:
    """What one writes without a swarm, with the run's settings."""

    def __init__(
        self, manifest: RunManifest, tokens: torch.Tensor, device: torch.device, choices: ComputeChoices
    ) -> None:
        settings = manifest.training
        built = build_run_model(manifest).to(device)
        self._model: Any = built if isinstance(built, GPT) else built.architecture
        self._device = device
        self._autocast: Any = contextlib.nullcontext()
        if choices.precision == "bf16":
            self._autocast = torch.autocast(device.type, dtype=torch.bfloat16)
        self._loss = torch.compile(self._loss_of) if choices.compile else self._loss_of
        self._parameters = list(self._model.parameters())
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [one for one in self._parameters if one.dim() >= 2], "weight_decay": WEIGHT_DECAY},
                {"params": [one for one in self._parameters if one.dim() < 2], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=BETAS,
            fused=True,
        )
        self._settings = settings
        self._tokens = tokens
        self._offsets = torch.arange(manifest.model.context + 1)
        self._generator = torch.Generator().manual_seed(1)

    def step(self) -> None:
        """One inner step."""
        settings = self._settings
        last = len(self._tokens) - len(self._offsets)
        starts = torch.randint(last, (settings.batch_size, 1), generator=self._generator)
        blocks = self._tokens[starts + self._offsets].to(self._device)
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast:
            loss = self._loss(blocks)
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, GRAD_CLIP)
        self._optimizer.step()
        loss.item()

    def _loss_of(self, blocks: torch.Tensor) -> torch.Tensor:
        inputs = blocks[:, :-1]
        if isinstance(self._model, GPT):
            return self._model.loss(inputs, blocks[:, 1:])
        loss: torch.Tensor = self._model(input_ids=inputs, labels=inputs).loss
        return loss


def rate(step: Callable[[], object], seconds: float) -> float:
    """Steps per second."""
    for _ in range(WARM_UP_STEPS):
        step()
    began, num_steps = time.perf_counter(), 0
    while (now := time.perf_counter()) - began < seconds:
        step()
        num_steps += 1
    return num_steps / (now - began)


def measure(
    arm: str, bare: BareLoop, trainer: Trainer, manifest: RunManifest, seconds: float, pairs: int
) -> dict[str, Any]:
    """Rates of both loops, in pairs, inside the trainer's session."""
    counters = trainer.link.mailbox.trainer
    rates: dict[str, list[float]] = {"bare": [], "ours": []}
    busy = 0.0
    for pair in range(pairs):
        for name in ("bare", "ours") if pair % 2 == 0 else ("ours", "bare"):
            before, began = counters.wait_seconds + counters.exchange_seconds, time.perf_counter()
            rates[name].append(rate(bare.step if name == "bare" else trainer.step, seconds))
            print(
                f"{arm}, pair {pair + 1} of {pairs}: {name} {rates[name][-1]:.2f} steps/s", file=sys.stderr, flush=True
            )
            if name == "ours":
                spent = counters.wait_seconds + counters.exchange_seconds - before
                busy += spent / (time.perf_counter() - began) / pairs
    per_step = manifest.training.batch_size * manifest.model.context
    ratios = [ours / one for one, ours in zip(rates["bare"], rates["ours"], strict=True)]
    return {
        "arm": arm,
        "bare_tokens_per_second": [per_step * one for one in rates["bare"]],
        "our_tokens_per_second": [per_step * one for one in rates["ours"]],
        "ratios": ratios,
        "median_ratio": median(ratios),
        "goal": GOALS[arm],
        "waiting_and_copying": busy,
        "versions": [state.applied_version for state in trainer.link.mailbox.states],
    }


def trainer_of(manifest: RunManifest, model: nn.Module, corpus: Corpus, link: TrainerLink, **options: Any) -> Trainer:
    return Trainer(model, corpus, manifest.training, link, seed=manifest.seed, peer_id="bench", **options)


@contextlib.contextmanager
def alone(manifest: RunManifest, corpus: Corpus, device: torch.device, choices: ComputeChoices) -> Iterator[Trainer]:
    """Ours, with a mailbox that nobody reads."""
    model = build_run_model(manifest).to(device)
    parameters = trained_parameters(model)
    layout = layout_of(manifest, [(name, tuple(one.shape)) for name, one in parameters])
    link = TrainerLink(parameters, layout, Mailbox.in_process(layout.sizes), sync_every=NEVER)
    trainer = trainer_of(manifest, model, corpus, link, device=device, choices=choices)
    with trainer.training:
        yield trainer


@contextlib.contextmanager
def averaging(
    run: NewRun,
    folder: Path,
    corpus: Corpus,
    cores: tuple[list[int], list[int]],
    step_seconds: float,
    device: torch.device,
    choices: ComputeChoices,
) -> Iterator[Trainer]:
    """Ours, as a member of a run with one more peer; their other processes are on the last core."""
    there = folder / "company"
    there.mkdir(mode=0o700)
    shutil.copy(run.run_record_path, there / "run.record")
    command = [sys.executable, "-m", "benchmarks.training.bench_trainer", "--company", run.run_id, str(there)]
    own, others = cores
    _pin(others)
    company = subprocess.Popen(
        [*command, "--step-seconds", str(step_seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert company.stdout is not None
        peers = tuple(json.loads(company.stdout.readline() or "[]"))
        if not peers:
            raise SystemExit("the other peer did not start; see above")
        config = PeerConfig(run_id=run.run_id, peers=peers, data_dir=folder / "own", listen=LISTEN)
        config.data_dir.mkdir(mode=0o700)
        connection = RunConnection(config, lambda event: None, lambda sentence: None)
        try:
            manifest = connection.open(lambda: False)
            assert manifest is not None
            model = build_run_model(manifest).to(device)
            link = connection.link(manifest, trained_parameters(model), device)
            trainer = trainer_of(
                manifest,
                model,
                corpus,
                link,
                ready_timeout_seconds=READY_SECONDS,
                device=device,
                choices=choices,
            )
            with trainer.training:
                _pin(own)
                yield trainer
            connection.close("the benchmark ends", trainer.training.idle)
        except BaseException:  # Ctrl+C, too: no peer stays behind
            connection.abort()
            raise
    finally:
        company.communicate()


def keep_company(run_id: str, folder: Path, step_seconds: float) -> int:
    """Be a peer that computes nothing and sends as often as one that does, until standard input ends."""
    torch.set_num_threads(1)
    record = decode_run_record((folder / "run.record").read_bytes(), run_id=run_id)
    manifest = RunManifest.from_bytes(record.manifest)
    model = build_run_model(manifest)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    parameter = trained_parameters(model)[0][1]
    with join(run_id, module=model, optimizer=optimizer, data_dir=folder, listen=LISTEN) as swarm:
        print(json.dumps(swarm.addresses), flush=True)
        while not select.select([sys.stdin], [], [], step_seconds)[0]:
            with torch.no_grad():
                parameter.view(-1)[:128] += 1e-4
            swarm.report(1.0, manifest.training.batch_size * manifest.model.context)
            optimizer.step()
    return 0


def make_run(options: argparse.Namespace, folder: Path) -> NewRun:
    """A run of the chosen architecture and size."""
    shape = {name: getattr(options, name) for name in ("layers", "width", "heads", "context", "vocab", "batch")}
    text = RUN.format(**shape, sync_every=options.sync_every, fragments=options.fragments)
    described = None
    if options.model == "gpt":
        text += GPT_SHAPE.format(**shape)
    else:
        config = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": options.vocab,
            "hidden_size": options.width,
            "intermediate_size": 8 * options.width // 3 // 16 * 16,
            "num_hidden_layers": options.layers,
            "num_attention_heads": options.heads,
            "max_position_embeddings": options.context,
            "tie_word_embeddings": True,
        }
        (folder / "config.json").write_text(json.dumps(config))
        described = describe_model(folder / "config.json")
    (folder / "run.toml").write_text(text)
    return create_run("bench", folder / "run.toml", folder / "run", model=described)


def _pin(cores: list[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def run_arms(options: argparse.Namespace, arms: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """One result after the other."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    run = make_run(options, folder)
    manifest = run.manifest
    drawn = np.random.default_rng(1).integers(0, options.vocab, NUM_TOKENS).astype("<u2")
    cut = NUM_TOKENS - NUM_TOKENS // 100
    corpus = Corpus(
        TokenStream([("training", drawn[:cut])], options.vocab), TokenStream([("held out", drawn[cut:])], options.vocab)
    )
    device = select_device(options.device)
    choices = ComputeChoices(precision=options.precision, compile=options.compile)
    own = cores[:1] if device.type == "cpu" else cores[:-1] or cores
    _pin(own)
    bare = BareLoop(manifest, torch.from_numpy(drawn.astype(np.int64)), device, choices)
    step_seconds = 1 / rate(bare.step, min(3.0, options.seconds))
    for arm in arms:
        if arm == "alone":
            session = alone(manifest, corpus, device, choices)
        else:
            session = averaging(run, folder, corpus, (own, cores[-1:]), step_seconds, device, choices)
        with session as trainer:
            yield measure(arm, bare, trainer, manifest, options.seconds, options.pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Tokens per second of our inner loop against a bare one.")
    parser.add_argument("--model", choices=("llama", "gpt"), default="llama", help="architecture (default llama)")
    parser.add_argument("--arms", default=",".join(ARMS), help="alone, averaging or both (default)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (default 20)")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each loop in each arm (default 5)")
    parser.add_argument("--layers", type=int, default=4, help="default 4")
    parser.add_argument("--width", type=int, default=256, help="default 256: 5.3 M parameters")
    parser.add_argument("--heads", type=int, default=4, help="default 4")
    parser.add_argument("--context", type=int, default=128, help="tokens of each sequence (default 128)")
    parser.add_argument("--vocab", type=int, default=8192, help="default 8192")
    parser.add_argument("--batch", type=int, default=8, help="sequences per step (default 8)")
    parser.add_argument("--sync-every", type=int, default=20, help="H (default 20)")
    parser.add_argument("--fragments", type=int, default=4, help="P (default 4)")
    parser.add_argument("--device", default="cpu", help="where both loops compute: cpu (default), cuda, cuda:N")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of both (default fp32)")
    parser.add_argument("--compile", action="store_true", help="both through torch.compile")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--company", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--step-seconds", type=float, default=1.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.company:
        return keep_company(options.company[0], Path(options.company[1]), options.step_seconds)
    arms = options.arms.split(",")
    if unknown := [arm for arm in arms if arm not in ARMS]:
        parser.error(f"--arms {','.join(unknown)}: expected some of {', '.join(ARMS)}")
    if options.seconds <= 0 or options.pairs < 1:
        parser.error("--seconds and --pairs: expected more than 0")
    torch.set_num_threads(1)
    command = " ".join(["python -m benchmarks.training.bench_trainer", *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as folder:
        try:
            if options.json:
                found = list(run_arms(options, arms, Path(folder)))
                print(json.dumps({"command": command, "machine": machine(), "arms": found}))
                return 0
            print(command)
            print(", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)
            for one in run_arms(options, arms, Path(folder)):
                print_arm(one)
        except LocalFault as fault:
            print(fault, file=sys.stderr)
            return fault.exit_code
    return 0


def print_arm(one: dict[str, Any]) -> None:
    """One arm for people."""
    print(one["arm"])
    for name, key in (("bare", "bare_tokens_per_second"), ("ours", "our_tokens_per_second")):
        print(f"  {name} tokens/s  {'  '.join(f'{value:8.0f}' for value in one[key])}")
    print(f"  ratio          {'  '.join(f'{value:8.1%}' for value in one['ratios'])}")
    print(f"  median         {one['median_ratio']:.1%}; the goal is {one['goal']:.0%}")
    if one["arm"] == "averaging":
        print(f"  mailbox        {one['waiting_and_copying']:.2%} of the time waited or copied")
        print(f"  versions       {' '.join(map(str, one['versions']))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
