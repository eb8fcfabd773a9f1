"""Parts of a data set of the Hugging Face hub, each copied to a local file when it is read.

The list of files determines which ones are read (`hub_layout`). Their bytes are fetched unchanged, without a library
that guesses the meaning of a name. From a Parquet file only a part's columns and row groups are fetched, from JSON
lines only a range of bytes. The copy has holes instead of the rest.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import itertools
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dht.ground.errors import LocalFault, UsageFault, writing
from dht.ground.quantities import bytes_text
from peer.optional_libraries import needing
from peer.sources.hub_files import HubRepository, hub_repository, is_offline, unavailable
from peer.trainer.text.documents import MAX_ROW_BYTES, FileRange, TextPart
from peer.trainer.text.hub_layout import SplitFiles, files_of_split
from peer.trainer.text.parquet_groups import PARQUET_MARK, RowGroupLists
from peer.trainer.text.source_files import check_room

_FORM: Final = re.compile(r"hf:(?P<path>[^@]+)@(?P<revision>[^/:]+)(?:/(?P<folder>[^:]+))?(?::(?P<split>.+))?")

WHOLE_FILE_PARTS: Final = 8
"""Maximum number of parts of a file of JSON lines; a compressed file is read from its beginning for each part."""
MAX_FOOTER_BYTES: Final = 64 << 20
"""Size limit of a Parquet file's footer; a file of 2 GB with 700 row groups has a footer of 1 MB."""

_TAIL_BYTES: Final = 1 << 16
"""Bytes first read from the end of a Parquet file; most footers fit."""
_ROOM_BYTES: Final = 64 << 20
"""Bytes decompressed between checks of the free disk space."""
_BLOCK_BYTES: Final = 1 << 16
"""Bytes read at once to find the end of a line."""


