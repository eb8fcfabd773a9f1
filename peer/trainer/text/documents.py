"""Documents of text, JSON lines, Parquet and data sets of the Hugging Face hub, part by part.

A part is a range of a file that can be read without what stands before it. So several processes share the work, and
none reads more than it needs. The same files and part size give the same parts everywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from dht.errors import UsageFault, reading
from dht.quantities import plural
from dht.regular_files import open_regular
from peer.optional_libraries import needing
from peer.trainer.text.hub import hub_rows
from peer.trainer.text.source_files import files_at
from peer.user_folders import paths_in

T = TypeVar("T")
V = TypeVar("V")

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""Everything else is text."""

KINDS = ("text", "jsonl", "parquet")

CHUNK_BYTES = 1 << 16
"""Text files are divided into documents of about so many bytes at the ends of lines. A held-out choice is made for
each, and a book has many.
"""
MAX_ROW_BYTES = 64 << 20
"""Of one row of JSON lines: more is no document, and is left out."""
MAX_TEXT_CHARACTERS = 1 << 20
"""Handed to a tokenizer at a time; its memory is about 100 times that."""
BINARY_BYTES = 8000
"""At the beginning of a text file; with a NUL among them it is binary, as for git and grep, and is left out."""
ROWS_TO_BELIEVE = 100
"""Rows without the field, and none with it, before the field is said to be missing."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Ranges of files of one kind: bytes of text and JSON lines, row groups of Parquet.

    Attributes:
        kind: text, jsonl, parquet, or hf for rows of a data set of the hub.
        pieces: (path, start, stop) of each; of the hub its source in place of a path.
    """

    kind: str
    pieces: tuple[tuple[str, int, int], ...]


@dataclass
class Complaints:
    """What was left out or mended, by kind, as people read it."""

    counts: Counter[str] = field(default_factory=Counter)

    def text(self) -> str:
        """``empty rows (3), rows without the field (1)``."""
        return ", ".join(f"{kind} ({count})" for kind, count in sorted(self.counts.items()) if count)


def files_of(sources: Sequence[str], complaints: Complaints | None = None) -> list[tuple[str, Path]]:
    """(kind, path) of files and folders; ``text:``, ``jsonl:`` or ``parquet:`` in front says what they are.

    Without that a file is what its suffix says. In folders hidden files and links that lead out are left out.

    Args:
        complaints: counts entries of folders that are left out.

    Raises:
        UsageFault: something is missing or no regular file, or there is nothing.
    """
    found = []
    for source in sources:
        kind, colon, rest = source.partition(":")
        named = kind if colon and kind in KINDS and rest else None
        for path in paths_in(source if named is None else rest):
            files, num_left_out = files_at(path)
            if complaints is not None and num_left_out:
                complaints.counts["links that lead out of the folder, and what is no file"] += num_left_out
            for _, file in files:
                by_suffix = SUFFIXES.get(file.suffix.lower(), "text")
                if named in (None, "text", by_suffix) or not path.is_dir():
                    found.append((named or by_suffix, file))
    if not found:
        raise UsageFault(f"{', '.join(sources)} holds nothing to read; expected text, .jsonl or .parquet files")
    return found


def parts_of(files: Sequence[tuple[str, Path]], part_bytes: int) -> list[TextPart]:
    """Files divided into parts of about `part_bytes` each; small files of one kind share a part.

    A peer reads one part for long, and files that lie side by side are alike. So the files of a part come from all over
    the source, in an order that the same files give everywhere.

    Raises:
        UsageFault: a file cannot be read, or is no Parquet file.
        LocalFault: a library is missing.
    """
    parts: list[TextPart] = []
    for kind, alike in groupby(sorted(files, key=lambda file: KINDS.index(file[0])), key=lambda file: file[0]):
        pieces: list[tuple[str, int, int]] = []
        size = 0
        for _, path in _mixed(list(alike)):
            for start, stop, num_bytes in _ranges(kind, path, part_bytes):
                pieces.append((str(path), start, stop))
                size += num_bytes
                if size >= part_bytes:
                    parts.append(TextPart(kind, tuple(pieces)))
                    pieces, size = [], 0
        if pieces:
            parts.append(TextPart(kind, tuple(pieces)))
    return parts


