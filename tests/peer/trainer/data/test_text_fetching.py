"""Text that is tokenized while it is trained on."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from dht.ground.errors import LocalFault, UsageFault
from peer.data_division.block_order import BlockOrder
from peer.trainer.data import fetching_within_disk_limit as stock_module
from peer.trainer.data import text_fetching as module
from peer.trainer.data.context_blocks import GROUP_POSITIONS
from peer.trainer.data.fetching_within_disk_limit import Stock
from peer.trainer.data.text_fetching import TextRules, TextStock
from peer.trainer.data.tokenize_pool import TokenizeWorker
from peer.trainer.text.documents import FileRange, TextPart
from peer.trainer.text.held_out import hash_fraction
from tests.kit.trainer.prepared_data import (
    WorkerHere,
    book,
    in_this_process,
    json_lines,
    sentences,
    small_tokenizer,
    tokenize_part,
)
from tests.kit.waiting import WAIT_SECONDS

CONTEXT = 8


@pytest.fixture
def rules(tmp_path):
    return TextRules(small_tokenizer(tmp_path / "tokenizer"), "text", 0.1, 300, CONTEXT, 100)


def test_text_is_tokenized_part_by_part_and_kept(tmp_path, rules, monkeypatch):
    monkeypatch.setattr(module, "SMALLEST_PART_BYTES", 20_000)
    texts = sentences(200)
    json_lines(tmp_path / "corpus.jsonl", texts)
    notes = []
    stock = TextStock(f"jsonl:{tmp_path}/corpus.jsonl", rules, tmp_path / "cache", notes.append)
    try:
        held_out, bytes_per_token = stock.held_out()
        assert held_out.num_tokens > 100
        assert 1 < bytes_per_token < 10
        assert len(stock.parts) > 2
        # What the held-out part needed is here; the rest comes when it is wanted.
        training = stock.training()
        assert training.group_range(0) is not None
        assert training.group_range(len(stock.parts) - 1) is None
        for group in range(len(stock.parts)):
            stock.bring(group)
        tokens = np.concatenate([stock.open(group)[1][:] for group in range(len(stock.parts))])
        found = in_this_process(rules.tokenizer).decode(tokens.tolist()).split("<|endoftext|>")[:-1]
        assert found == [text for text in texts if hash_fraction(text.encode()) >= 0.1]
        positions = BlockOrder(0, "me").next(16, CONTEXT, training)
        inputs, targets = training.batch(positions, CONTEXT)
        assert bool((inputs[:, 1:] == targets[:, :-1]).all())
        assert len(notes) == 1
    finally:
        stock.close()
    # Somebody who comes back tokenizes nothing again.
    monkeypatch.setattr(module, "TokenizeWorker", None)
    again = TextStock(f"jsonl:{tmp_path}/corpus.jsonl", rules, tmp_path / "cache", notes.append)
    assert again.held_out()[0].num_tokens == held_out.num_tokens
    assert again.identity == stock.identity
    assert len(notes) == 1


def test_a_small_limit_reads_every_block_of_an_epoch_and_never_loses_what_is_read(tmp_path, rules, monkeypatch):
    """Parts go and come again while they are trained on; the disk holds a few of them."""
    monkeypatch.setattr(module, "SMALLEST_PART_BYTES", 5_000)
    monkeypatch.setattr("peer.trainer.text.source_files.MAX_OPEN_FILES", 1)
    json_lines(tmp_path / "corpus.jsonl", sentences(250))
    notes: list[str] = []
    stock = TextStock(f"jsonl:{tmp_path}/corpus.jsonl", rules, tmp_path / "cache", notes.append, 14_000)
    bring, brought = stock.bring, []
    monkeypatch.setattr(stock, "bring", lambda group: (brought.append(group), bring(group)))
    try:
        stock.held_out()
        training, order = stock.training(), BlockOrder(0, "me")
        most, seen, gone, pause = 0, set(), False, threading.Event()
        deadline = time.monotonic() + WAIT_SECONDS
        while order.state()["epoch"] < 1 and time.monotonic() < deadline:
            if (positions := order.next(8, CONTEXT, training)) is None:
                pause.wait(0.01)  # as the loop waits for the thread
                continue
            training.batch(positions, CONTEXT)
            seen |= set(positions.tolist())
            here = [group for group in range(stock.num_groups) if stock.bytes_here(group) is not None]
            most = max(most, sum(stock.bytes_here(group) for group in here))
            gone = gone or len(here) < len({position // GROUP_POSITIONS for position in seen})
        assert gone, "nothing had to go: the limit is too large for this test"
        assert most <= 14_000 + 3_000
        assert {position // GROUP_POSITIONS for position in seen} == set(range(stock.num_groups))
        assert len(brought) < 2 * stock.num_groups  # what is here is read to its end before it goes
        assert notes == [notes[0]]
        # The first part, which is measured on, is still here.
        assert stock.bytes_here(0)
    finally:
        stock.close()


class Files:
    """Groups of 10 bytes each, none of them on a disk."""

    lasting_bytes = 0

    def __init__(self, folder, num_groups, here=()):
        self.folder = folder
        self.num_groups = num_groups
        self.here = set(here)
        self.came = threading.Semaphore(0)

    def bring(self, group):
        self.here.add(group)
        self.came.release()

    def bytes_here(self, group):
        return 10 if group in self.here else None

    def bytes_expected(self, group):
        return 10

    def remove(self, group):
        self.here.discard(group)


def until(condition):
    deadline = time.monotonic() + WAIT_SECONDS
    pause = threading.Event()
    while not condition() and time.monotonic() < deadline:
        pause.wait(0.001)
    assert condition()


def test_a_limit_below_what_is_wanted_keeps_the_first_and_is_said_once(tmp_path):
    files, notes = Files(tmp_path / "own", 4), []
    stock = Stock(files, notes.append, limit_bytes=25)
    stock.want(range(4))
    until(lambda: notes)
    assert files.here == {0, 1}
    assert "20 B of the 25 B" in notes[0]
    assert "--data-limit-gib" in notes[0]
    stock.want([3, 0])  # the first one that is wanted comes first, and those that are wanted no more go
    until(lambda: stock._leaving)
    assert stock.let_go() == [1]
    until(lambda: files.here == {0, 3})
    assert len(notes) == 1


def test_what_is_measured_on_counts_into_the_limit(tmp_path):
    files, notes = Files(tmp_path / "own", 4), []
    files.lasting_bytes = 12
    stock = Stock(files, notes.append, limit_bytes=25)
    stock.want(range(4))
    until(lambda: notes)
    assert files.here == {0}
    assert "22 B of the 25 B" in notes[0]


def test_closing_while_a_part_is_tokenized_is_no_failure_and_a_death_is(tmp_path, rules, monkeypatch):
    monkeypatch.setattr(stock_module, "PAUSES_SECONDS", (0.01,))
    json_lines(tmp_path / "corpus.jsonl", sentences(100))
    notes, begun = [], threading.Event()

    class Hanging(TokenizeWorker):
        """As one that is at work on a large part."""

        def tokenize(self, order):
            begun.set()
            assert not self._child._process.stdout.read(1)
            return super().tokenize(order)

    monkeypatch.setattr(module, "TokenizeWorker", Hanging)
    stock = TextStock(f"jsonl:{tmp_path}/corpus.jsonl", rules, tmp_path / "cache", notes.append)
    stock.training().want([0])
    assert begun.wait(10)
    begun.clear()
    stock._worker._child._process.kill()
    assert begun.wait(10)  # it tries again with another one
    assert "was ended by SIGKILL" in notes[0]
    stock.close()
    until(lambda: not stock._stock._thread.is_alive())
    assert notes == [notes[0]]


def test_data_of_another_source_goes_first(tmp_path):
    old = tmp_path / "0123abcd"
    old.mkdir()
    (old / "part-000000.u16").write_bytes(b"x" * 15)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_bytes(b"x" * 15)
    files = Files(tmp_path / "4567abcd", 2, here=(0,))
    stock = Stock(files, lambda text: None, limit_bytes=20)
    stock.want([1])
    assert files.came.acquire(timeout=60)
    assert not old.exists()
    assert (tmp_path / "mine" / "letter").exists()
    assert files.here == {0, 1}


def test_a_field_that_is_not_there_and_text_that_is_none_are_sentences(tmp_path, rules):
    (tmp_path / "rows").mkdir()
    json_lines(tmp_path / "rows" / "corpus.jsonl", sentences(100), field="body")
    stock = TextStock(f"jsonl:{tmp_path}/rows", rules, tmp_path / "cache", lambda text: None)
    with pytest.raises(UsageFault, match="no text in field 'text'; its rows have id, body"):
        stock.held_out()
    stock.close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "nothing.txt").touch()
    with pytest.raises(UsageFault, match="contains no text"):
        TextStock(f"text:{tmp_path}/empty", rules, tmp_path / "cache", lambda text: None)


def shapes_of_little_text(folder):
    """Sources that a first try has, by name."""
    sizes = (30_000, 47_000, 120_000, 300_000, 560_000)
    for number, (size, between) in enumerate(zip(sizes, ("\n\n", " ", "\n", "\n\n", "\n"), strict=True)):
        (folder / str(number)).mkdir()
        (folder / str(number) / "input.txt").write_text(book(size, between, seed=number))
        yield f"one file of {size} bytes", f"text:{folder}/{number}/input.txt"
    yield "several files", f"text:{folder}/0,{folder}/2,{folder}/3"
    yield "one row that is a book", f"jsonl:{json_lines(folder / 'book.jsonl', [book(200_000, seed=7)])}"
    few = [book(2_000, seed=20 + number) for number in range(5)]
    yield "few rows", f"jsonl:{json_lines(folder / 'few.jsonl', few)}"
    yield "one short row", f"jsonl:{json_lines(folder / 'one.jsonl', [book(5_000, seed=40)])}"


def test_any_little_text_is_trained_on_and_measured_on_and_no_sentence_is_both(tmp_path, rules, monkeypatch):
    """Each of these was refused or not as the hash of its text decided."""
    monkeypatch.setattr(module, "TokenizeWorker", WorkerHere)
    rules = replace(rules, context=64, held_out_fraction=0.05, min_held_out=10_000)
    for name, source in shapes_of_little_text(tmp_path):
        told = []
        for volunteer in ("me", "you"):
            stock = TextStock(source, rules, tmp_path / volunteer / "cache", lambda text: None)
            try:
                held_out, _ = stock.held_out()
                held = in_this_process(rules.tokenizer).decode(held_out.read(0, held_out.num_tokens).tolist())
                for group in range(stock.num_groups):
                    stock.bring(group)
                tokens = np.concatenate([stock.open(group)[1][:] for group in range(stock.num_groups)])
            finally:
                stock.close()
            trained = in_this_process(rules.tokenizer).decode(tokens.tolist())
            told.append((trained, held))
        assert told[0] == told[1], name
        assert 64 < held_out.num_tokens < 0.1 * len(tokens), name
        # Sentences are numbered, so none is there twice.
        numbers = [set(re.findall(r"(?<![\d.])\d+\.\d+ \w+ \w+ \w+", side)) for side in told[0]]
        assert not numbers[0] & numbers[1], name


def test_copies_of_own_text_are_for_their_owner_alone(tmp_path, rules, monkeypatch):
    """Also in a folder that was there before, and while a part is being written."""
    modes, keep = [], os.replace

    def replace_file(source, target):
        modes.append(os.stat(source).st_mode & 0o777)
        keep(source, target)

    monkeypatch.setattr(module, "TokenizeWorker", WorkerHere)
    monkeypatch.setattr(os, "replace", replace_file)
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "input.txt").write_text(book(30_000))
    stock = TextStock(f"text:{tmp_path}/input.txt", rules, tmp_path / "home" / "data", print)
    stock.held_out()
    stock.close()
    found = {path.name: path.stat().st_mode & 0o777 for path in stock.folder.iterdir()}
    assert found == dict.fromkeys(("part-000000.u16", "held-000000.u16", "part-000000.json"), 0o600)
    assert set(modes) == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (stock.folder, stock.folder.parent)} == {0o700}


def test_an_edited_file_is_tokenized_anew_whatever_its_length_and_time(tmp_path, rules, monkeypatch):
    monkeypatch.setattr(module, "TokenizeWorker", WorkerHere)
    path, told = tmp_path / "input.txt", []
    for word in ("birds", "stars"):
        path.write_text(book(30_000).replace("birds", word))
        os.utime(path, (1_000_000, 1_000_000))
        stock = TextStock(f"text:{path}", rules, tmp_path / "cache", print)
        stock.held_out()
        told.append(in_this_process(rules.tokenizer).decode(stock.open(0)[1][:].tolist()))
        stock.close()
    assert "birds" in told[0]
    assert "birds" not in told[1]
    assert "stars" in told[1]


def test_too_little_to_hold_out_says_what_helps_and_what_was_left_out(tmp_path, rules):
    folder = tmp_path / "few"
    folder.mkdir()
    (folder / "one.txt").write_text("the marsh\n")
    (folder / "picture").write_bytes(b"\0" * 9)
    stock = TextStock(f"text:{folder}", replace(rules, held_out_fraction=0.0), tmp_path / "cache", lambda text: None)
    said = r"has 1 document and 4 tokens; left out or repaired: binary files \(1\); expected at least 18: .*more text"
    with pytest.raises(UsageFault, match=said):
        stock.held_out()
    stock.close()


def test_one_part_that_is_gone_for_good_is_told_once_while_others_come(tmp_path, monkeypatch):
    monkeypatch.setattr(stock_module, "PAUSES_SECONDS", (0.0,))
    notes, tried = [], []

    def bring(group: int) -> None:
        tried.append(group)
        if group == 3:
            raise LocalFault("c.txt was removed")
        files.here.add(group)

    files = Files(tmp_path, 9)
    files.bring = bring
    stock = Stock(files, notes.append)
    for number in (4, 5, 6, 7):
        stock.want([3, number])
        until(lambda number=number: number in files.here and tried.count(3) >= number - 3)
    stock.close()
    assert notes == ["data cannot be fetched now: c.txt was removed; training continues with the local data"]


def test_a_source_that_was_away_is_said_to_be_back_by_the_first_part_that_comes(tmp_path, monkeypatch):
    """Those that failed are wanted last, and may not come for long."""
    monkeypatch.setattr(stock_module, "PAUSES_SECONDS", (0.0,))
    notes, tried, is_back = [], set(), threading.Event()

    def bring(group: int) -> None:
        tried.add(group)
        if not is_back.is_set():
            raise LocalFault("no route")
        files.here.add(group)

    files = Files(tmp_path, 9)
    files.bring = bring
    stock = Stock(files, notes.append)
    stock.want([1, 2, 3])
    until(lambda: tried == {1, 2, 3})
    stock.want([4])
    until(lambda: 4 in tried)
    is_back.set()
    until(lambda: len(notes) > 1)
    stock.want([5])
    until(lambda: 5 in files.here)
    stock.close()
    assert notes == [
        "data cannot be fetched now: no route; training continues with the local data",
        "data arrives again",
    ]


def test_a_stock_begins_while_the_hub_is_away_if_it_was_here_before(tmp_path, rules, monkeypatch):
    """A volunteer whose line or hub is down goes on with what is tokenized already."""
    texts, notes, is_away = sentences(400), [], threading.Event()

    def listed(source, max_parts, is_own):
        if is_away.is_set():
            raise LocalFault("the hub is away")
        return [(0, 2), (1, 2)]

    @contextlib.contextmanager
    def copied(source, number, num_parts, field, folder, is_own):
        if is_away.is_set():
            raise LocalFault("the hub is away")
        folder.mkdir(parents=True)
        copy = json_lines(folder / "0.jsonl", texts[number::num_parts])
        yield TextPart("jsonl", (FileRange(str(copy), 0, copy.stat().st_size, copy.stat().st_size),))

    class Here(TokenizeWorker):
        """In this process."""

        def __init__(self, tokenizer, end):
            pass

        def tokenize(self, order):
            return tokenize_part(order, in_this_process(rules.tokenizer))

        def close(self):
            pass

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(module, "hub_parts", listed)
    monkeypatch.setattr(module, "hub_copy", copied)
    monkeypatch.setattr(module, "TokenizeWorker", Here)
    monkeypatch.setattr(stock_module, "PAUSES_SECONDS", (0.0,))
    is_away.set()
    with pytest.raises(LocalFault, match="the hub is away"):
        TextStock("hf:org/name@v1", rules, tmp_path, notes.append)
    assert notes == ["data cannot be fetched now: the hub is away; trying again in 0 s"]
    is_away.clear()
    first = TextStock("hf:org/name@v1", rules, tmp_path, notes.append)
    first.held_out()
    assert first.open(0) is not None
    is_away.set()
    for offline in ("0", "1"):
        # What was streamed is here, too, for a person that wants no network now.
        monkeypatch.setenv("HF_HUB_OFFLINE", offline)
        again = TextStock("hf:org/name@v1", rules, tmp_path, notes.append)
        assert notes[-1] == "data cannot be fetched now: the hub is away; continuing with the local data"
        assert (again.identity, again.num_groups) == (first.identity, 2)
        assert again.held_out()[0].num_tokens == first.held_out()[0].num_tokens
        assert again.open(0) is not None
    for text in ("[[0]]", "nonsense", "7"):
        next(tmp_path.glob("hub-*.json")).write_text(text)
        with pytest.raises(LocalFault, match="the hub is away"):
            TextStock("hf:org/name@v1", rules, tmp_path, notes.append)
