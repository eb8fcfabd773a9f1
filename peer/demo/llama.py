"""`peer demo --model hf`: a small Llama with a tokenizer of its own, taken home as a folder that transformers loads.

Everything is made here, from the text of Python's standard library, and with the commands that an organiser has: a
tokenizer (`peer data tokenizer`), shards (`peer data prepare`), a run (`peer init --model`), the model (`peer export`),
and some text from it (`peer sample`).
"""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

from dht.errors import LocalFault, UsageFault
from dht.quantities import count_text
from peer.import_path import python_command, python_environment
from peer.owner.new_run import NewRun, create_run
from peer.plain_console import PlainConsole
from peer.trainer.hf.described import describe_model
from peer.trainer.prepare import prepare_data, train_tokenizer

VOCABULARY = 1024
"""Learned from a megabyte or two: larger ones would have words that occur once."""
PARTS_OF_THE_LIBRARY = ("asyncio", "email", "http", "importlib", "json", "logging", "unittest", "urllib", "xml")
"""Packages that every Python has: 2 MB of text, whose tokens are made in seconds."""
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
RUN = """
description = "peer demo: a small Llama on the text of the Python standard library"
seed = 1
[training]
batch_size = 4
learning_rate = 0.003
warmup_steps = 20
[averaging]
sync_every = 20
num_fragments = 4
[network]
announce_seconds = 4.0
[data]
source = "tokens:"
tokenizer = "tokenizer.json"
digest = "{digest}"
held_out_fraction = 0.05
evaluation_batches = 8
"""
PROMPT = "def "
SAMPLE_TOKENS = 60
COMMAND_SECONDS = 180.0
"""For an export or a sample: each loads torch and transformers anew, on a machine where four peers train."""


def check_out(out: Path) -> None:
    """Before anything is trained.

    Raises:
        UsageFault: there is something already.
    """
    if out.exists():
        raise UsageFault(f"{out} is there already; expected a new folder for the demo's model; give another --out")


def make_llama_run(folder: Path, console: PlainConsole) -> tuple[NewRun, str]:
    """A run of a small Llama, and what its peers give as `--data`.

    Raises:
        LocalFault: a library is missing, or the disk is full.
    """
    model, shards = folder / "model", folder / "shards"
    library = Path(sysconfig.get_paths()["stdlib"])
    # One by one: beside them lie what Python compiled of them.
    texts = [f"text:{path}" for name in PARTS_OF_THE_LIBRARY for path in sorted((library / name).rglob("*.py"))]
    tokenizer = train_tokenizer(texts, VOCABULARY, model)
    (model / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    meta, digest = prepare_data(
        texts, tokenizer.path, shards, held_out_fraction=0.05, num_processes=1, say=lambda text: None
    )
    num_tokens = sum(shard.tokens for shard in meta.training)
    console.print(f"made a tokenizer of {VOCABULARY} tokens and {count_text(num_tokens)} tokens to train on")
    (folder / "run.toml").write_text(RUN.format(digest=digest), encoding="utf-8")
    made = create_run("demo", folder / "run.toml", folder / "owner", model=describe_model(model))
    return made, f"tokens:{shards}"


def take_home(run_id: str, address: str, out: Path) -> None:
    """Export the model of the live run with the command that everybody has.

    Raises:
        LocalFault: it failed; its own sentence is in it.
    """
    _run("export", "--run-id", run_id, "--peers", address, "--format", "hf", "--out", str(out))


def text_of(model: Path) -> str:
    """What an exported model makes of `PROMPT`.

    Raises:
        LocalFault: it failed; its own sentence is in it.
    """
    return _run("sample", "--model", str(model), "--prompt", PROMPT, "--max-tokens", str(SAMPLE_TOKENS)).strip()


def _run(*arguments: str) -> str:
    try:
        done = subprocess.run(
            python_command("peer", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
            env=python_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise LocalFault(
            f"peer {arguments[0]} took more than {COMMAND_SECONDS:.0f} s; expected it done; is the machine busy?"
        ) from error
    if done.returncode:
        raise LocalFault(f"peer {arguments[0]} failed:\n{done.stderr.strip()[-1500:]}")
    return done.stdout
