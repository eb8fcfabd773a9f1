"""Commands and flags that people bring from other training tools, and what takes their place here. Pure."""

from __future__ import annotations

from typing import Final

COMMANDS_HERE: Final = {
    "version": "`peer --version` prints the version",
    "start": "`peer join RUN` trains, and `peer demo` tries it on this machine",
    "train": "`peer join RUN` trains, and `peer demo` tries it on this machine",
    "run": "`peer join RUN` trains, and `peer runs` lists the runs of this machine",
    "connect": "`peer join RUN` trains",
    "ls": "`peer runs` lists the runs of this machine",
    "list": "`peer runs` lists the runs of this machine",
    "ps": "`peer runs` lists the runs of this machine",
    "create": "`peer init NAME` makes a run",
    "new": "`peer init NAME` makes a run",
    "config": "`peer init --example` prints a run.toml to begin with, and flags of `peer join` choose for this machine",
    "login": "there are no accounts; `peer profile set --name NAME` chooses the name that others see",
    "register": "there are no accounts; `peer profile set --name NAME` chooses the name that others see",
    "info": "`peer status RUN` shows a run, and `peer doctor` this machine",
    "web": "`peer dashboard RUN` serves the page of a run, and `peer open RUN` opens it",
    "ui": "`peer dashboard RUN` serves the page of a run, and `peer open RUN` opens it",
    "leave": "`peer stop RUN` ends the peer on this machine",
    "quit": "`peer stop RUN` ends the peer on this machine",
    "kill": "`peer stop RUN` ends the peer on this machine",
    "generate": "`peer sample RUN --prompt TEXT` has the model write",
    "chat": "`peer sample RUN --prompt TEXT` has the model write",
    "eval": "`peer evaluate RUN` measures the model",
    "download": "`peer export RUN` takes the model home",
    "pull": "`peer export RUN` takes the model home",
    "push": "`peer export RUN --push ORG/NAME` publishes the model",
    "upload": "`peer export RUN --push ORG/NAME` publishes the model",
    "tokenize": "`peer data tokenizer` makes a tokenizer, and `peer data prepare` turns text into tokens",
}
"""A command of another tool -> a sentence about ours."""

_MANIFEST_FIELDS: Final = {
    "lr": "training.learning_rate",
    "learning-rate": "training.learning_rate",
    "batch-size": "training.batch_size",
    "bs": "training.batch_size",
    "optimizer": "training.optimizer",
    "weight-decay": "training.weight_decay",
    "warmup": "training.warmup_steps",
    "warmup-steps": "training.warmup_steps",
    "gradient-accumulation-steps": "training.accumulation_steps",
    "accumulation-steps": "training.accumulation_steps",
    "max-grad-norm": "training.grad_clip",
    "epochs": "goal.tokens",
    "num-epochs": "goal.tokens",
    "num-train-epochs": "goal.tokens",
    "tokens": "goal.tokens",
    "sync-every": "averaging.sync_every",
    "h": "averaging.sync_every",
    "outer-lr": "averaging.outer_lr",
    "seq-len": "model.context",
    "seq-length": "model.context",
    "max-length": "model.context",
    "block-size": "model.context",
    "context": "model.context",
    "layers": "model.num_layers",
    "num-layers": "model.num_layers",
    "hidden-size": "model.d_model",
    "tokenizer": "data.tokenizer",
}
"""A flag of another tool -> the field of the manifest that holds for everybody."""

_FOR_THIS_MACHINE: Final = dict.fromkeys(
    ("batch-size", "bs"), "; --micro-batch N limits how much of a batch this machine computes at once"
)
_OF_A_PEER: Final = {
    "gpu": "--device cuda trains on a GPU, and without it the fastest device is taken",
    "cuda": "--device cuda trains on a GPU, and without it the fastest device is taken",
    "gpus": "--devices N trains on N GPUs",
    "num-gpus": "--devices N trains on N GPUs",
    "nproc-per-node": "--devices N trains on N GPUs",
    "cpu": "--device cpu trains on the processor",
    "no-cuda": "--device cpu trains on the processor",
    "fp16": "--precision fp16 chooses the number format",
    "bf16": "--precision bf16 chooses the number format",
    "dtype": "--precision bf16 chooses the number format",
    "wandb": "--track wandb records to it",
    "tensorboard": "--track trackio or --track csv records losses and rates",
    "report-to": "--track NAME records to trackio, wandb or csv",
    "port": "--listen /ip4/0.0.0.0/tcp/PORT chooses the port",
    "host": "--listen /ip4/ADDRESS/tcp/PORT chooses where to listen",
    "host-maddrs": "--listen MULTIADDR chooses where to listen",
    "initial-peers": "--peers MULTIADDR names members to dial first",
    "bootstrap": "--peers MULTIADDR names members to dial first",
    "peer": "--peers MULTIADDR names members to dial first",
    "run": "the run needs no flag: `peer join RUN`",
    "out": "--data-dir DIR chooses where checkpoints and logs are kept",
    "output": "--data-dir DIR chooses where checkpoints and logs are kept",
    "output-dir": "--data-dir DIR chooses where checkpoints and logs are kept",
    "checkpoint-dir": "--data-dir DIR chooses where checkpoints and logs are kept",
    "resume": "a peer goes on from its data folder by itself",
    "resume-from-checkpoint": "a peer goes on from its data folder by itself",
    "dataset": "--data text:PATH trains on your own text, and without it on the run's own data",
    "train-file": "--data text:PATH trains on your own text, and without it on the run's own data",
    "model": "the run's signed manifest names the model; --base DIR names its pretrained weights on this machine",
    "quiet": "--plain prints plain lines, one every 30 s",
    "debug": "--verbose prints a line about every event",
    "log-level": "--verbose prints a line about every event",
    "token": "no token is needed; --invite FILE lets you into a private run",
    "password": "no password is needed; --invite FILE lets you into a private run",
    "username": "--name TEXT chooses the name that others see",
    "max-bandwidth": "--upload-limit-mbit and --download-limit-mbit limit the line",
}
_OF_INIT: Final = {
    "name": "the name needs no flag: `peer init NAME`",
    "private": "--access invite makes a private run",
    "data": "write source under [data] of run.toml; `peer init --example` prints one",
    "dataset": "write source under [data] of run.toml; `peer init --example` prints one",
    "tokenizer": "--file tokenizer.json gives the run a tokenizer, which [data] of run.toml names",
    "dry-run": "`peer plan run.toml` prints what a run file asks of a home, and makes nothing",
    "lora": "--adapter lora trains an adapter",
    "lora-rank": "--rank N is the rank of an adapter",
}


def command_here(word: str) -> str | None:
    """A sentence about our command for a command of another tool; None: the word is unknown."""
    return COMMANDS_HERE.get(word.lower())


def flag_here(command: str, flag: str) -> str | None:
    """A sentence about what takes the place of another tool's flag; None: the flag is unknown.

    Args:
        command: without `peer`, such as "join".
        flag: as it was typed, with its dashes.
    """
    name = flag.lstrip("-").replace("_", "-").lower()
    if command == "init":
        field = _MANIFEST_FIELDS.get(name)
        section, _, key = (field or "").rpartition(".")
        written = f"write {key} under [{section}] of run.toml; `peer init --example` prints one" if field else None
        return _OF_INIT.get(name) or written
    if command not in ("join", "seed"):
        return None
    if field := _MANIFEST_FIELDS.get(name):
        return f"the owner of the run has signed {field} for everybody{_FOR_THIS_MACHINE.get(name, '')}"
    return _OF_A_PEER.get(name)
