"""Data sets of a hub on this machine: listed and fetched by our own code, without guesses and without a login."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import LocalFault, UsageFault
from peer.limited_child.limited_child import ChildLimits
from peer.trainer.text import hub as module
from peer.trainer.text import parquet_groups
from peer.trainer.text.documents import Complaints, documents, rows_of
from peer.trainer.text.hub import hub_copy, hub_parts
from peer.trainer.text.parquet_groups import MAX_ROW_GROUPS, RowGroupLists, checked_ranges
from tests.kit.trainer.local_hub import COMMIT, TOKEN, LocalHub
from tests.kit.trainer.parquet_footer import Column, footer, write_with_footer
from tests.kit.trainer.prepared_data import json_lines, sentences

SOURCE = "hf:org/books@v1"


class SharedLists(RowGroupLists):
    """One child for all tests; to start one for each part takes long."""

    def close(self) -> None:
        if self._child is not None and self._child.has_ended:
            self.end()

    def end(self) -> None:
        super().close()
        self._child = None


@pytest.fixture(scope="module")
def lists() -> Iterator[SharedLists]:
    found = SharedLists()
    yield found
    found.end()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: SharedLists) -> Iterator[LocalHub]:
    found = LocalHub(tmp_path / "hub")
    (tmp_path / "hub" / "org" / "books").mkdir(parents=True)
    module._opened_at.cache_clear()
    monkeypatch.setattr(module, "RowGroupLists", lambda: lists)
    with found.asked_here(tmp_path / "cache"):
        yield found
    found.close()


@pytest.fixture
def books(tmp_path: Path, hub: LocalHub) -> Path:
    return tmp_path / "hub" / "org" / "books"


def texts_of(tmp_path: Path, source: str, number: int, count: int, *, is_own: bool = False) -> list[str]:
    with hub_copy(source, number, count, "text", tmp_path / "copy", is_own=is_own) as part:
        return [text for text, *_ in documents(part, "text", Complaints())]


def all_texts(tmp_path: Path, source: str, max_parts: int = 12, *, is_own: bool = False) -> list[str]:
    parts = hub_parts(source, max_parts, is_own=is_own)
    return [text for part in parts for text in texts_of(tmp_path, source, *part, is_own=is_own)]


def libraries() -> tuple[Any, Any]:
    return pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


def write_parquet(path: Path, texts: list[str], group: int = 50, **columns: list[Any]) -> None:
    pyarrow, parquet = libraries()
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({"text": texts, **columns})
    parquet.write_table(table, path, row_group_size=group)


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_data_set_is_fetched_part_by_part(tmp_path: Path, hub: LocalHub, books: Path, ending: str) -> None:
    """Each row once; a part costs about its share of the bytes, and nothing of it stays."""
    chance = random.Random(0)
    texts = [f"{number}: {chance.randbytes(500).hex()}" for number in range(1200)]
    other = [chance.randbytes(2000).hex() for _ in range(400)]
    for number in range(3):
        path, rows = books / f"train-{number}.{ending}", texts[400 * number : 400 * (number + 1)]
        if ending == "parquet":
            write_parquet(path, rows, other=other)
        else:
            json_lines(path, rows)
    ranges = hub_parts(SOURCE, 12, is_own=False)
    assert ranges == [(number, 12) for number in range(12)]
    before = hub.num_bytes
    found = texts_of(tmp_path, SOURCE, *ranges[7])
    # Of Parquet the other column, of twice the size, is not fetched; its footers cost 64 KiB.
    assert hub.num_bytes - before < sum(map(len, texts)) / 6 + (1 << 17)
    for number, count in ranges:
        if number != 7:
            found += texts_of(tmp_path, SOURCE, number, count)
    assert sorted(found) == sorted(texts)
    # Many files share a part.
    assert hub_parts(SOURCE, 2, is_own=False) == [(0, 2), (1, 2)]
    assert all_texts(tmp_path, SOURCE, 2) == texts
    assert not (tmp_path / "copy").exists()
    with pytest.raises(LocalFault, match="now has 3 files; expected a number that divides 10"):
        texts_of(tmp_path, SOURCE, 0, 10)
    with pytest.raises(UsageFault, match=r"hf:org/other@v1 is closed .* or does not exist"):
        hub_parts("hf:org/other@v1", 12, is_own=False)
    hub.mood = "garbage"
    if ending == "parquet":
        with pytest.raises(
            LocalFault, match=r"train-0\.parquet cannot be read \(the file is not a complete Parquet file\)"
        ):
            texts_of(tmp_path, SOURCE, 0, 12)
    hub.mood = "dead"
    with pytest.raises(LocalFault, match=r"cannot be read \("):
        texts_of(tmp_path, SOURCE, 0, 12)
    assert not (tmp_path / "copy").exists()


def test_folders_and_names_tell_data_sets_and_splits(tmp_path: Path, books: Path) -> None:
    """The forms of wikitext (a folder for each data set) and of fineweb-edu (some folders are samples)."""
    write_parquet(books / "raw" / "train-00000-of-00001.parquet", ["raw train"])
    write_parquet(books / "raw" / "test-00000-of-00001.parquet", ["raw test"])
    write_parquet(books / "sample" / "10BT" / "000_00000.parquet", ["sample"])
    (books / "README.md").write_text("---\nconfigs: [{data_files: '/etc/*'}]\n---\n# Books\n")
    assert all_texts(tmp_path, f"{SOURCE}/sample/10BT") == ["sample"]
    assert all_texts(tmp_path, f"{SOURCE}/raw") == all_texts(tmp_path, SOURCE) == ["raw train"]
    assert all_texts(tmp_path, f"{SOURCE}/raw:test") == ["raw test"]
    with pytest.raises(UsageFault, match=r"no folder 'raws'; expected one of its folders \(raw, sample/10BT\)"):
        hub_parts(f"{SOURCE}/raws", 12, is_own=False)
    with pytest.raises(UsageFault, match=r"no split 'dev'; expected one of its splits \(test, train\)"):
        hub_parts(f"{SOURCE}/raw:dev", 12, is_own=False)
    module._opened_at.cache_clear()
    write_parquet(books / "clean" / "train-00000-of-00001.parquet", ["clean train"])
    with pytest.raises(UsageFault, match=r"in several folders; expected hf:ID@REVISION/FOLDER with one of clean, raw"):
        hub_parts(SOURCE, 12, is_own=False)


def zstd_compressed(content: bytes) -> bytes:
    pyarrow, _ = libraries()
    packed: bytes = pyarrow.compress(content, "zstd", asbytes=True)
    return packed


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl.zst", "rows.txt"])
def test_other_forms_are_read_too(tmp_path: Path, books: Path, name: str) -> None:
    texts = sentences(200)
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    if ".txt" in name:
        rows = "".join(f"{text}\n" for text in texts)
    pack = {"gz": gzip.compress, "zst": zstd_compressed}.get(name.rpartition(".")[2], bytes)
    (books / name).write_bytes(pack(rows.encode()))
    found = all_texts(tmp_path, SOURCE)
    if ".txt" in name:
        assert "".join(found) == rows
        return
    assert sorted(found) == sorted(texts)


def test_an_array_of_json_and_a_loading_script_are_a_sentence(tmp_path: Path, books: Path) -> None:
    (books / "books.py").write_text("raise SystemExit('run')\n")
    with pytest.raises(UsageFault, match=r"\(books\.py\) cannot be read; .* a loading script is never run"):
        hub_parts(SOURCE, 12, is_own=False)
    (books / "rows.json").write_text('[{"text": "a"}]\n')
    module._opened_at.cache_clear()
    with pytest.raises(UsageFault, match="is one JSON array; expected one row per line"):
        all_texts(tmp_path, SOURCE)


@pytest.mark.parametrize(
    "name", ["../../secret.jsonl", "/etc/passwd.jsonl", "a/../b.jsonl", "a\\b.jsonl", "a\nb.jsonl"]
)
def test_a_file_that_leads_out_is_refused(hub: LocalHub, books: Path, name: str) -> None:
    json_lines(books / "rows.jsonl", ["inside"])
    hub.extra_files = [name]
    with pytest.raises(UsageFault, match="expected names inside the repository"):
        hub_parts(SOURCE, 12, is_own=False)


def test_what_a_parquet_file_says_of_its_columns_opens_nothing(tmp_path: Path, books: Path) -> None:
    """The `datasets` library opens the path in a row of a column that its file calls a picture."""
    pyarrow, parquet = libraries()
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret")
    kind = {"info": {"features": {"text": {"_type": "Image", "decode": True}}}}
    rows = pyarrow.array([{"bytes": None, "path": str(secret)}] * 3)
    table = pyarrow.table({"text": rows}).replace_schema_metadata({"huggingface": json.dumps(kind)})
    parquet.write_table(table, books / "train.parquet")
    ((number, count),) = hub_parts(SOURCE, 12, is_own=False)
    with hub_copy(SOURCE, number, count, "text", tmp_path / "copy", is_own=False) as part:
        found = list(rows_of(part.kind, part.pieces[0], "text", Complaints()))
    assert found == [{"text": {"bytes": None, "path": str(secret)}}] * 3


def test_only_what_the_volunteer_names_is_fetched_with_the_login(tmp_path: Path, hub: LocalHub, books: Path) -> None:
    json_lines(books / "rows.jsonl", ["private"])
    hub.closed = {"org/books"}
    with pytest.raises(UsageFault, match=r"fetched without your login; .* give --data hf:org/books@v1 yourself"):
        hub_parts(SOURCE, 12, is_own=False)
    assert hub.heads
    assert all("authorization" not in head and "cookie" not in head for head in hub.heads)
    assert set(all_texts(tmp_path, SOURCE, is_own=True)) == {"private"}
    assert hub.heads[-1]["authorization"] == f"Bearer {TOKEN}"


def test_without_a_network_the_cache_serves_what_the_volunteer_names(
    tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold what is private, so a run cannot name it."""
    snapshot = tmp_path / "cache" / "hub" / "datasets--org--books" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "v1").write_text(COMMIT)
    json_lines(snapshot / "train.jsonl", ["of the cache"])
    secret = json_lines(tmp_path / "secret.jsonl", ["of the home"])
    (snapshot / "train-2.jsonl").symlink_to(secret)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert set(all_texts(tmp_path, SOURCE, is_own=True)) == {"of the cache"}
    with pytest.raises(LocalFault, match="choose the copy in your cache yourself with --data hf:org/books@v1"):
        hub_parts(SOURCE, 12, is_own=False)
    with pytest.raises(LocalFault, match=r"hf:org/other@v1 cannot be read \("):
        hub_parts("hf:org/other@v1", 12, is_own=True)
    assert hub.heads == []


