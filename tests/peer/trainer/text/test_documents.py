"""Documents of text, JSON lines and Parquet: parts that lose and repeat nothing, and rows that are not what they
should be."""

from __future__ import annotations

import codecs
import gzip
import json
import os

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import UsageFault
from peer.trainer.text import documents as module
from peer.trainer.text.documents import Complaints, documents, files_of, parts_of
from tests.kit.trainer.prepared_data import json_lines, sentences


def read(source: str, part_bytes: int = 1 << 20, field: str = "text") -> tuple[list[str], Complaints]:
    complaints = Complaints()
    parts = parts_of(files_of([source], complaints), part_bytes, complaints)
    return [found.text for part in parts for found in documents(part, field, complaints)], complaints


@given(
    lines=st.lists(st.text(alphabet="ab \u00e9\U0001f426", max_size=40), min_size=1, max_size=30),
    part_bytes=st.integers(1, 200),
)
def test_parts_of_a_text_lose_and_repeat_nothing(tmp_path_factory, lines, part_bytes):
    path = tmp_path_factory.getbasetemp() / "one.txt"
    text = "\n".join(lines)
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG_BYTES", 0)
        found, _ = read(f"text:{path}", part_bytes) if text else ([], None)
    kept = [line for line in "".join(found).split("\n") if line.strip()]
    assert kept == [line for line in text.split("\n") if line.strip()]


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=30), part_bytes=st.integers(1, 300))
def test_parts_of_json_lines_lose_and_repeat_nothing(tmp_path_factory, sizes, part_bytes):
    texts = [f"{index} " + "x" * size for index, size in enumerate(sizes)]
    path = json_lines(tmp_path_factory.getbasetemp() / "one.jsonl", texts)
    assert read(str(path), part_bytes)[0] == texts


def test_only_the_last_chunk_of_a_file_ends_a_document(tmp_path):
    (tmp_path / "long.txt").write_text("a line of text\n" * 20_000)
    (tmp_path / "short.txt").write_text("short")
    parts = parts_of(files_of([str(tmp_path)]), 1 << 20)
    assert len(parts) == 1  # small files share one
    told = [(text[:5], ended) for part in parts for text, _, ended in documents(part, "text", Complaints())]
    assert [ended for text, ended in told if text != "short"] == [False] * 4 + [True]
    assert ("short", True) in told


def test_each_part_has_files_from_all_over_the_source(tmp_path):
    for kind in ("manuals", "sources"):
        for number in range(64):
            (tmp_path / f"{kind}-{number:02}.txt").write_text(f"{kind} {number}\n" * 50)
    files = files_of([str(tmp_path)])
    parts = parts_of(files, 10_000)
    assert len(parts) > 5
    assert all(len({name.rpartition("/")[2][:5] for name, *_ in part.pieces}) == 2 for part in parts[:-1])
    assert sorted(name for part in parts for name, *_ in part.pieces) == sorted(str(path) for _, path in files)
    assert parts == parts_of(files_of([str(tmp_path)]), 10_000)


def test_rows_that_are_not_what_they_should_be_are_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [
        b'{"text": "good"}',
        b'{"text": ""}',
        b'{"text": "  "}',
        b"not json",
        b'{"other": 1}',
        b'{"text": 5}',
        b"[1]",
    ]
    rows += [b'{"text": "caf\xe9"}', b'{"text": "half \\ud83d"}', b"", b'{"text": "last"}']
    path.write_bytes(b"\n".join(rows))
    texts, complaints = read(str(path))
    assert texts == ["good", "caf\ufffd", "half ?", "last"]
    assert complaints.counts == {
        "empty rows": 2,
        "lines that are not JSON": 1,
        "rows without the field": 3,
        "texts with bytes that are not UTF-8, which were replaced": 1,
    }


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_byte_order_mark_costs_no_row_and_is_no_text(tmp_path, name):
    mark = codecs.BOM_UTF8.decode()
    (tmp_path / name).write_text(mark + '{"text": "first"}\n{"text": "' + mark + 'second"}\n')
    assert read(str(tmp_path / name))[0] == ["first", "second"]
    (tmp_path / "a.txt").write_text(mark + "short text")
    assert read(str(tmp_path / "a.txt"))[0] == ["short text"]
    (tmp_path / "a.txt").write_text(mark + "a long text\n" * 5000)
    assert read(str(tmp_path / "a.txt"))[0][0].startswith("a long text")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("indent", [None, 2])
def test_json_that_is_one_array_is_its_rows(tmp_path, indent, mark):
    path = tmp_path / "rows.json"
    texts = sentences(300)
    path.write_text(mark + json.dumps([{"text": text} for text in texts], indent=indent))
    assert read(str(path), part_bytes=1000)[0] == texts
    path.rename(tmp_path / "rows.jsonl")
    assert read(f"jsonl:{tmp_path}/rows.jsonl", part_bytes=1000)[0] == texts


def test_an_array_that_is_too_long_says_how_to_make_lines_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_ROW_BYTES", 1000)
    (tmp_path / "rows.json").write_text(json.dumps([{"text": text} for text in sentences(30)]))
    with pytest.raises(UsageFault, match=r"rows\.json is one JSON array of .*jq -c"):
        read(str(tmp_path / "rows.json"))


def test_rows_that_are_read_as_text_because_it_was_said_so_are_counted(tmp_path):
    json_lines(tmp_path / "rows.jsonl", ["a"])
    texts, complaints = read(f"text:{tmp_path}")
    assert texts == ['{"id": 0, "text": "a"}\n']
    assert complaints.text() == "files of rows that are read as plain text, with their braces (1)"


