"""Footers of Parquet files whose numbers are made up, as no library writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_BYTE_ARRAY, _REQUIRED = 6, 0

Field = tuple[int, int, bytes]
"""Number, type and content of a field of a struct in Thrift's compact protocol."""


@dataclass(frozen=True, slots=True)
class Column:
    """Where a column of a row group lies, as the footer says."""

    start: int
    num_bytes: int
    dictionary_start: int | None = None


def footer(
    groups: Sequence[Sequence[Column]], names: Sequence[str] = ("text",), num_rows: int = 1, repeat: int = 1
) -> bytes:
    """A footer of these row groups, `repeat` times over, with columns of text."""
    root = _struct([(4, _BINARY, _text("root")), (5, _I32, _number(len(names)))])
    leaves = [
        _struct([(1, _I32, _number(_BYTE_ARRAY)), (3, _I32, _number(_REQUIRED)), (4, _BINARY, _text(name))])
        for name in names
    ]
    rows = [_row_group(columns, names, num_rows) for columns in groups] * repeat
    return _struct(
        [
            (1, _I32, _number(2)),
            (2, _LIST, _list(_STRUCT, [root, *leaves])),
            (3, _I64, _number(num_rows)),
            (4, _LIST, _list(_STRUCT, rows)),
        ]
    )


def write_with_footer(path: Path, content: bytes, body: bytes = bytes(1000)) -> None:
    """A file that ends with this footer."""
    path.write_bytes(b"PAR1" + body + content + len(content).to_bytes(4, "little") + b"PAR1")


def _row_group(columns: Sequence[Column], names: Sequence[str], num_rows: int) -> bytes:
    chunks = [_chunk(column, name, num_rows) for column, name in zip(columns, names, strict=True)]
    return _struct([(1, _LIST, _list(_STRUCT, chunks)), (2, _I64, _number(100)), (3, _I64, _number(num_rows))])


def _chunk(column: Column, name: str, num_rows: int) -> bytes:
    fields = [
        (1, _I32, _number(_BYTE_ARRAY)),
        (2, _LIST, _list(_I32, [_number(0)])),
        (3, _LIST, _list(_BINARY, [_text(name)])),
        (4, _I32, _number(0)),
        (5, _I64, _number(num_rows)),
        (6, _I64, _number(column.num_bytes)),
        (7, _I64, _number(column.num_bytes)),
        (9, _I64, _number(column.start)),
    ]
    if column.dictionary_start is not None:
        fields.append((11, _I64, _number(column.dictionary_start)))
    return _struct([(2, _I64, _number(0)), (3, _STRUCT, _struct(fields))])


def _varint(value: int) -> bytes:
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])


def _number(value: int) -> bytes:
    return _varint(2 * value if value >= 0 else -2 * value - 1)


def _text(value: str) -> bytes:
    return _varint(len(value.encode())) + value.encode()


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + _varint(len(items))
    return head + b"".join(items)


def _struct(fields: Sequence[Field]) -> bytes:
    content, last = b"", 0
    for number, kind, value in fields:
        content += bytes([(number - last) << 4 | kind]) + value
        last = number
    return content + b"\0"
