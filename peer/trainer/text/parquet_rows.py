"""Reads rows of Parquet files through `pyarrow`, a bounded number of bytes at a time.

Lengths in a Parquet file are untrusted, so a process that reads such a file needs limits of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dht.ground.errors import UsageFault, reading
from dht.ground.quantities import plural
from dht.ground.regular_files import open_regular
from peer.optional_libraries import needing

BATCH_BYTES = 1 << 20
"""Bytes of values decoded together, according to the lengths in the file."""
MAX_BATCH_ROWS = 256


def open_parquet(path: Path) -> Any:
    """Open a `pyarrow.parquet.ParquetFile` whose text columns stay dictionaries if they are stored as dictionaries.

    Raises:
        UsageFault: the file is not a Parquet file.
    """
    with needing("reading Parquet files", "pyarrow", "hf"):
        import pyarrow
        import pyarrow.parquet
    try:
        with reading(path):
            open_regular(path).close()  # fails for a pipe, which would block
            file = pyarrow.parquet.ParquetFile(path)
            is_text = (pyarrow.types.is_string, pyarrow.types.is_binary)
            texts = [field.name for field in file.schema_arrow if any(check(field.type) for check in is_text)]
            return pyarrow.parquet.ParquetFile(path, metadata=file.metadata, read_dictionary=texts)
    except pyarrow.ArrowException as error:
        raise UsageFault(f"{path} is not a Parquet file ({str(error)[:200]}); expected a complete file") from error


def parquet_columns(path: Path, groups: range) -> tuple[list[str], int]:
    """Return (names of all columns, rows in these row groups according to the file).

    Raises:
        UsageFault: the file is not a Parquet file, or has changed.
    """
    file = _with_groups(path, groups)
    names: list[str] = file.schema_arrow.names
    return names, sum(max(0, file.metadata.row_group(group).num_rows) for group in groups)


def _with_groups(path: Path, groups: range) -> Any:
    file = open_parquet(path)
    num_groups = file.metadata.num_row_groups
    if num_groups < groups.stop:
        raise UsageFault(
            f"{path} now has {plural(num_groups, 'row group')}; expected at least {groups.stop}, as when it was "
            "opened; restart to read the current file"
        )
    return file


def parquet_rows(
    path: Path,
    groups: range,
    field: str,
    max_value_bytes: int,
    decoded: Callable[[bytes], str],
    leave_out: Callable[[], None],
) -> Iterator[dict[str, Any]]:
    """Yield the rows of row groups, with only this field.

    Args:
        max_value_bytes: size limit of one text; a row with a longer text is left out.
        decoded: converts bytes that should be UTF-8 to text.
        leave_out: called for each omitted row.

    Raises:
        UsageFault: the file cannot be read, or has changed.
    """
    file = _with_groups(path, groups)
    import pyarrow

    try:
        for group in groups:
            num_rows = _batch_rows(file.metadata.row_group(group), field)
            for batch in file.iter_batches(batch_size=num_rows, row_groups=[group], columns=[field]):
                value = _values_of(batch.column(batch.schema.names.index(field)), max_value_bytes, decoded)
                for number in range(batch.num_rows):
                    try:
                        yield {field: value(number)}
                    except OverflowError:
                        leave_out()
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageFault(f"{path} cannot be read ({str(error)[:200]}); expected a complete Parquet file") from error


def is_part_of(path: str, field: str) -> bool:
    """Return whether a column belongs to a field of a row, by its path; the field's own name may contain dots."""
    return path == field or path.startswith(f"{field}.")


def _batch_rows(group: Any, field: str) -> int:
    """Return the number of rows in `BATCH_BYTES`, by the mean length of a row."""
    columns = (group.column(number) for number in range(group.num_columns))
    sizes = (column.total_uncompressed_size for column in columns if is_part_of(column.path_in_schema, field))
    num_bytes = max(1, sum(max(0, size) for size in sizes))
    mean_bytes: int = num_bytes // max(1, group.num_rows)
    return max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // max(1, mean_bytes)))


def _values_of(column: Any, max_bytes: int, decoded: Callable[[bytes], str]) -> Callable[[int], Any]:
    """Return a function that returns the value of a row, and raises OverflowError if the value is too long."""
    import pyarrow

    types = pyarrow.types
    if types.is_dictionary(column.type):
        values, indices = _values_of(column.dictionary, max_bytes, decoded), column.indices
        return partial(_through_dictionary, values, indices, {})
    is_text = types.is_string(column.type) or types.is_large_string(column.type)
    if not is_text and not types.is_binary(column.type) and not types.is_large_binary(column.type):
        return lambda number: column[number].as_py()

    def value(number: int) -> Any:
        content = column[number].as_buffer()
        if content is None:
            return None
        if content.size > max_bytes:
            raise OverflowError
        return decoded(content.to_pybytes()) if is_text else content.to_pybytes()

    return value


def _through_dictionary(values: Callable[[int], Any], indices: Any, known: dict[int, Any], number: int) -> Any:
    index = indices[number].as_py()
    if index is not None and index not in known:
        known[index] = values(index)
    return None if index is None else known[index]
