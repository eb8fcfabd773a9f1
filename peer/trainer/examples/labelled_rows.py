"""Rows with a label, each as text or picture and the number of its class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dht.ground.errors import reading
from peer.trainer.examples.label_rules import ExampleRules
from peer.trainer.text.documents import Complaints, TextPart, rows_of, usable


def labelled_rows(part: TextPart, rules: ExampleRules, complaints: Complaints) -> Iterator[tuple[Any, int]]:
    """(value of the field, number of the class) of the rows of a part that have both, in order.

    Raises:
        UsageFault: a file cannot be read.
        LocalFault: a library is missing.
    """

    def rows() -> Iterator[tuple[str, Any]]:
        for piece in part.pieces:
            with reading(Path(piece.path)):
                for row in rows_of(part.kind, piece, (rules.field, rules.label_field), complaints):
                    yield piece.path, row

    def example_in(found: tuple[str, Any]) -> tuple[Any, int] | None:
        _, row = found
        number = rules.number_of(row.get(rules.label_field)) if isinstance(row, dict) else None
        value = row.get(rules.field) if isinstance(row, dict) else None
        return None if number is None or value is None else (value, number)

    lack = "rows without the field, or without a label of the run"
    return usable(rows(), example_in, complaints, lack, lambda found: _no_label(*found, rules))


def _no_label(where: str, row: Any, rules: ExampleRules) -> str:
    has = ", ".join(map(str, list(row)[:12])) if isinstance(row, dict) else f"{type(row).__name__}s"
    label = repr(row.get(rules.label_field))[:60] if isinstance(row, dict) else "none"
    names = ", ".join(rules.labels[:8]) + (", ..." if len(rules.labels) > 8 else "")
    return (
        f"{where} has rows with the fields {has[:200] or 'none'} and the label {label}; expected {rules.field!r} and "
        f"{rules.label_field!r}, with a label of 0 to {len(rules.labels) - 1} or one of {names[:200]}; check the "
        "fields that the run names, or --field and --label"
    )