def _mixed(files: Sequence[T]) -> list[T]:
    """In an order that their number alone decides."""
    return [file for _, file in sorted(enumerate(files), key=lambda numbered: _digest_of_number(numbered[0]))]


def _digest_of_number(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=8).digest()


def documents(part: TextPart, text_field: str, complaints: Complaints) -> Iterator[tuple[str, bool]]:
    """(text, whether the document ends with it) of a part, in order; never empty.

    Raises:
        UsageFault: a file cannot be read, or no row has the field.
        LocalFault: a library is missing.
    """
    for piece in part.pieces:
        name, start, stop = piece
        with reading(Path(name)):
            if part.kind == "text":
                yield from _text(Path(name), start, stop, complaints)
                continue
            rows = rows_of(part.kind, piece, (text_field,), complaints)
            for text in texts_of(rows, text_field, name, complaints):
                yield text, True


def rows_of(kind: str, piece: tuple[str, int, int], fields: Sequence[str], complaints: Complaints) -> Iterator[Any]:
    """Rows of a piece of JSON lines, Parquet or a data set of the hub; of Parquet these fields alone.

    Raises:
        OSError, UsageFault: a file cannot be read, or has no such field.
        LocalFault: a library is missing.
    """
    name, start, stop = piece
    if kind == "hf":
        return hub_rows(name, start, stop)
    if kind == "jsonl":
        return _json_rows(Path(name), start, stop, complaints)
    return _parquet(Path(name), start, stop, fields, complaints)


def usable(
    rows: Iterator[T],
    value_in: Callable[[T], V | None],
    complaints: Complaints,
    lack: str,
    fault: Callable[[T], UsageFault],
) -> Iterator[V]:
    """What `value_in` finds in each row; rows in which it finds nothing are counted as `lack`.

    Raises:
        UsageFault: `fault` of a row, where none of the first ones has anything.
    """
    num_with = num_without = 0
    for row in rows:
        value = value_in(row)
        if value is None:
            num_without += 1
            complaints.counts[lack] += 1
            if not num_with and num_without >= ROWS_TO_BELIEVE:
                raise fault(row)
            continue
        num_with += 1
        yield value
    if num_without and not num_with:
        raise fault(row)


def texts_of(rows: Iterator[Any], text_field: str, where: str, complaints: Complaints) -> Iterator[str]:
    """The text of each row that has one.

    Raises:
        UsageFault: none of the first rows has the field; the sentence names those that it has.
    """

    def text_in(row: Any) -> str | None:
        text = row.get(text_field) if isinstance(row, dict) else None
        if isinstance(text, bytes):
            return _decoded(text, complaints)
        return text if isinstance(text, str) else None

    no_field = partial(_no_field, where, text_field)
    for text in usable(rows, text_in, complaints, "rows without the field", no_field):
        if not text.strip():
            complaints.counts["empty rows"] += 1
            continue
        # Half a pair of UTF-16, which JSON can hold and no tokenizer takes.
        yield text if text.isascii() else text.encode("utf-8", "replace").decode()


def _no_field(where: str, text_field: str, row: Any) -> UsageFault:
    has = ", ".join(map(str, list(row)[:12])) if isinstance(row, dict) else f"{type(row).__name__}s"
    if isinstance(row, dict) and text_field in row:
        has += f" ({text_field} is {'empty' if row[text_field] is None else type(row[text_field]).__name__})"
    return UsageFault(
        f"{where} has no text in field {text_field!r}; its rows have {has[:300] or 'no fields'}; name the field with "
        "--field, or in a run with data.text_field"
    )


