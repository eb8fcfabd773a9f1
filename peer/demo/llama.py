"""`peer demo --model hf`: a small Llama with a tokenizer of its own, taken home as a folder that transformers loads.

Everything is made here, from the text of Python's standard library, and with the commands that an organiser has. These
make a tokenizer (`peer data tokenizer`), shards (`peer data prepare`), a run (`peer init --model`), and the model
(`peer export`).
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from pathlib import Path

from dht.ground.quantities import count_text
from peer.owner.new_run import NewRun, create_run
from peer.trainer.hf.library_modules import check_library
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.prepare import prepare_data, train_tokenizer

PARTS_OF_THE_LIBRARY = ("asyncio", "email", "http", "importlib", "json", "logging", "unittest", "urllib", "xml")
"""Packages that every Python has: 2 MB of text, whose tokens are made in seconds."""
CONFIG = {
    "model_type": "llama",
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
[data]
source = "tokens:"
tokenizer = "tokenizer.json"
digest = "{digest}"
"""


def make_llama_run(folder: Path, vocabulary: int, how: str, say: Callable[[str], None]) -> tuple[NewRun, str]:
    """A run of a small Llama with a tokenizer of `vocabulary` tokens, and what its peers give as `--data`.

    Args:
        how: it trains: sections of a run.toml.

    Raises:
        LocalFault: a library is missing, or the disk is full.
    """
    check_library()
    model, shards = folder / "model", folder / "shards"
    library = Path(sysconfig.get_paths()["stdlib"])
    # One by one: beside them lie what Python compiled of them.
    texts = [f"text:{path}" for name in PARTS_OF_THE_LIBRARY for path in sorted((library / name).rglob("*.py"))]
    tokenizer = train_tokenizer(texts, vocabulary, model)
    (model / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": vocabulary}), encoding="utf-8")
    meta, digest = prepare_data(
        texts, tokenizer.path, shards, held_out_fraction=0.05, num_processes=1, say=lambda text: None
    )
    num_tokens = sum(shard.tokens for shard in meta.training)
    say(f"made a tokenizer of {vocabulary} tokens and {count_text(num_tokens)} tokens to train on")
    (folder / "run.toml").write_text(RUN.format(digest=digest) + how, encoding="utf-8")
    made = create_run("demo", folder / "run.toml", folder / "owner", model=describe_model(model))
    return made, f"tokens:{shards}"
