"""A small tokenizer, and shards made with it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from peer.trainer.data.document_packing import TokenizeOrder, steps_of
from peer.trainer.data.loaded_tokenizer import LoadedTokenizer, loaded
from peer.trainer.data.shards import Meta
from peer.trainer.data.tokenizing import TextTokenizer, make_tokenizer, tokenizer_content
from peer.trainer.prepare import prepare_data

WORDS = ("birds", "fly", "in", "a", "murmuration", "over", "the", "marsh", "and", "settle", "at", "dusk")


def sentences(number: int, seed: int = 0) -> list[str]:
    """Documents of some 300 characters each, all different."""
    chance = random.Random(seed)
    return [f"{index}: " + " ".join(chance.choices(WORDS, k=50)) for index in range(number)]


def book(num_bytes: int, between: str = "\n", seed: int = 0) -> str:
    """Text of numbered sentences, all different."""
    chance, lines, size = random.Random(seed), [], 0
    while size < num_bytes:
        lines.append(f"{seed}.{len(lines)} " + " ".join(chance.choices((*WORDS, "été", "\U0001f426"), k=12)))
        size += len(lines[-1].encode()) + len(between)
    return between.join(lines)


def tokenize_part(order: TokenizeOrder, tokenizer: LoadedTokenizer) -> dict[str, Any]:
    """Write the shards of one part at once; see `steps_of`."""
    steps = steps_of(order, tokenizer)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            facts: dict[str, Any] = end.value
            return facts


class WorkerHere:
    """Stands for a `TokenizeWorker` and does its work in this process, which saves its start."""

    def __init__(self, tokenizer: Path | None, end: str | None) -> None:
        self._tokenizer = None
        if tokenizer is not None:
            file, content, end = tokenizer_content(tokenizer, end)
            self._tokenizer = loaded(content, str(file), end)

    def tokenize(self, order: TokenizeOrder) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(json.dumps(tokenize_part(order, self._tokenizer)))
        return answer

    def close(self) -> None:
        """There is no process."""


def small_tokenizer(folder: Path, vocab_size: int = 300) -> TextTokenizer:
    return make_tokenizer(sentences(200), vocab_size, folder)


def in_this_process(tokenizer: TextTokenizer) -> LoadedTokenizer:
    """One that was made here, without a child process."""
    return loaded(tokenizer.path.read_bytes(), str(tokenizer.path), None)


def json_lines(path: Path, texts: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({"id": index, field: text}) + "\n" for index, text in enumerate(texts)))
    return path


def prepared(folder: Path, number: int = 400, part_bytes: int = 30_000) -> tuple[Path, Meta, str, TextTokenizer]:
    """(folder of shards, meta.json, its digest, tokenizer)."""
    tokenizer = small_tokenizer(folder / "tokenizer")
    corpus = json_lines(folder / "corpus.jsonl", sentences(number))
    meta, digest = prepare_data(
        [str(corpus)],
        tokenizer.path,
        folder / "shards",
        held_out_fraction=0.1,
        num_processes=1,
        part_bytes=part_bytes,
        say=lambda text: None,
    )
    return folder / "shards", meta, digest, tokenizer