def _ranges(kind: str, path: Path, part_bytes: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, bytes) of the ranges of a file."""
    if kind == "parquet":
        metadata = _parquet_file(path).metadata
        for group in range(metadata.num_row_groups):
            yield group, group + 1, metadata.row_group(group).total_byte_size
        return
    with reading(path), open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
    for start in range(0, num_bytes, part_bytes):
        stop = min(start + part_bytes, num_bytes)
        yield start, stop, stop - start


def _lines_from(file: BufferedReader, start: int) -> int:
    """Move to the first line that begins at `start` or later; returns where that is."""
    if start == 0:
        return 0
    file.seek(start - 1)
    position = start - 1
    while True:
        line = file.readline(CHUNK_BYTES)
        position += len(line)
        if not line or line.endswith(b"\n"):
            return position


def _text(path: Path, start: int, stop: int, complaints: Complaints) -> Iterator[tuple[str, bool]]:
    """Chunks that end with a line, about `CHUNK_BYTES` each; the last of the file ends the document."""
    with open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if b"\0" in file.read(BINARY_BYTES):
            complaints.counts["binary files"] += not start
            return
        file.seek(0)
        position, is_line_end = _lines_from(file, start), True
        while position < stop or not is_line_end:
            content = file.read(max(1, min(CHUNK_BYTES, stop - position)))
            if content and not content.endswith(b"\n"):
                content += file.readline(CHUNK_BYTES)  # text without lines is cut somewhere
            if not content:
                return
            position += len(content)
            is_line_end = content.endswith(b"\n")
            text = _decoded(content, complaints)
            if text.strip():
                yield text, position >= num_bytes


def _json_rows(path: Path, start: int, stop: int, complaints: Complaints) -> Iterator[Any]:
    with open_regular(path) as file:
        position = _lines_from(file, start)
        while position < stop:
            line = file.readline(MAX_ROW_BYTES)
            position += len(line)
            if not line:
                return
            if not line.endswith(b"\n") and len(line) == MAX_ROW_BYTES:
                complaints.counts[f"rows longer than {MAX_ROW_BYTES >> 20} MiB"] += 1
                while line and not line.endswith(b"\n"):
                    line = file.readline(CHUNK_BYTES)
                    position += len(line)
                continue
            if not line.strip():
                continue
            try:
                yield json.loads(_decoded(line, complaints))
            except (ValueError, RecursionError):
                complaints.counts["lines that are no JSON"] += 1


def _parquet(path: Path, start: int, stop: int, fields: Sequence[str], complaints: Complaints) -> Iterator[Any]:
    file = _parquet_file(path)
    names = file.schema_arrow.names
    for name in fields:
        if name not in names:
            raise _no_field(str(path), name, dict.fromkeys(names))
    num_groups = file.metadata.num_row_groups
    if num_groups < stop:
        raise UsageFault(
            f"{path} has {plural(num_groups, 'row group')} now; expected at least {stop}, as when it was opened; "
            "restart to read what is there now"
        )
    import pyarrow

    try:
        for batch in file.iter_batches(batch_size=256, row_groups=list(range(start, stop)), columns=list(fields)):
            columns = [_values_of(column, complaints) for column in batch.columns]
            for values in zip(*columns, strict=True):
                yield dict(zip(batch.schema.names, values, strict=True))
    except pyarrow.ArrowException as error:
        raise UsageFault(f"{path} cannot be read ({str(error)[:200]}); expected a whole Parquet file") from error


def _values_of(column: Any, complaints: Complaints) -> list[Any]:
    """Of a column of text without its mistakes, which Parquet lets writers make."""
    import pyarrow

    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        raw = column.cast(pyarrow.large_binary()).to_pylist()
        found = [None if value is None else _decoded(value, complaints) for value in raw]
    return found


def _parquet_file(path: Path) -> Any:
    with needing("reading Parquet files", "pyarrow", "hf"):
        import pyarrow
        import pyarrow.parquet
    try:
        with reading(path):
            open_regular(path).close()  # a pipe would be waited for
            return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise UsageFault(f"{path} is no Parquet file ({str(error)[:200]}); expected a whole one") from error


def _decoded(content: bytes, complaints: Complaints) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        complaints.counts["texts with bytes that are no UTF-8, which were replaced"] += 1
        return content.decode(errors="replace")
