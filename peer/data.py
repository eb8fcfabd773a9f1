"""Which tokens this peer reads: sources, the part that is held out, and the position of every block.

Sources: `stdlib:` (the Python standard library's own text, which every volunteer has), `text:PATH[,PATH...]` (files or
folders, bytes as tokens) and `tokens:PATH` (flat little-endian uint16 or uint32 shards, memory-mapped).
Held-out files or ranges never appear in the training stream. Positions are a pure function of seed, PeerId and step, so
that peers read different text without talking to each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dht.errors import UsageFault

MIN_FILES_TO_SPLIT_BY_FILE = 20
"""With fewer files the share that a hash picks is too far from the fraction asked for; then the tail is held out."""

_MAP_FROM_BYTES = 64 << 20  # larger files are memory-mapped, smaller ones read once
_NOT_LIBRARY_TEXT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})

TokenType = np.dtype[np.unsignedinteger[Any]]
_TOKEN_TYPES: dict[str, TokenType] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

Tokens = NDArray[np.unsignedinteger[Any]]


class TokenStream:
    """One long sequence of tokens made of segments (files), read in any order."""

    def __init__(self, segments: Sequence[tuple[str, Tokens]], vocab_size: int) -> None:
        self._segments = [(name, tokens) for name, tokens in segments if len(tokens)]
        self._ends = np.cumsum([len(tokens) for _, tokens in self._segments], dtype=np.int64)
        self._vocab_size = vocab_size

    @property
    def num_tokens(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def names(self) -> tuple[str, ...]:
        """Where the segments come from, in order."""
        return tuple(name for name, _ in self._segments)

    def read(self, start: int, length: int) -> NDArray[np.int64]:
        """`length` tokens from `start`, across segments: int64 [length].

        Raises:
            UsageFault: a token is not below vocab_size; names the file.
        """
        if not 0 <= start <= start + length <= self.num_tokens:
            raise IndexError(f"tokens {start}..{start + length} of {self.num_tokens}")
        block = np.empty(length, np.int64)
        filled, index = 0, int(np.searchsorted(self._ends, start, side="right"))
        while filled < length:
            name, tokens = self._segments[index]
            inside = start + filled - (int(self._ends[index]) - len(tokens))
            part = tokens[inside : inside + length - filled]
            if int(part.max()) >= self._vocab_size:
                raise UsageFault(
                    f"{name} holds token {int(part.max())}; expected tokens below vocab_size {self._vocab_size}; "
                    "tokenize it with the run's tokenizer"
                )
            block[filled : filled + len(part)] = part
            filled += len(part)
            index += 1
        return block

    def batch(self, positions: NDArray[np.int64], context: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets (the inputs moved on by one token): two int64 [len(positions), context] on the CPU."""
        blocks = torch.from_numpy(np.stack([self.read(int(position), context + 1) for position in positions]))
        return blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is trained on, and what only measures the loss."""

    training: TokenStream
    held_out: TokenStream

    def held_out_batches(
        self, num_batches: int, batch_size: int, context: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The same batches every time, spread evenly over the held-out text; each as from `TokenStream.batch`."""
        num_blocks = num_batches * batch_size
        room = self.held_out.num_tokens - context - 1
        positions = np.array([room * block // max(1, num_blocks - 1) for block in range(num_blocks)], np.int64)
        for batch in range(num_batches):
            yield self.held_out.batch(positions[batch * batch_size : (batch + 1) * batch_size], context)


def open_corpus(source: str, *, vocab_size: int, context: int, held_out_fraction: float) -> Corpus:
    """Open the data of a run.

    Args:
        source: ``stdlib:``, ``text:PATH[,PATH...]`` or ``tokens:PATH[,PATH...]``.
        held_out_fraction: share of the files (or, with few files, of the tail) that is never trained on.

    Raises:
        UsageFault: unknown kind, missing or unreadable path, no text, or less than one block on either side.
    """
    kind, _, rest = source.partition(":")
    if kind == "stdlib":
        segments = _library_segments()
    elif kind == "text" and rest:
        segments = _file_segments(rest.split(","), is_text=True)
    elif kind == "tokens" and rest:
        segments = _file_segments(rest.split(","), is_text=False)
    else:
        raise UsageFault(f"data source {source!r}; expected stdlib:, text:PATH[,PATH...] or tokens:PATH[,PATH...]")
    if kind != "tokens" and vocab_size < 256:
        raise UsageFault(f"{source} holds bytes and vocab_size is {vocab_size}; expected at least 256")
    training, held_out = _split(segments, held_out_fraction, by_file_only=kind == "stdlib")
    corpus = Corpus(TokenStream(training, vocab_size), TokenStream(held_out, vocab_size))
    for part, stream in (("to train on", corpus.training), ("held out", corpus.held_out)):
        if stream.num_tokens <= context:
            raise UsageFault(
                f"{source} has {stream.num_tokens} tokens {part}; expected at least {context + 1} (one context and a "
                "token); give more text or raise data.held_out_fraction"
            )
    return corpus


def block_positions(
    seed: int, peer_id: str, inner_step: int, batch_size: int, num_tokens_available: int, context: int
) -> NDArray[np.int64]:
    """Where the blocks of one inner step begin: int64 [batch_size], each in 0..num_tokens_available - context - 1.

    Philox, a counter-based generator (Salmon et al., SC 2011), keyed by (seed, PeerId) with the step as counter: the
    same on every machine, any step at once, nothing to store. numpy guarantees the raw stream for ever.

    Raises:
        ValueError: fewer tokens than one block of context + 1.
    """
    num_starts = num_tokens_available - context
    if num_starts < 1:
        raise ValueError(f"{num_tokens_available} tokens; expected at least {context + 1}")
    key = int.from_bytes(hashlib.sha256(f"{seed}|{peer_id}".encode()).digest()[:16], "little")
    raw = np.random.Philox(key=key, counter=inner_step << 64).random_raw(batch_size)
    return np.asarray(raw % np.uint64(num_starts), np.int64)


def _split(
    segments: list[tuple[str, Tokens]], fraction: float, *, by_file_only: bool
) -> tuple[list[tuple[str, Tokens]], list[tuple[str, Tokens]]]:
    """(training, held out): whole files chosen by the hash of their names, or the tail of the whole sequence."""
    if by_file_only or len(segments) >= MIN_FILES_TO_SPLIT_BY_FILE:
        held = [_is_held_out(name, fraction) for name, _ in segments]
        return (
            [segment for segment, out in zip(segments, held, strict=True) if not out],
            [segment for segment, out in zip(segments, held, strict=True) if out],
        )
    total = sum(len(tokens) for _, tokens in segments)
    boundary = total - int(total * fraction)
    training: list[tuple[str, Tokens]] = []
    held_out: list[tuple[str, Tokens]] = []
    start = 0
    for name, tokens in segments:
        cut = min(max(boundary - start, 0), len(tokens))
        training.append((name, tokens[:cut]))
        held_out.append((name, tokens[cut:]))
        start += len(tokens)
    return training, held_out


def _is_held_out(name: str, fraction: float) -> bool:
    return int.from_bytes(hashlib.sha256(f"held-out|{name}".encode()).digest()[:8], "big") < fraction * 2**64


def _library_segments() -> list[tuple[str, Tokens]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    segments = [
        (name, _load(path, np.dtype(np.uint8))) for name, path in _walk(root, _NOT_LIBRARY_TEXT) if name.endswith(".py")
    ]
    if not segments:
        raise UsageFault(f"no .py files under {root}; this Python has no library text; choose --data text:PATH")
    return segments


def _file_segments(paths: Sequence[str], *, is_text: bool) -> list[tuple[str, Tokens]]:
    segments: list[tuple[str, Tokens]] = []
    for text in paths:
        path = Path(text).expanduser()
        if not path.exists():
            raise UsageFault(f"{text} does not exist; expected a file or folder to read; check the data source")
        found = list(_walk(path)) if path.is_dir() else [(path.name, path)]
        if is_text:
            segments += [(name, _load(file, np.dtype(np.uint8))) for name, file in found]
        else:
            shards = [(name, file) for name, file in found if path.is_file() or _looks_like_shard(file)]
            segments += [(name, _load(file, _token_type(file))) for name, file in shards]
    if not any(len(tokens) for _, tokens in segments):
        raise UsageFault(f"{','.join(paths)} holds nothing to read; expected text files or token shards")
    return segments


def _walk(root: Path, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """Files below `root` as (path relative to it, path), sorted by the former; hidden ones are left out."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                path = Path(folder, name)
                found.append((path.relative_to(root).as_posix(), path))
    return iter(sorted(found))


def _load(path: Path, dtype: TokenType) -> Tokens:
    try:
        num_bytes = path.stat().st_size
        if num_bytes % dtype.itemsize:
            raise UsageFault(f"{path} has {num_bytes} bytes; expected a multiple of {dtype.itemsize} ({dtype.name})")
        if num_bytes > _MAP_FROM_BYTES or (dtype.itemsize > 1 and num_bytes):
            return np.memmap(path, dtype, mode="r")
        return np.frombuffer(path.read_bytes(), dtype)
    except OSError as error:
        raise UsageFault(f"{path} cannot be read ({error.strerror}); expected a readable file") from error


def _looks_like_shard(path: Path) -> bool:
    return path.suffix in (".u16", ".u32", ".bin")


def _token_type(path: Path) -> TokenType:
    for suffix, name in ((".u16", "uint16"), (".u32", "uint32")):
        if suffix in path.suffixes[-2:]:
            return _TOKEN_TYPES[name]
    sidecar = path.with_suffix(".json")
    try:
        return _TOKEN_TYPES[json.loads(sidecar.read_text())["dtype"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageFault(
            f"{path} does not say how its tokens are stored; expected the suffix .u16 or .u32, or {sidecar.name} "
            'beside it with {"dtype": "uint16"} or "uint32"'
        ) from error
