"""Parquet files that stand for more memory than they have bytes, and shapes that are not text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from dht.ground.errors import LocalFault, UsageFault
from peer.limited_child.limited_child import ChildLimits
from peer.trainer.data import tokenize_pool
from peer.trainer.prepare import prepare_data
from peer.trainer.text import documents as documents_module
from peer.trainer.text import limited_texts as limited_module
from peer.trainer.text import parquet_groups
from peer.trainer.text.documents import Complaints, FileRange, TextPart, documents, files_of, parts_of
from peer.trainer.text.limited_texts import limited_texts
from tests.kit.trainer.parquet_footer import Column, footer, write_with_footer
from tests.kit.trainer.prepared_data import small_tokenizer


def written(path: Path, values: Any, **options: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"text": values}), path, compression="zstd", **options)
    return path


def texts_of(path: Path, complaints: Complaints | None = None) -> list[str]:
    complaints = complaints or Complaints()
    parts = parts_of(files_of([str(path)]), 1 << 20)
    return [found.text for part in parts for found in documents(part, "text", complaints)]


def test_one_huge_dictionary_entry_of_many_rows_is_decoded_once(tmp_path: Path) -> None:
    """256 rows of it at once took all memory."""
    huge = "x" * (4 << 20)
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 150, pyarrow.int32()), pyarrow.array([huge]))
    path = written(tmp_path / "bomb.parquet", values)
    assert path.stat().st_size < 5000
    usual = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(usual)
    pyarrow.set_memory_pool(pool)
    try:
        assert [len(text) for text in texts_of(path)] == [len(huge)] * 150
    finally:
        pyarrow.set_memory_pool(usual)
    assert pool.max_memory() < 8 * len(huge)


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_values_that_are_too_long_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dictionary: bool
) -> None:
    monkeypatch.setattr(documents_module, "MAX_ROW_BYTES", 1000)
    path = written(tmp_path / "rows.parquet", ["a", "b" * 1001, "c", "é" * 501, "d"], use_dictionary=is_dictionary)
    complaints = Complaints()
    assert texts_of(path, complaints) == ["a", "c", "d"]
    assert list(complaints.counts.values()) == [2]


@pytest.mark.parametrize(
    "values",
    [
        pyarrow.array([["a", "b"], None, ["c"]]),
        pyarrow.array([{"body": "a"}, {"body": "b"}, None]),
        pyarrow.array([1, 2, 3]),
        pyarrow.nulls(3, pyarrow.string()),
    ],
    ids=["lists", "structs", "numbers", "nothing"],
)
def test_columns_of_other_kinds_are_rows_without_text(tmp_path: Path, values: Any) -> None:
    complaints = Complaints()
    assert texts_of(written(tmp_path / "rows.parquet", values), complaints) == []
    assert complaints.counts == {"rows without the field": 3}
    assert "no text in field 'text'" in complaints.lack


@pytest.mark.parametrize("length", [0, 4, 50, -1])
def test_a_file_that_is_cut_off_is_one_sentence(tmp_path: Path, length: int) -> None:
    path = written(tmp_path / "rows.parquet", [f"text {number}" for number in range(1000)])
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(UsageFault, match=r"rows\.parquet is not a Parquet file"):
        texts_of(path)


def test_a_file_that_takes_too_much_memory_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "bomb.parquet", ["x" * (50 << 20)], use_dictionary=False)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(limited_module, "LIMITS", ChildLimits(memory_bytes=40 << 20, seconds=60.0))
    (part,) = parts_of(files_of([str(path)]), 1 << 20)
    with pytest.raises(LocalFault, match=r"bomb\.parquet"):
        list(limited_texts(part, "text", Complaints()))


def test_a_page_that_takes_too_much_memory_ends_the_worker_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without limits its row would be left out, as one of more than 64 MiB."""
    pytest.importorskip("tokenizers")
    path = written(tmp_path / "bomb.parquet", ["x" * (80 << 20)], use_dictionary=False)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(tokenize_pool, "LIMITS", ChildLimits(memory_bytes=75 << 20, seconds=60.0))
    tokenizer = small_tokenizer(tmp_path).path
    with pytest.raises(LocalFault, match=r"took more than 78.6 MB|bomb\.parquet cannot be read \(malloc of size"):
        prepare_data([str(path)], tokenizer, tmp_path / "out", num_processes=1, say=lambda text: None)