@pytest.mark.parametrize("name", ["books.txt.gz", "books.jsonl.gz", "books.txt", "books.jsonl"])
def test_compressed_files_are_called_so(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b'{"text": "a"}\n' * 100))
    (tmp_path / "other.txt").write_text("text")
    texts, complaints = read(str(tmp_path))
    assert texts == ["text"]
    assert complaints.text() == "compressed files, which must be unpacked first (1)"


def test_one_file_of_many_without_text_or_gone_does_not_cost_the_others(tmp_path):
    """A row of null in a file of its own refused all 40; in a later part the rest of that part was lost."""
    for number in range(40):
        json_lines(tmp_path / f"{number:02}.jsonl", [f"text {number}"])
    (tmp_path / "07.jsonl").write_text('{"text": null}\n')
    complaints = Complaints()
    (part,) = parts_of(files_of([str(tmp_path)]), 1 << 20)
    (tmp_path / "11.jsonl").unlink()
    texts = [found.text for found in documents(part, "text", complaints)]
    assert sorted(texts) == sorted(f"text {number}" for number in range(40) if number not in (7, 11))
    assert complaints.counts == {"rows without the field": 1, "files that were deleted": 1}


def test_binary_files_are_left_out_and_counted_once(tmp_path):
    (tmp_path / "code.pyc").write_bytes(b"\xf3\r\r\n\0\0" + b"line\n" * 500)
    (tmp_path / "text.txt").write_text("text\n")
    texts, complaints = read(str(tmp_path), part_bytes=1000)
    assert ("".join(texts), complaints.counts) == ("text\n", {"binary files": 1})


def test_a_row_of_50_mb_is_a_document_and_a_longer_one_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_ROW_BYTES", 5000)
    path = json_lines(tmp_path / "rows.jsonl", ["a", "b" * 4900, "c" * 200_000, "d"])
    texts, complaints = read(str(path))
    assert [text[0] for text in texts] == ["a", "b", "d"]
    assert complaints.counts == {"rows longer than 64 MiB": 1}


def test_parquet_is_read_by_row_groups(tmp_path):
    texts = sentences(50)
    table = pyarrow.table({"text": texts, "id": list(range(50))})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    parts = parts_of(files_of([str(tmp_path)]), 1)
    assert [part.pieces[0][1:3] for part in parts] == [(index, index + 1) for index in range(8)]
    assert read(str(tmp_path))[0] == texts
    for field, lack in (("id", "its rows have id (id is int)"), ("body", "its rows have text, id;")):
        found, complaints = read(str(tmp_path), field=field)
        assert found == []
        assert f"no text in field {field!r}; {lack}" in complaints.lack
        assert complaints.counts == {"rows without the field": 50}
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=20)
    with pytest.raises(UsageFault, match=r"now has 3 row groups; expected at least 4"):
        list(documents(parts[3], "text", Complaints()))
    (tmp_path / "rows.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(UsageFault, match=r"rows\.parquet is not a Parquet file"):
        read(str(tmp_path))


def test_kinds_go_by_suffix_unless_somebody_says(tmp_path):
    for name in ("a.jsonl", "b.txt", "c.md"):
        (tmp_path / name).write_text(json.dumps({"text": "x"}))
    assert [kind for kind, _ in files_of([str(tmp_path)])] == ["jsonl", "text", "text"]
    assert [path.name for _, path in files_of([f"jsonl:{tmp_path}"])] == ["a.jsonl"]
    assert files_of([f"jsonl:{tmp_path / 'b.txt'}"]) == [("jsonl", tmp_path / "b.txt")]
    assert [kind for kind, _ in files_of([f"text:{tmp_path}"])] == ["text"] * 3
    with pytest.raises(UsageFault, match="does not exist"):
        files_of([str(tmp_path / "nothing")])


def test_loops_of_links_and_what_leads_out_are_left_out_and_counted(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    for name, target in (("self", "."), ("b", "c"), ("c", "b"), ("out.txt", "/etc/passwd"), ("etc", "/etc")):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.txt")
    complaints = Complaints()
    assert files_of([str(folder)], complaints) == [("text", folder / "a.txt")]
    assert complaints.counts == {"links that lead out of the folder, or entries that are not files": 4}


def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageFault, match="named pipe"):
        read(str(tmp_path / "pipe.jsonl"))
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(UsageFault, match="named pipe"):
        read(str(tmp_path / "pipe.parquet"))


def test_parquet_with_mistakes_in_its_text_is_mended_and_broken_pages_are_a_sentence(tmp_path):
    path = tmp_path / "rows.parquet"
    texts = [f"the terns of day {number} settle on the posts of the jetty" for number in range(50)]
    table = pyarrow.table({"text": texts, "label": ["calm"] * 50})
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    # Parquet does not look at the bytes of its text: some writers put Latin-1 there.
    path.write_bytes(whole.replace(b"terns of day 7 ", b"terns of d\xe4y 7 "))
    complaints = Complaints()
    part = parts_of([("parquet", path)], 1 << 20)[0]
    read = [found.text for found in documents(part, "text", complaints)]
    assert read == [text.replace("day 7 ", "d\ufffdy 7 ") for text in texts]
    assert complaints.text() == "texts with bytes that are not UTF-8, which were replaced (1)"
    # A length that leads out of its page.
    path.write_bytes(whole.replace(b"\x33\0\0\0the terns of day 7 ", b"\x33\0\0\x70the terns of day 7 "))
    assert path.read_bytes() != whole
    with pytest.raises(UsageFault, match=r"rows\.parquet cannot be read \(.*expected a complete Parquet file"):
        list(documents(part, "text", Complaints()))
