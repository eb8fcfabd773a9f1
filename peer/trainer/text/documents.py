"""Documents of text, JSON lines and Parquet, part by part.

A part is a range of a file that can be read without the preceding bytes. So several processes share the work, and none
reads more than it needs. The same files and part size always give the same parts.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dht.ground.errors import UsageFault, reading
from dht.ground.quantities import bytes_text
from dht.ground.regular_files import open_regular
from peer.trainer.text.held_out import (
    LONG_BYTES,
    HeldOutRule,
    ShortDocuments,
    bytes_to_edge,
    cut_document,
    edges_of,
    edges_of_short,
    hash_fraction,
    slack_of,
)
from peer.trainer.text.parquet_groups import RowGroupLists
from peer.trainer.text.parquet_rows import parquet_columns, parquet_rows
from peer.trainer.text.source_files import files_at
from peer.user_folders import paths_in

T = TypeVar("T")

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
"""Formats by suffix; all other files are text."""
COMPRESSED = (
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ\0",
    b"\x28\xb5\x2f\xfd",
    b"\x04\x22\x4d\x18",
    b"PK\x03\x04",
    b"7z\xbc\xaf",
)
"""First bytes of gzip, bzip2, xz, zstd, lz4, zip and 7z files."""
BYTE_ORDER_MARK = "\ufeff"
"""A mark that some editors write in front of a text."""

KINDS = ("text", "jsonl", "parquet")

CHUNK_BYTES = 1 << 16
"""Approximate size of the chunks in which long text files are read; chunks end with a line."""
ROWS_WITHOUT_TEXT = "rows without the field"
MAX_ROW_BYTES = 64 << 20
"""Size limit of one row; a longer row is not a document, and is left out."""
TOO_LONG = f"rows longer than {MAX_ROW_BYTES >> 20} MiB"
MAX_TEXT_CHARACTERS = 1 << 20
"""Characters passed to a tokenizer at once; it needs about 100 times as much memory."""
NOTHING_HELD_OUT = HeldOutRule.of(0.0)
BINARY_BYTES = 8000
"""Bytes checked at the beginning of a text file; with a NUL it is binary, as for git and grep, and is left out."""


class FileRange(NamedTuple):
    """A range of a file: bytes of text and JSON lines, row groups of Parquet.

    Attributes:
        path: path of the file; for a data set of the hub, its source.
        file_bytes: length of the file when it was listed, by which a long text is divided.
    """

    path: str
    start: int
    stop: int
    file_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TextPart:
    """Pieces of one kind: text, jsonl, parquet, or hf for a part of a hub data set, numbered as in `hub.py`."""

    kind: str
    pieces: tuple[FileRange, ...]


class TextSegment(NamedTuple):
    """A document, or a part of a long document that is on one side."""

    text: str
    is_held_out: bool
    ends_document: bool


@dataclass
class Complaints:
    """Counts of omitted or repaired text, by kind, for people.

    Attributes:
        lack: a sentence about the first row without text; an error only if no row has text.
    """

    counts: Counter[str] = field(default_factory=Counter)
    lack: str = ""

    def add(self, counts: Mapping[str, int], lack: str) -> None:
        """Add the counts of another process."""
        self.counts.update(counts)
        self.lack = self.lack or lack

    def text(self) -> str:
        """Return a text such as ``empty rows (3), rows without the field (1)``."""
        return ", ".join(f"{kind} ({count})" for kind, count in sorted(self.counts.items()) if count)


def files_of(sources: Sequence[str], complaints: Complaints | None = None) -> list[tuple[str, Path]]:
    """List (kind, path) of files and folders; a prefix ``text:``, ``jsonl:`` or ``parquet:`` gives their format.

    Without a prefix the file's suffix decides. In folders, hidden files and links that lead out are left out.

    Args:
        complaints: counts omitted entries of folders, and files of rows that are read as plain text.

    Raises:
        UsageFault: a file is missing or not a regular file, or there is no file.
    """
    complaints = complaints or Complaints()
    found = []
    for source in sources:
        kind, colon, rest = source.partition(":")
        named = kind if colon and kind in KINDS and rest else None
        for path in paths_in(source if named is None else rest):
            files, num_left_out = files_at(path)
            if num_left_out:
                complaints.counts["links that lead out of the folder, or entries that are not files"] += num_left_out
            for _, file in files:
                by_suffix = SUFFIXES.get(file.suffix.lower(), "text")
                if named in (None, "text", by_suffix) or not path.is_dir():
                    found.append((named or by_suffix, file))
                    if named == "text" and by_suffix == "jsonl":
                        complaints.counts["files of rows that are read as plain text, with their braces"] += 1
    if not found:
        raise UsageFault(f"{', '.join(sources)} contains no file to read; expected text, .jsonl or .parquet files")
    return found


def parts_of(
    files: Sequence[tuple[str, Path]], part_bytes: int, complaints: Complaints | None = None
) -> list[TextPart]:
    """Divide files into parts of about `part_bytes` each; small files of one kind share a part.

    A peer reads one part for a long time, and neighbouring files are similar. So the files of a part are taken from the
    whole source, in an order that depends only on the files.

    Args:
        complaints: counts omitted files: binary and compressed ones.

    Raises:
        UsageFault: a file cannot be read, or is not a Parquet file.
        LocalFault: a library is missing.
    """
    complaints = complaints or Complaints()
    with contextlib.closing(RowGroupLists()) as lists:
        return _parts_of(files, part_bytes, complaints, lists)


def _parts_of(
    files: Sequence[tuple[str, Path]], part_bytes: int, complaints: Complaints, lists: RowGroupLists
) -> list[TextPart]:
    parts: list[TextPart] = []
    for kind, alike in groupby(sorted(files, key=lambda file: KINDS.index(file[0])), key=lambda file: file[0]):
        pieces: list[FileRange] = []
        size = 0
        for _, path in _mixed(list(alike)):
            for piece, num_bytes in _pieces(kind, path, part_bytes, complaints, lists):
                pieces.append(piece)
                size += num_bytes
                if size >= part_bytes:
                    parts.append(TextPart(kind, tuple(pieces)))
                    pieces, size = [], 0
        if pieces:
            parts.append(TextPart(kind, tuple(pieces)))
    return parts


def _mixed(files: Sequence[T]) -> list[T]:
    """Return the files in an order that depends only on their number."""
    return [file for _, file in sorted(enumerate(files), key=lambda numbered: _digest_of_number(numbered[0]))]


def _digest_of_number(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=8).digest()


def documents(
    part: TextPart,
    text_field: str,
    complaints: Complaints,
    rule: HeldOutRule = NOTHING_HELD_OUT,
    short: ShortDocuments | None = None,
) -> Iterator[TextSegment]:
    """Yield the documents of a part, in order, each as its training and held-out segments.

    A file that was deleted meanwhile is left out and counted; the remaining text of the part is still read.

    Args:
        short: counts the documents that are not divided.

    Raises:
        UsageFault: a file cannot be read.
        LocalFault: a library is missing.
    """
    short = ShortDocuments() if short is None else short
    for piece in part.pieces:
        path = Path(piece.path)
        if part.kind != "hf" and not path.exists() and path.parent.exists():
            complaints.counts["files that were deleted"] += 1
            continue
        with reading(path):
            if part.kind == "text" and piece.file_bytes > LONG_BYTES:
                yield from _long_text(piece, complaints, rule)
                continue
            texts: Iterator[str]
            if part.kind == "text":
                with open_regular(path) as file:
                    texts = iter([_decoded(file.read(LONG_BYTES), complaints)])
            else:
                rows = rows_of(part.kind, piece, text_field, complaints)
                texts = _texts(rows, text_field, piece.path, complaints)
            for text in texts:
                yield from _segments(text.removeprefix(BYTE_ORDER_MARK), rule, short)


def _segments(text: str, rule: HeldOutRule, short: ShortDocuments) -> Iterator[TextSegment]:
    """Yield the segments of a document in memory; none if it has no text."""
    if not text.strip():
        return
    content = text.encode()
    if len(content) > LONG_BYTES:
        edges = edges_of(len(content), rule.share)
    else:
        fraction = hash_fraction(content)
        short.add(fraction, len(content))
        edges = edges_of_short(fraction, len(content), rule)
    if edges in ([], [0, len(content)]):
        yield TextSegment(text, bool(edges), True)
        return
    segments = list(cut_document(content, edges))
    for number, (segment, is_held_out) in enumerate(segments, 1):
        yield TextSegment(segment.decode(), is_held_out, number == len(segments))


def rows_of(kind: str, piece: FileRange, field: str, complaints: Complaints) -> Iterator[Any]:
    """Yield the rows of a piece of JSON lines or Parquet; a Parquet row contains only this field.

    Raises:
        OSError, UsageFault: a file cannot be read.
        LocalFault: a library is missing.
    """
    return _json_rows(piece, complaints) if kind == "jsonl" else _parquet(piece, field, complaints)


def _texts(rows: Iterator[Any], text_field: str, where: str, complaints: Complaints) -> Iterator[str]:
    """Yield the text of each row that has one, and count the other rows."""
    for row in rows:
        text = row.get(text_field) if isinstance(row, dict) else None
        if isinstance(text, bytes):
            text = _decoded(text, complaints)
        if not isinstance(text, str):
            complaints.counts[ROWS_WITHOUT_TEXT] += 1
            complaints.lack = complaints.lack or _no_field(where, text_field, row)
        elif not text.strip():
            complaints.counts["empty rows"] += 1
        else:
            # Replace unpaired UTF-16 surrogates, which JSON can contain and tokenizers reject.
            yield text if text.isascii() else text.encode("utf-8", "replace").decode()


def _no_field(where: str, text_field: str, row: Any) -> str:
    has = ", ".join(map(str, list(row)[:12])) if isinstance(row, dict) else f"{type(row).__name__}s"
    if isinstance(row, dict) and text_field in row:
        has += f" ({text_field} is {'empty' if row[text_field] is None else type(row[text_field]).__name__})"
    return (
        f"{where} has no text in field {text_field!r}; its rows have {has[:300] or 'no fields'}; set the field with "
        "--field, or with data.text_field in a run"
    )


def _pieces(
    kind: str, path: Path, part_bytes: int, complaints: Complaints, lists: RowGroupLists
) -> Iterator[tuple[FileRange, int]]:
    """Yield (piece, bytes) for the pieces of a file; none if the file is not text."""
    path = path.absolute()  # processes that read the file have different working directories
    if kind == "parquet":
        for group, num_bytes in enumerate(lists.num_bytes(path)):
            yield FileRange(str(path), group, group + 1), num_bytes
        return
    with reading(path), open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        beginning = file.read(BINARY_BYTES)
    if beginning.startswith(COMPRESSED):
        complaints.counts["compressed files, which must be unpacked first"] += 1
        return
    if b"\0" in beginning:
        complaints.counts["binary files"] += 1
        return
    is_whole = num_bytes <= LONG_BYTES if kind == "text" else _is_array(beginning)
    step = max(1, num_bytes) if is_whole else part_bytes
    for start in range(0, num_bytes, step):
        stop = min(start + step, num_bytes)
        yield FileRange(str(path), start, stop, num_bytes), stop - start


def _is_array(beginning: bytes) -> bool:
    """Return whether a JSON file is one array of all rows."""
    return beginning.removeprefix(BYTE_ORDER_MARK.encode()).lstrip().startswith(b"[")


def _lines_from(file: BufferedReader, start: int) -> int:
    """Move to the first line that begins at `start` or later; return its position."""
    if start == 0:
        return 0
    file.seek(start - 1)
    position = start - 1
    while True:
        line = file.readline(CHUNK_BYTES)
        position += len(line)
        if not line or line.endswith(b"\n"):
            return position


def _long_text(piece: FileRange, complaints: Complaints, rule: HeldOutRule) -> Iterator[TextSegment]:
    """Yield chunks of about `CHUNK_BYTES` that end with a line or at least with a character, each on one side.

    The edges between the sides are those of the whole file, so they do not depend on its division into parts.
    """
    edges = edges_of(piece.file_bytes, rule.share)
    slack = slack_of(edges)
    with open_regular(piece.path) as file:
        position, is_line_end = _lines_from(file, piece.start), True
        while position < piece.stop or not is_line_end:
            index = bisect.bisect_right(edges, position)
            edge = edges[index] if index < len(edges) else piece.file_bytes
            left = min(edge, piece.stop if position < piece.stop else piece.file_bytes) - position
            content = file.read(min(CHUNK_BYTES, left))
            if position >= piece.stop:  # the rest of a long line; the next line is in the next part
                content = content[: content.find(b"\n") + 1] or content
                file.seek(position + len(content))
            next_bytes = file.read(CHUNK_BYTES) if content and not content.endswith(b"\n") else b""
            read_to = position + len(content)
            most = min(CHUNK_BYTES, edge + slack - read_to, piece.file_bytes - read_to)
            if read_to < piece.file_bytes:
                is_end = read_to + most == piece.file_bytes
                content += next_bytes[: bytes_to_edge(next_bytes[:most], next_bytes[:4], is_end)]
            if not content:
                return
            is_first, position = not position, position + len(content)
            file.seek(position)
            is_line_end = content.endswith(b"\n")
            text = _decoded(content, complaints)
            text = text.removeprefix(BYTE_ORDER_MARK) if is_first else text
            if text:
                yield TextSegment(text, index % 2 == 1, position >= piece.file_bytes)


def _json_rows(piece: FileRange, complaints: Complaints) -> Iterator[Any]:
    with open_regular(piece.path) as file:
        if piece.start == 0 and _is_array(file.peek(BINARY_BYTES)):
            rows = _array(file, piece)
            if rows is not None:
                yield from rows
                return
        position = _lines_from(file, piece.start)
        while position < piece.stop:
            line = file.readline(MAX_ROW_BYTES)
            is_first, position = not position, position + len(line)
            if not line:
                return
            if not line.endswith(b"\n") and len(line) == MAX_ROW_BYTES:
                complaints.counts[TOO_LONG] += 1
                while line and not line.endswith(b"\n"):
                    line = file.readline(CHUNK_BYTES)
                    position += len(line)
                continue
            text = _decoded(line, complaints)
            text = text.removeprefix(BYTE_ORDER_MARK) if is_first else text
            if not text.strip():
                continue
            try:
                yield json.loads(text)
            except (ValueError, RecursionError):
                complaints.counts["lines that are not JSON"] += 1


def _array(file: BufferedReader, piece: FileRange) -> list[Any] | None:
    """Return the rows of a file that is one JSON array; None if it is not one, so that its lines may be rows."""
    if piece.file_bytes > MAX_ROW_BYTES:
        raise UsageFault(
            f"{piece.path} is one JSON array of {bytes_text(piece.file_bytes)}; expected at most "
            f"{bytes_text(MAX_ROW_BYTES)}, or a file with a row on each line; run: jq -c '.[]' FILE > FILE.jsonl"
        )
    content = file.read(MAX_ROW_BYTES)
    file.seek(0)
    try:
        rows = json.loads(content.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return rows if isinstance(rows, list) else None


def _parquet(piece: FileRange, field: str, complaints: Complaints) -> Iterator[Any]:
    path, groups = Path(piece.path), range(piece.start, piece.stop)
    names, num_rows = parquet_columns(path, groups)
    if field not in names:
        complaints.counts[ROWS_WITHOUT_TEXT] += num_rows
        complaints.lack = complaints.lack or _no_field(piece.path, field, dict.fromkeys(names))
        return

    def leave_out() -> None:
        complaints.counts[TOO_LONG] += 1

    decoded = partial(_decoded, complaints=complaints)
    yield from parquet_rows(path, groups, field, MAX_ROW_BYTES, decoded, leave_out)


def _decoded(content: bytes, complaints: Complaints) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        complaints.counts["texts with bytes that are not UTF-8, which were replaced"] += 1
        return content.decode(errors="replace")