@pytest.mark.parametrize(
    "groups",
    [
        [[Column(-4, 100)]],
        [[Column(4, -100)]],
        [[Column(100, 100, dictionary_start=-50)]],
        [[Column(2**62, 100)]],
        [[Column(4, 2**62)]],
        [[Column(2**63 - 1, 2**63 - 1)]],
        [[Column(900, 150)]],
        [[Column(4, 100)], [Column(50, 100)]],
        [[Column(4, 100)]] * 2,
    ],
    ids=["before", "negative", "dictionary", "behind", "long", "overflow", "footer", "overlapping", "twice"],
)
def test_columns_that_lie_elsewhere_than_in_the_file_are_not_fetched(
    tmp_path: Path, hub: LocalHub, books: Path, groups: list[list[Column]]
) -> None:
    pytest.importorskip("pyarrow")
    write_with_footer(books / "train.parquet", footer(groups))
    before = hub.num_bytes
    with pytest.raises(LocalFault, match=r"org/books@v1: train\.parquet has .* column.*; expected"):
        texts_of(tmp_path, SOURCE, 0, 1)
    assert hub.num_bytes - before < 5000


def test_a_footer_that_takes_all_memory_or_time_is_one_sentence(
    tmp_path: Path, books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 MB here; one of 64 MiB takes 2 GB and eight seconds."""
    pytest.importorskip("pyarrow")
    names = [f"column {number}" for number in range(1000)]
    wide = footer([[Column(4, 10)] * len(names)], names, repeat=300)
    write_with_footer(books / "train.parquet", wide)
    monkeypatch.setattr(module, "RowGroupLists", RowGroupLists)
    for memory_bytes, seconds, told in (
        (150 << 20, 60.0, "took more than 157 MB"),
        (1 << 30, 0.2, r"took more than 0\.2 s"),
    ):
        monkeypatch.setattr(parquet_groups, "LIMITS", ChildLimits(memory_bytes, seconds))
        with pytest.raises(LocalFault, match=rf"org/books@v1: train\.parquet: the process .*{told}"):
            hub_parts(SOURCE, 12, is_own=False)


def test_a_footer_of_too_many_row_groups_is_one_sentence(books: Path) -> None:
    pytest.importorskip("pyarrow")
    write_with_footer(books / "train.parquet", footer([[]], [], repeat=MAX_ROW_GROUPS + 1))
    with pytest.raises(UsageFault, match=r"train\.parquet has 65\.5 k row groups; expected at most 65536"):
        hub_parts(SOURCE, 12, is_own=False)


def test_a_part_of_too_many_ranges_of_columns_is_one_sentence(tmp_path: Path, books: Path) -> None:
    """Each would be a request to the hub."""
    pytest.importorskip("pyarrow")
    names = [f"text.{number}" for number in range(66)]
    write_with_footer(books / "train.parquet", footer([[Column(4, 0)] * 66], names, repeat=1000))
    with pytest.raises(UsageFault, match=r"has 66\.0 k ranges of columns in a part; expected at most 65536"):
        texts_of(tmp_path, SOURCE, 0, 1)


@pytest.mark.parametrize(
    "ranges", [[[4]], [[4, 8, 9]], [["4", 8]], [[4.0, 8.0]], [[True, 8]], [7], [None], [[8, 4]], [[4, 10**30]]]
)
def test_ranges_that_are_none_are_one_sentence(ranges: list[Any]) -> None:
    """The process that lists them has read a stranger's file."""
    with pytest.raises(LocalFault, match=r"^x\.parquet.*; expected"):
        checked_ranges(ranges, "x.parquet", 100)


def test_ranges_that_touch_and_empty_ones_are_kept_in_order() -> None:
    """An empty row group may have any place."""
    assert checked_ranges([[50, 100], [4, 50], [0, 0], [-1, -1]], "x.parquet", 100) == [(4, 50), (50, 100)]


def test_an_answer_that_is_no_list_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = RowGroupLists()
    for answer in ({}, {"num_groups": -1, "ranges": {}}, {"num_groups": 2**60, "ranges": [[4, 4]] * 65537}):
        monkeypatch.setattr(lists, "_answer", lambda *_, answer=answer: answer)
        with pytest.raises(LocalFault, match="returned no list"):
            lists.num_groups(b"", "x.parquet")
        with pytest.raises(LocalFault, match="returned no list"):
            lists.columns(b"", "x.parquet", range(1), "text", 100)
