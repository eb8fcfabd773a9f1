"""Lists row groups and columns of Parquet files in a child process with limits, because these lists are untrusted.

The child reads a local file, or the footer of a file on the hub. Its answers are checked here. The child calls
`prepare` (through `peer.limited_child.process`).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.quantities import plural
from peer.limited_child.limited_child import ChildLimits, LimitedChild
from peer.optional_libraries import needing
from peer.trainer.text.parquet_rows import is_part_of, open_parquet

MAX_ROW_GROUPS = 1 << 16
"""Row groups of a file; each has a few megabytes of text, and larger data has several files."""
MAX_COLUMN_RANGES = 1 << 16
"""Column ranges of a part; each is a request to the hub."""
PARQUET_MARK = b"PAR1"
LIMITS = ChildLimits(memory_bytes=1 << 30, seconds=60.0)
"""A list of 60,000 row groups takes 60 MB and 1 to 2 seconds, a list of a million columns 750 MB and 3 seconds."""


class RowGroupLists:
    """A child process for any number of files, started for the first file. The caller must `close` it."""

    def __init__(self) -> None:
        self._child: LimitedChild | None = None

    def num_bytes(self, path: Path) -> list[int]:
        """Return the uncompressed bytes of each row group, according to the file.

        Raises:
            UsageFault: the file is not a Parquet file, or has too many row groups.
            LocalFault: a library is missing, or the file exceeded `LIMITS`.
        """
        sizes = self._answer(str(path), {"path": str(path.absolute())}).get("sizes")
        if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
            raise _no_answer(str(path))
        return [max(0, size) for size in sizes]

    def num_groups(self, footer: bytes, where: str) -> int:
        """Return the number of row groups of a file, from its footer.

        Args:
            footer: the footer with the length and the mark after it.
            where: name of the file, for error messages.

        Raises:
            UsageFault: there are too many row groups, or a library is missing.
            LocalFault: the bytes are not a footer, or exceeded `LIMITS`.
        """
        num_groups = self._answer(where, {"where": where}, footer).get("num_groups")
        if type(num_groups) is not int or not 0 <= num_groups <= MAX_ROW_GROUPS:
            raise _no_answer(where)
        return num_groups

    def columns(self, footer: bytes, where: str, groups: range, field: str, file_bytes: int) -> list[tuple[int, int]]:
        """Return the byte ranges of columns of row groups, in order; they do not overlap, and are between the mark and
        the footer.

        Args:
            field: the field of the rows whose columns are listed.
            file_bytes: length of the whole file.

        Raises:
            UsageFault, LocalFault: see `num_groups`; also if a column is outside this range.
        """
        question = {"where": where, "groups": [groups.start, groups.stop], "field": field}
        ranges = self._answer(where, question, footer).get("ranges")
        if not isinstance(ranges, list) or len(ranges) > MAX_COLUMN_RANGES:
            raise _no_answer(where)
        return checked_ranges(ranges, where, file_bytes - len(footer))

    def _answer(self, where: str, question: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
        if self._child is None:
            self._child = LimitedChild(__name__, {}, LIMITS, "Parquet files", "leave out that file")
        try:
            return self._child.ask(question, body)[0]
        except UsageFault:
            raise
        except LocalFault as fault:
            raise LocalFault(f"{where}: {fault}") from fault

    def close(self) -> None:
        if self._child is not None:
            self._child.close()


def checked_ranges(ranges: Sequence[Any], where: str, footer_start: int) -> list[tuple[int, int]]:
    """Return pairs of (start, stop) in order, without empty ones.

    Raises:
        LocalFault: pairs overlap, or are not between the mark of the file and `footer_start`.
    """
    found = []
    for pair in ranges:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(place) is int for place in pair):
            raise _no_answer(where)
        start, stop = pair
        if start == stop:
            continue
        if not len(PARQUET_MARK) <= start < stop <= footer_start:
            raise LocalFault(
                f"{where} has a column at bytes {start} to {stop}; expected columns inside its bytes "
                f"{len(PARQUET_MARK)} to {footer_start}; leave out that file"
            )
        found.append((start, stop))
    found.sort()
    for (_, end), (start, _) in pairwise(found):
        if start < end:
            raise LocalFault(
                f"{where} has two columns that share its bytes {start} to {end}; expected separate columns; leave out "
                "that file"
            )
    return found


def _no_answer(where: str) -> LocalFault:
    return LocalFault(
        f"{where}: the process that reads Parquet files returned no list; expected a list of row groups; try again"
    )


def prepare(setup: dict[str, Any]) -> Any:
    """Answer the questions of `RowGroupLists`."""

    def answer(question: dict[str, Any], body: bytes) -> dict[str, Any]:
        where = question.get("where") or question["path"]
        metadata = _metadata(body, where) if body else open_parquet(Path(where)).metadata
        if metadata.num_row_groups > MAX_ROW_GROUPS:
            raise UsageFault(
                f"{where} has {plural(metadata.num_row_groups, 'row group')}; expected at most {MAX_ROW_GROUPS}; write "
                "the file with larger row groups, or as several files"
            )
        if "field" in question:
            return {"ranges": _column_ranges(metadata, range(*question["groups"]), question["field"], where)}
        if body:
            return {"num_groups": metadata.num_row_groups}
        return {"sizes": [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]}

    return answer


def _metadata(footer: bytes, where: str) -> Any:
    with needing(f"reading {where}", "pyarrow", "hf"):
        import pyarrow
        import pyarrow.parquet
    try:
        return pyarrow.parquet.read_metadata(io.BytesIO(PARQUET_MARK + footer))
    except (pyarrow.ArrowException, OSError) as error:
        if "bad_alloc" in str(error):
            raise MemoryError from error
        raise LocalFault(f"its footer cannot be read ({str(error)[:200]}); expected a complete Parquet file") from error


def _column_ranges(metadata: Any, groups: range, field: str, where: str) -> list[tuple[int, int]]:
    """Return (start, stop) of each column of these row groups, according to the footer."""
    schema = metadata.schema
    columns = [number for number in range(len(schema)) if is_part_of(schema.column(number).path, field)]
    num_ranges = len(columns) * len(groups)
    if num_ranges > MAX_COLUMN_RANGES:
        raise UsageFault(
            f"{where} has {plural(num_ranges, 'range')} of columns in a part; expected at most {MAX_COLUMN_RANGES}; "
            "write the file with larger row groups, or with fewer columns"
        )
    ranges = []
    for group in groups:
        rows = metadata.row_group(group)
        for number in columns:
            column = rows.column(number)
            start = column.data_page_offset
            if column.dictionary_page_offset:
                start = min(start, column.dictionary_page_offset)
            ranges.append((start, start + column.total_compressed_size))
    return ranges
