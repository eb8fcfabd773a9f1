"""Turns parts of text into shards of tokens, in a child process with limits (`peer.trainer.data.tokenize_pool`).

Tokenizing takes seconds per part and holds the interpreter's lock between calls of the library, so it runs outside
the training process. Text and tokenizer are untrusted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import blake3
import numpy as np
from pydantic import TypeAdapter

from dht.ground.errors import writing
from peer.trainer.data.loaded_tokenizer import LoadedTokenizer, loaded
from peer.trainer.text.documents import MAX_TEXT_CHARACTERS, Complaints, TextPart, TextSegment, documents
from peer.trainer.text.held_out import HeldOutRule, ShortDocuments
from peer.trainer.text.source_files import TokenArray, check_room

BATCH_CHARACTERS = 1 << 20
"""Characters passed to the tokenizer at once: enough to keep its threads busy, about 100 MB of its memory."""
CHECKED_BYTES = 64 << 20
"""Bytes written between checks of the free disk space: a small file can expand to unlimited text."""


@dataclass(frozen=True, slots=True)
class TokenizeOrder:
    """An order to tokenize one part.

    Attributes:
        part: see `TextPart`.
        training, held_out: paths of the shards to write.
        mode: permissions of the new files, before the umask.
    """

    part: TextPart
    text_field: str
    rule: HeldOutRule
    training: Path
    held_out: Path
    mode: int = 0o666


ORDERS = TypeAdapter(TokenizeOrder)
"""Converts orders to and from JSON."""


class _ShardFile:
    """A shard that is being written."""

    def __init__(self, path: Path, mode: int) -> None:
        self._path = path
        self._mode = mode
        self._draft = path.with_name(f".{path.name}.{os.getpid()}")
        self._file: BinaryIO | None = None
        self._hasher = blake3.blake3()
        self._num_unchecked = 0
        self.tokens = self.text_bytes = self.largest = 0

    def add(self, tokens: TokenArray, num_text_bytes: int) -> None:
        if not len(tokens):
            return
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            self._file = os.fdopen(os.open(self._draft, flags, self._mode), "wb")
        content = tokens.tobytes()
        self._num_unchecked += len(content)
        if self._num_unchecked > CHECKED_BYTES:
            check_room(self._path.parent, self._num_unchecked, self._path.name)
            self._num_unchecked = 0
        self._hasher.update(content)
        self._file.write(content)
        self.tokens += len(tokens)
        self.text_bytes += num_text_bytes
        self.largest = max(self.largest, int(tokens.max()))

    def keep(self) -> dict[str, Any] | None:
        """Rename the draft to its final name and return the shard's entry; None if the shard is empty."""
        if self._file is None:
            self._path.unlink(missing_ok=True)
            return None
        self._file.close()
        os.replace(self._draft, self._path)
        return {
            "name": self._path.name,
            "tokens": self.tokens,
            "text_bytes": self.text_bytes,
            "largest": self.largest,
            "digest": self._hasher.hexdigest(),
        }

    def drop(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # on a full disk the buffered bytes cannot be written
                self._file.close()
            with contextlib.suppress(OSError):
                self._draft.unlink(missing_ok=True)


def steps_of(order: TokenizeOrder, tokenizer: LoadedTokenizer) -> Generator[None, None, dict[str, Any]]:
    """Write the shards of one part, one batch of text per step; return a description of the part.

    Raises:
        UsageFault: a file cannot be read.
        LocalFault: the disk is full, or a library is missing.
    """
    complaints, short = Complaints(), ShortDocuments()
    files = (_ShardFile(order.training, order.mode), _ShardFile(order.held_out, order.mode))
    num_documents = 0
    try:
        with writing(order.training.parent):
            for batch in _batches(order, complaints, short):
                # A row of 50 MB would take 2 GB if encoded at once.
                groups = _groups((piece for pieces, _ in batch for piece in pieces), len)
                encoded = (tokens for group in groups for tokens in tokenizer.encode(group))
                for pieces, segment in batch:
                    file = files[segment.is_held_out]
                    for piece in pieces:
                        file.add(next(encoded), len(piece.encode()))
                    if segment.ends_document:
                        file.add(np.array([tokenizer.eos], tokenizer.dtype), 0)
                        num_documents += 1
                yield
            training, held_out = (file.keep() for file in files)
    finally:
        for file in files:
            file.drop()
    return {
        "training": training,
        "held_out": held_out,
        "documents": num_documents,
        "short_bytes": short.num_bytes,
        "smallest": short.smallest,
        "complaints": dict(complaints.counts),
        "lack": complaints.lack,
    }


_Item = TypeVar("_Item")


def _batches(
    order: TokenizeOrder, complaints: Complaints, short: ShortDocuments
) -> Iterator[list[tuple[list[str], TextSegment]]]:
    """Yield lists of (pieces of text that a tokenizer accepts, the segment that they form)."""

    def in_pieces(segment: TextSegment) -> tuple[list[str], TextSegment]:
        text, size = segment.text, MAX_TEXT_CHARACTERS
        return [text[start : start + size] for start in range(0, len(text), size)], segment

    segments = documents(order.part, order.text_field, complaints, order.rule, short)
    return _groups(map(in_pieces, segments), lambda one: len(one[1].text))


def _groups(items: Iterable[_Item], size_of: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Yield lists of items; each list ends when it reaches `BATCH_CHARACTERS`."""
    group: list[_Item] = []
    size = 0
    for item in items:
        group.append(item)
        size += size_of(item)
        if size >= BATCH_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def prepare(setup: dict[str, Any]) -> Any:
    """Answer the questions of `TokenizeWorker`: first a tokenizer, then an order, then one step of it per question."""
    tokenizer: LoadedTokenizer | None = None
    steps: Generator[None, None, dict[str, Any]] | None = None

    def answer(question: dict[str, Any], body: bytes) -> dict[str, Any]:
        nonlocal tokenizer, steps
        if "tokenizer" in question:
            tokenizer = loaded(body, question["tokenizer"], question["end"])
            return {}
        if "order" in question:
            assert tokenizer is not None
            steps = steps_of(ORDERS.validate_python(question["order"]), tokenizer)
        assert steps is not None
        try:
            next(steps)
        except StopIteration as end:
            return {"part": end.value}
        return {}

    return answer