def hub_parts(source: str, max_parts: int, *, is_own: bool) -> list[tuple[int, int]]:
    """List (number of the part, number of all parts) for each part of the split, in order; the same for all peers.

    A part consists of whole files, or is within one file.

    Args:
        is_own: see `hub_repository`.

    Raises:
        UsageFault: there is no such data set, or none of its files can be read.
        LocalFault: a library is missing, or the hub cannot be reached.
    """
    repository, split = _opened(source, is_own=is_own)
    num_files = len(split.paths)
    # A text file is one document, which is divided as a whole.
    parts_of_file = 1 if split.form == "text" else WHOLE_FILE_PARTS
    if split.form == "parquet":
        path = split.paths[0]
        with contextlib.closing(RowGroupLists()) as lists:
            parts_of_file = max(1, lists.num_groups(_footer(repository, path), f"{repository.where}: {path}"))
    num_parts = min(num_files * max(1, min(parts_of_file, max_parts // num_files)), max_parts)
    return [(number, num_parts) for number in range(num_parts)]


@contextlib.contextmanager
def hub_copy(source: str, number: int, num_parts: int, field: str, folder: Path, *, is_own: bool) -> Iterator[TextPart]:
    """Copy a part to local files in `folder`, yield it, and remove the files afterwards.

    Args:
        field: the field of the rows that is read.
        is_own: see `hub_repository`.

    Raises:
        UsageFault, LocalFault: see `hub_parts`; also if the data set has changed, or there is no room.
    """
    opened = _opened(source, is_own=is_own)
    _, split = opened
    num_files = len(split.paths)
    if num_parts > num_files and num_parts % num_files:
        raise LocalFault(
            f"{source} now has {num_files} files; expected a number that divides {num_parts}, as when it was opened; "
            "restart to read the current files"
        )
    parts_of_file = max(1, num_parts // num_files)
    first, part = divmod(number, parts_of_file)
    files = split.paths[first : first + 1]
    if num_parts < num_files:
        files = split.paths[number * num_files // num_parts : (number + 1) * num_files // num_parts]
    try:
        with writing(folder), contextlib.closing(RowGroupLists()) as lists:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # the data set may be private
            pieces = [
                piece
                for count, path in enumerate(files)
                for piece in _copied(opened, path, (part, parts_of_file), field, folder / _name(count, path), lists)
            ]
        yield TextPart(split.form, tuple(pieces))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _name(count: int, path: str) -> str:
    """Return a plain name for the copy that contains the file's name on the hub, for error messages."""
    return f"{count}-{re.sub('[^A-Za-z0-9._-]', '_', path.rpartition('/')[2])[-80:]}"


Opened = tuple[HubRepository, SplitFiles]


def _opened(source: str, *, is_own: bool) -> Opened:
    from huggingface_hub import constants

    return _opened_at(source, is_own, constants.ENDPOINT, is_offline())


@functools.lru_cache(maxsize=4)
def _opened_at(source: str, is_own: bool, endpoint: str, offline: bool) -> Opened:
    """Open a data set; cached, so that all parts are of one commit."""
    match = _FORM.fullmatch(source)
    if match is None:
        raise UsageFault(
            f"{source} is not a data set; expected hf:ORG/NAME@REVISION, with /FOLDER and :SPLIT where needed"
        )
    repository = hub_repository("dataset", match["path"], match["revision"], source, is_own=is_own)
    try:
        return repository, files_of_split(repository.paths, match["folder"] or "", match["split"] or "train")
    except UsageFault as fault:
        raise UsageFault(f"{source} cannot be read: {fault}") from fault


def _copied(
    opened: Opened, path: str, which: tuple[int, int], field: str, copy: Path, lists: RowGroupLists
) -> Iterator[FileRange]:
    """Copy the piece of a file that belongs to a part to `copy`, and yield it."""
    (repository, split), (part, num_parts) = opened, which
    if split.form == "parquet":
        where, footer, size = f"{repository.where}: {path}", _footer(repository, path, copy), copy.stat().st_size
        num_groups = lists.num_groups(footer, where)
        start, stop = (num_groups * number // num_parts for number in (part, part + 1))
        ranges = lists.columns(footer, where, range(start, stop), field, size)
        with copy.open("r+b") as file:
            check_room(copy.parent, sum(last - first for first, last in ranges), "a part of the data")
            for first, last in ranges:
                _fill(repository, path, file, first, last)
        yield FileRange(str(copy), start, stop)
        return
    if split.packing:
        with _unpacked(repository, path, split.packing) as stream, copy.open("wb") as file:
            num_unchecked = _ROOM_BYTES
            for line in itertools.islice(_lines(stream), part, None, num_parts):
                num_unchecked += len(line)
                if num_unchecked > _ROOM_BYTES:
                    check_room(copy.parent, num_unchecked, "a part of the data")
                    num_unchecked = 0
                file.write(line)
            stop = file.tell()
        yield FileRange(str(copy), 0, stop, stop)
        return
    size = repository.size(path)
    start, stop = size * part // num_parts, size * (part + 1) // num_parts
    with copy.open("w+b") as file:
        file.truncate(size)
        # The preceding byte shows whether a line begins at `start`.
        _fill(repository, path, file, max(0, start - 1), stop)
        if start < stop:
            _fill_line(repository, path, file, stop, min(size, stop + MAX_ROW_BYTES))
        file.seek(0)
        if split.form == "jsonl" and part == 0 and file.read(1) == b"[":
            raise UsageFault(
                f"{repository.where}: {path} is one JSON array; expected one row per line; convert it to JSON lines "
                "or Parquet"
            )
    if start < stop:
        yield FileRange(str(copy), start, stop, size)


def _fill(repository: HubRepository, path: str, file: Any, start: int, stop: int) -> None:
    """Write a range of a file to the same place in the copy."""
    check_room(Path(file.name).parent, stop - start, "a part of the data")
    file.seek(start)
    for chunk in repository.chunks(path, start, stop):
        file.write(chunk)
    if file.tell() < stop:
        raise unavailable(f"{repository.where}: {path}", f"{bytes_text(stop - file.tell())} are missing")
    file.flush()


def _fill_line(repository: HubRepository, path: str, file: Any, stop: int, limit: int) -> None:
    """Write the bytes after `stop`, until a line ends."""
    file.seek(stop - 1)
    block = file.read(1)
    while b"\n" not in block and stop < limit:
        end = min(stop + _BLOCK_BYTES, limit)
        _fill(repository, path, file, stop, end)
        file.seek(stop)
        block, stop = file.read(end - stop), end


def _footer(repository: HubRepository, path: str, copy: Path | None = None) -> bytes:
    """Return the end of a Parquet file from its footer; write the file's beginning and end to `copy`, with its size."""
    where, size = f"{repository.where}: {path}", repository.size(path)
    tail = repository.read(path, max(0, size - _TAIL_BYTES), size)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] != PARQUET_MARK or length > min(size, MAX_FOOTER_BYTES):
        raise unavailable(where, "the file is not a complete Parquet file")
    if length > len(tail):
        tail = repository.read(path, size - length, size - len(tail)) + tail
    if copy is not None:
        with copy.open("wb") as file:
            file.truncate(size)
            file.write(PARQUET_MARK)
            file.seek(size - len(tail))
            file.write(tail)
    return tail[-length:]


@contextlib.contextmanager
def _unpacked(repository: HubRepository, path: str, packing: str) -> Iterator[Any]:
    raw = io.BufferedReader(_Stream(repository.chunks(path)))
    try:
        if packing == ".gz":
            yield gzip.GzipFile(fileobj=raw)
        else:
            with needing(f"reading {repository.where}", "pyarrow", "hf"):
                import pyarrow
            yield io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd"))
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk
        raise unavailable(f"{repository.where}: {path}", str(error)) from error


class _Stream(io.RawIOBase):
    """A stream over chunks of bytes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _lines(stream: Any) -> Iterator[bytes]:
    """Yield the lines of a stream; leave out lines that are too long."""
    while line := stream.readline(MAX_ROW_BYTES):
        if line.endswith(b"\n") or len(line) < MAX_ROW_BYTES:
            yield line if line.endswith(b"\n") else line + b"\n"
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_ROW_BYTES)
