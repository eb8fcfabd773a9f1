"""Sources, the held-out part, positions."""

from __future__ import annotations

import codecs
import json
import os
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import LocalFault, UsageFault
from peer.trainer.data.context_blocks import TokenStream
from peer.trainer.data.corpus import open_corpus
from tests.kit.trainer.prepared_data import book


def corpus_of(source, *, context=16, vocab_size=256, held_out_fraction=0.1):
    return open_corpus(str(source), vocab_size=vocab_size, context=context, held_out_fraction=held_out_fraction)


@pytest.fixture
def folder(tmp_path):
    for index in range(60):
        path = tmp_path / f"part{index % 3}" / f"{index}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"file number {index} " * 20)
    (tmp_path / ".hidden").write_text("secret " * 99)
    return tmp_path


def test_library_text_is_there_and_its_held_out_files_are_never_trained_on():
    corpus = corpus_of("stdlib:", context=128, held_out_fraction=0.05)
    assert corpus.training.num_tokens > 1_000_000
    assert 10_000 < corpus.held_out.num_tokens < corpus.training.num_tokens / 4
    assert not set(corpus.training.names) & set(corpus.held_out.names)
    folders = {part for name in corpus.training.names for part in name.split("/")[:-1]}
    assert not folders & {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
    assert "textwrap.py" in corpus.held_out.names  # the same choice on every Python version


def test_the_same_pieces_are_held_out_whatever_shards_somebody_has(tmp_path):
    """25 shards of one corpus; a volunteer has 10 of them under other names."""
    shards = [np.random.default_rng(index).integers(0, 4000, 40_000).astype("<u2") for index in range(25)]
    for name, chosen in (("all", range(25)), ("some", range(9, 19))):
        (tmp_path / name).mkdir()
        for index in chosen:
            shards[index].tofile(tmp_path / name / f"{name}-{index:03d}.u16")
    held = {}
    for name in ("all", "some"):
        corpus = corpus_of(f"tokens:{tmp_path / name}", vocab_size=4000, held_out_fraction=0.1)
        whole = [part.read(0, part.num_tokens) for part in (corpus.training, corpus.held_out)]
        held[name] = [{tuple(row) for row in np.lib.stride_tricks.sliding_window_view(part, 8)[::4]} for part in whole]
    trained_by_some, held_by_all = held["some"][0], held["all"][1]
    assert held_by_all & held["some"][1]
    assert not trained_by_some & held_by_all


def test_a_file_that_becomes_shorter_is_a_fault_after_which_a_service_starts_again(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(book(40_000))
    corpus = corpus_of(f"text:{tmp_path}")
    os.truncate(path, 0)
    with pytest.raises(LocalFault, match=r"a\.txt has become shorter than .*start again") as caught:
        corpus.training.batch(np.array([0]), 16)
    assert caught.value.exit_code == 1


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + b"text " * 200)
    corpus = corpus_of(f"text:{tmp_path}")
    assert corpus.training.num_tokens + corpus.held_out.num_tokens == 1000


def test_a_folder_of_many_files_takes_no_memory(tmp_path):
    for index in range(200):
        (tmp_path / f"{index}.txt").write_bytes(os.urandom(1 << 17))
    num_open = len(os.listdir("/proc/self/fd"))  # of tests before
    tracemalloc.start()
    corpus = corpus_of(f"text:{tmp_path}")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert corpus.training.num_tokens > 20 << 20
    assert most < 4 << 20
    assert len(os.listdir("/proc/self/fd")) - num_open <= 64 + 2


def test_a_file_is_held_out_whatever_other_files_there_are(folder):
    before = set(corpus_of(f"text:{folder}").held_out.names)
    for index in range(30):
        (folder / f"part{index % 3}" / f"{index}.txt").unlink()
    after = set(corpus_of(f"text:{folder}").held_out.names)
    assert before
    assert after == {name for name in before if (folder / name).exists()}


def test_a_folder_named_tests_is_text_like_any_other(folder):
    (folder / "part0").rename(folder / "tests")
    corpus = corpus_of(f"text:{folder}")
    assert any(name.startswith("tests/") for name in corpus.training.names)


def test_folders_split_by_file_and_leave_hidden_files_out(folder):
    corpus = corpus_of(f"text:{folder}")
    assert len(corpus.training.names) + len(corpus.held_out.names) == 60
    assert not set(corpus.training.names) & set(corpus.held_out.names)


@given(size=st.integers(200, 2000), fraction=st.floats(0.1, 0.5))
def test_one_file_is_cut_without_overlap(tmp_path_factory, size, fraction):
    path = tmp_path_factory.getbasetemp() / "one.u32"
    np.arange(size, dtype="<u4").tofile(path)
    corpus = corpus_of(f"tokens:{path}", vocab_size=size, held_out_fraction=fraction)
    training = corpus.training.read(0, corpus.training.num_tokens)
    held_out = corpus.held_out.read(0, corpus.held_out.num_tokens)
    assert sorted(np.concatenate((training, held_out)).tolist()) == list(range(size))
    assert max(17, int(size * fraction)) <= len(held_out) <= max(18, int(size * fraction) + 1)
    assert (np.diff(held_out) == 1).all()


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6), data=st.data())
def test_reading_across_files_equals_reading_their_concatenation(sizes, data):
    parts = [np.random.default_rng(index).integers(0, 256, size).astype(np.uint8) for index, size in enumerate(sizes)]
    whole = np.concatenate(parts)
    stream = TokenStream([(str(index), part) for index, part in enumerate(parts)], 256)
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - start))
    assert stream.num_tokens == len(whole)
    assert stream.read(start, length).tolist() == whole[start : start + length].tolist()
    with pytest.raises(IndexError):
        stream.read(start, len(whole) - start + 1)


