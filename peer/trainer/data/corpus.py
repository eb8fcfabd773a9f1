"""What a run reads: sources, and the part of them that is held out.

Sources: `stdlib:` (the Python standard library's own text, which every volunteer has), `text:PATH[,PATH...]` (files or
folders, bytes as tokens) and `tokens:PATH` (flat little-endian uint16 or uint32 shards, memory-mapped). Which of them a
manifest may name is in `peer/config/data_source.py`.
Held-out files or ranges never appear in the training stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dht.errors import UsageFault
from dht.quantities import bytes_text, plural
from peer.config.data_source import LIBRARY, reads_bytes
from peer.trainer.data.files import Tokens, chosen_files, library_files

MIN_FILES_TO_SPLIT_BY_FILE = 20
"""With fewer files the share that a hash picks is too far from the fraction asked for; then the tail is held out."""


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
    """What is trained on, and what only measures the loss.

    Attributes:
        facts: what was read and what was left out, for people.
    """

    training: TokenStream
    held_out: TokenStream
    facts: str = ""

    def held_out_batches(
        self, num_batches: int, batch_size: int, context: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The same batches every time, spread evenly over the held-out text; each as from `TokenStream.batch`."""
        last_block = max(1, num_batches * batch_size - 1)
        room = self.held_out.num_tokens - context - 1
        for first in range(0, num_batches * batch_size, batch_size):
            positions = [room * block // last_block for block in range(first, first + batch_size)]
            yield self.held_out.batch(np.array(positions, np.int64), context)


def open_corpus(source: str, *, vocab_size: int, context: int, held_out_fraction: float) -> Corpus:
    """Open the data of a run.

    Args:
        source: ``stdlib:``, ``text:PATH[,PATH...]`` or ``tokens:PATH[,PATH...]``.
        held_out_fraction: share of the files (or, with few files, of the tail) that is never trained on.

    Raises:
        UsageFault: unknown kind, missing or unreadable path, something that is no regular file, no text, more than the
            memory is for, or less than one block on either side.
    """
    kind, _, rest = source.partition(":")
    if source == LIBRARY:
        found = library_files()
    elif kind in ("text", "tokens") and rest:
        found = chosen_files(rest, is_text=kind == "text")
    else:
        raise UsageFault(f"data source {source!r}; expected stdlib:, text:PATH[,PATH...] or tokens:PATH[,PATH...]")
    if reads_bytes(source) and vocab_size < 256:
        raise UsageFault(f"{source} holds bytes and vocab_size is {vocab_size}; expected at least 256")
    training, held_out = _split(found.segments, held_out_fraction, by_file_only=source == LIBRARY)
    num_bytes = sum(tokens.nbytes for _, tokens in found.segments)
    facts = f"{plural(len(found.segments), 'file')}, {bytes_text(num_bytes)}"
    if found.num_left_out:
        facts += f"; {found.num_left_out} entries that lead out of the folder, or are no files, were left out"
    corpus = Corpus(TokenStream(training, vocab_size), TokenStream(held_out, vocab_size), facts)
    for part, stream in (("to train on", corpus.training), ("held out", corpus.held_out)):
        if stream.num_tokens <= context:
            raise UsageFault(
                f"{source} has {stream.num_tokens} tokens {part}; expected at least {context + 1} (one context and a "
                "token); give more text or raise data.held_out_fraction"
            )
    return corpus


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