@pytest.mark.parametrize("num_rows", [3, 2**31, 2**60, 2**63 - 1])
def test_rows_end_with_the_column_whatever_their_number_is_said_to_be(tmp_path: Path, num_rows: int) -> None:
    values = pyarrow.table([["a", "b", "c"]], schema=pyarrow.schema([pyarrow.field("text", "string", nullable=False)]))
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(values, path, compression="none", use_dictionary=False)
    length = pyarrow.parquet.read_metadata(path).row_group(0).column(0).total_compressed_size
    body = path.read_bytes()[4 : 4 + length]
    write_with_footer(path, footer([[Column(4, length)]], num_rows=num_rows), body)
    rows = documents(TextPart("parquet", (FileRange(str(path), 0, 1),)), "text", Complaints())
    assert [found.text for found in rows] == ["a", "b", "c"]


def test_texts_of_a_limited_child_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text {number} \U0001f426" for number in range(500)]
    path = written(tmp_path / "rows.parquet", [*texts, None])
    (part,) = parts_of(files_of([str(path)]), 1 << 20)
    complaints = Complaints()
    assert list(limited_texts(part, "text", complaints)) == texts
    assert complaints.counts == {"rows without the field": 1}


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"counts": {}, "lack": ""}, b"{}"),
        ({"counts": {}, "lack": ""}, b"[1]"),
        ({"counts": {}, "lack": ""}, b"\xff"),
        ({"counts": {}, "lack": ""}, b"[" * 100_000),
        ({"counts": 3, "lack": ""}, b"[]"),
        ({"counts": {"rows": "many"}, "lack": ""}, b"[]"),
        ({"counts": {}, "lack": 1}, b"[]"),
        ({"counts": {}}, b"[]"),
    ],
)
def test_an_answer_without_texts_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], body: bytes
) -> None:
    class Taken:
        """A child that a library has been taken over in."""

        def __init__(self, *_: object) -> None:
            pass

        def ask(self, question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
            return fields, body

        def close(self) -> None:
            pass

    monkeypatch.setattr(limited_module, "LimitedChild", Taken)
    part = TextPart("parquet", (FileRange(str(tmp_path / "rows.parquet"), 0, 1),))
    with pytest.raises(LocalFault, match=r"rows\.parquet returned no texts; expected texts"):
        list(limited_texts(part, "text", Complaints()))


def test_a_line_of_json_takes_no_memory_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of empty lists takes twenty times its length."""
    monkeypatch.setattr(limited_module, "LIMITS", ChildLimits(memory_bytes=100 << 20, seconds=30))
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a", "other": [' + "[]," * (4 << 20) + "0]}\n")
    (part,) = parts_of(files_of([str(path)]), 1 << 30)
    with pytest.raises(LocalFault, match=r"rows\.jsonl took more than 105 MB of memory"):
        list(limited_texts(part, "text", Complaints()))


def test_the_column_of_a_field_with_dots_is_fetched_and_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = {"a": ["other"] * 3, "meta.text": ["one", "two", "three"]}
    pyarrow.parquet.write_table(pyarrow.table(rows), path)
    whole = path.read_bytes()
    last = whole[-int.from_bytes(whole[-8:-4], "little") - 8 :]
    question = {"where": "x", "groups": [0, 1], "field": "meta.text"}
    ((start, stop),) = parquet_groups.prepare({})(question, last)["ranges"]
    path.write_bytes(b"PAR1" + bytes(start - 4) + whole[start:stop] + bytes(len(whole) - len(last) - stop) + last)
    (part,) = parts_of(files_of([str(path)]), 1 << 20)
    assert [found.text for found in documents(part, "meta.text", Complaints())] == ["one", "two", "three"]