def test_held_out_batches_are_the_same_every_time_and_reach_the_end(folder):
    corpus = corpus_of(f"text:{folder}")
    first, second = (list(corpus.held_out_batches(3, 4, 16)) for _ in range(2))
    assert len(first) == 3
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(first, second, strict=True))
    end = corpus.held_out.read(corpus.held_out.num_tokens - 16, 16)
    assert first[-1][1][-1].tolist() == end.tolist()


def test_shards_say_their_type_by_suffix_or_sidecar(tmp_path):
    np.arange(500, dtype="<u2").tofile(tmp_path / "a.u16")
    np.arange(500, 1000, dtype="<u4").tofile(tmp_path / "b.u32.bin")
    np.arange(1000, 1500, dtype="<u2").tofile(tmp_path / "c.bin")
    (tmp_path / "c.json").write_text(json.dumps({"dtype": "uint16"}))
    corpus = corpus_of(f"tokens:{tmp_path}", vocab_size=1500)
    whole = [part.read(0, part.num_tokens) for part in (corpus.training, corpus.held_out)]
    assert sorted(np.concatenate(whole).tolist()) == list(range(1500))
    (tmp_path / "c.json").unlink()
    with pytest.raises(UsageFault, match=r"c\.json"):
        corpus_of(f"tokens:{tmp_path}", vocab_size=1500)


def test_a_token_outside_the_vocabulary_is_named(tmp_path):
    np.arange(500, dtype="<u2").tofile(tmp_path / "a.u16")
    with pytest.raises(UsageFault, match=r"a\.u16 holds token 499.*vocab_size 300"):
        corpus_of(f"tokens:{tmp_path / 'a.u16'}", vocab_size=300)
    stream = TokenStream([("a.u16", np.arange(500, dtype=np.uint16))], 300)
    stream.read(0, 300)
    with pytest.raises(UsageFault, match=r"a\.u16 holds token 300.*vocab_size 300"):
        stream.read(0, 301)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("stdlibs:", "expected stdlib:"),
        ("text:", "expected stdlib:"),
        ("text:/no/such/place", "/no/such/place does not exist"),
        ("tokens:/no/such/place", "/no/such/place does not exist"),
    ],
)
def test_sources_that_are_not_there(source, message):
    with pytest.raises(UsageFault, match=message):
        corpus_of(source)


def test_text_that_is_too_short_empty_odd_or_forbidden(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageFault, match="nothing to read"):
        corpus_of(f"text:{empty}")
    short = tmp_path / "short.txt"
    short.write_text("x" * 20)
    with pytest.raises(UsageFault, match="expected at least 17"):
        corpus_of(f"text:{short}")
    odd = tmp_path / "odd.u16"
    odd.write_bytes(b"x" * 1001)
    with pytest.raises(UsageFault, match="multiple of 2"):
        corpus_of(f"tokens:{odd}")
    with pytest.raises(UsageFault, match="at least 256"):
        corpus_of(f"text:{short}", vocab_size=100)


def test_a_read_error_is_named(tmp_path, monkeypatch):
    path = tmp_path / "failing.txt"
    path.write_text("x" * 1000)

    def fail(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("peer.trainer.text.source_files.open_regular", fail)
    with pytest.raises(UsageFault, match=r"failing\.txt cannot be read \(Input/output error\)"):
        corpus_of(f"text:{path}")
