"""Sources, the held-out part, positions."""

from __future__ import annotations

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


def test_a_file_that_becomes_shorter_is_a_fault_after_which_a_service_starts_again(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(book(40_000))
    corpus = corpus_of(f"text:{tmp_path}")
    os.truncate(path, 0)
    with pytest.raises(LocalFault, match=r"a\.txt has become shorter than .*start again") as caught:
        corpus.training.batch(np.array([0]), 16)
    assert caught.value.exit_code == 1


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


def test_whole_files_are_held_out_whatever_other_files_there_are(folder):
    (folder / "part0").rename(folder / "tests")  # a name like any other
    corpus = corpus_of(f"text:{folder}")
    trained, held = set(corpus.training.names), set(corpus.held_out.names)
    assert (len(trained) + len(held), trained & held) == (60, set())
    assert any(name.startswith("tests/") for name in trained)
    batches = [list(corpus.held_out_batches(3, 4, 16)) for _ in range(2)]
    assert all(torch.equal(a, b) for one, other in zip(*batches, strict=True) for a, b in zip(one, other, strict=True))
    end = corpus.held_out.read(corpus.held_out.num_tokens - 16, 16)
    assert batches[0][-1][1][-1].tolist() == end.tolist(), "they reach the end"
    for index in range(30):
        (folder / ("tests" if index % 3 == 0 else f"part{index % 3}") / f"{index}.txt").unlink()
    after = set(corpus_of(f"text:{folder}").held_out.names)
    assert after == {name for name in held if (folder / name).exists()} != set()


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


def test_a_token_outside_the_vocabulary_is_named():
    stream = TokenStream([("a.u16", np.arange(500, dtype=np.uint16))], 300)
    stream.read(0, 300)
    with pytest.raises(UsageFault, match=r"a\.u16 contains token 300.*vocab_size 300"):
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
    with pytest.raises(UsageFault, match="contains no text"):
        corpus_of(f"text:{empty}")
    short = tmp_path / "short.txt"
    short.write_text("x" * 20)
    with pytest.raises(UsageFault, match="expected at least 17"):
        corpus_of(f"text:{short}")
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
