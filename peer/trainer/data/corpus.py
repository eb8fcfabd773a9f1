"""What a run reads: sources, and the part of them that is held out.

Sources: `stdlib:` (the Python standard library's own text, which every volunteer has), `text:PATH[,PATH...]` (files or
folders, bytes as tokens) and `tokens:PATH` (flat little-endian uint16 or uint32 shards). Which of them a
manifest may name is in `peer/config/data_source.py`.
Held-out files or ranges never appear in the training stream.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dht.errors import UsageFault
from dht.quantities import bytes_text, plural
from peer.config.data_source import LIBRARY, reads_bytes
from peer.trainer.data.files import FileTokens, Tokens, chosen_files, library_files
from peer.trainer.data.held_out import PIECE_TOKENS, hash_fraction


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
            check_ids(name, int(part.max()), self._vocab_size)
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


def check_ids(name: str, largest: int, vocab_size: int) -> None:
    """Before tokens are used.

    Raises:
        UsageFault: the largest of them is not below vocab_size; names the file.
    """
    if largest >= vocab_size:
        raise UsageFault(
            f"{name} holds token {largest}; expected tokens below vocab_size {vocab_size}; tokenize it with the run's "
            "tokenizer"
        )


def open_corpus(source: str, *, vocab_size: int, context: int, held_out_fraction: float) -> Corpus:
    """Open the data of a run.

    Args:
        source: ``stdlib:``, ``text:PATH[,PATH...]`` or ``tokens:PATH[,PATH...]``.
        held_out_fraction: share that is never trained on: pieces chosen by their content, files of the
            library by their names.

    Raises:
        UsageFault: unknown kind, missing or unreadable path, something that is no regular file, no text, tokens outside
            of the vocabulary, or less than one block on either side.
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
    if source == LIBRARY:
        training, held_out = _split_by_name(found.segments, held_out_fraction)
    else:
        training, held_out = _split_by_content(found.segments, held_out_fraction, context, vocab_size)
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


def _split_by_name(
    segments: list[tuple[str, FileTokens]], fraction: float
) -> tuple[list[tuple[str, FileTokens]], list[tuple[str, FileTokens]]]:
    """(training, held out) of the library: by names, because its text differs a little between versions of Python."""
    training: list[tuple[str, FileTokens]] = []
    held_out: list[tuple[str, FileTokens]] = []
    for name, tokens in segments:
        (held_out if _is_held_out_name(name, fraction) else training).append((name, tokens))
    return training, held_out


def _split_by_content(
    segments: list[tuple[str, FileTokens]], fraction: float, context: int, vocab_size: int
) -> tuple[list[tuple[str, FileTokens]], list[tuple[str, FileTokens]]]:
    """(training, held out): pieces of at most `PIECE_TOKENS`, each chosen by its own content; reads all of them once.

    Of little text the pieces with the smallest hashes are held out; of a single piece, its tail.

    Raises:
        UsageFault: a token is not below vocab_size; names the file.
    """
    pieces: list[tuple[float, int, int, int]] = []  # hash, segment, start, stop
    for index, (name, tokens) in enumerate(segments):
        for start in range(0, len(tokens), PIECE_TOKENS):
            piece = tokens[start : start + PIECE_TOKENS]
            check_ids(name, int(piece.max()), vocab_size)
            pieces.append((hash_fraction(piece.tobytes()), index, start, start + len(piece)))
    held: set[tuple[int, int]] = set()
    num_held = 0
    # What comes twice has one hash, and goes to one side.
    for value, same in itertools.groupby(sorted(pieces), lambda piece: piece[0]):
        if value >= fraction and num_held > context:
            break
        for _, index, start, stop in same:
            held.add((index, start))
            num_held += stop - start
    if sum(len(tokens) for _, tokens in segments) - num_held <= context:
        return _tail(segments, fraction)
    sides: tuple[list[tuple[str, FileTokens]], list[tuple[str, FileTokens]]] = ([], [])
    # Neighbours on one side become one segment again.
    for (index, is_held), run in itertools.groupby(pieces, lambda piece: (piece[1], (piece[1], piece[2]) in held)):
        name, tokens = segments[index]
        parts = list(run)
        sides[is_held].append((name, tokens.part(parts[0][2], parts[-1][3])))
    return sides


def _tail(
    segments: list[tuple[str, FileTokens]], fraction: float
) -> tuple[list[tuple[str, FileTokens]], list[tuple[str, FileTokens]]]:
    total = sum(len(tokens) for _, tokens in segments)
    boundary = total - int(total * fraction)
    training: list[tuple[str, FileTokens]] = []
    held_out: list[tuple[str, FileTokens]] = []
    start = 0
    for name, tokens in segments:
        cut = min(max(boundary - start, 0), len(tokens))
        training.append((name, tokens.part(0, cut)))
        held_out.append((name, tokens.part(cut, len(tokens))))
        start += len(tokens)
    return training, held_out


def _is_held_out_name(name: str, fraction: float) -> bool:
    return int.from_bytes(hashlib.sha256(f"held-out|{name}".encode()).digest()[:8], "big") < fraction * 2**64
