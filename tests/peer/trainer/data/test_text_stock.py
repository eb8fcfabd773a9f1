"""Text that is tokenized while it is trained on."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dht.errors import LocalFault, UsageFault
from peer.trainer.data import stock as stock_module
from peer.trainer.data import text_stock as module
from peer.trainer.data.order import PermutedOrder
from peer.trainer.data.stock import Stock
from peer.trainer.data.text_stock import TextRules, TextStock, parts_of_source
from peer.trainer.text import hub as hub_module
from peer.trainer.text.documents import Complaints, documents
from peer.trainer.text.held_out import hash_fraction
from tests.kit.trainer.prepared_data import json_lines, sentences, small_tokenizer

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
        found = rules.tokenizer.decode(tokens.tolist()).split("<|endoftext|>")[:-1]
        assert found == [text for text in texts if hash_fraction(text.encode()) >= 0.1]
        positions = PermutedOrder(0, "me").next(16, CONTEXT, training)
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


def test_a_full_cache_lets_the_oldest_parts_go(tmp_path, rules, monkeypatch):
    monkeypatch.setattr(module, "SMALLEST_PART_BYTES", 10_000)
    monkeypatch.setattr(module, "MAX_CACHE_BYTES", 1)
    json_lines(tmp_path / "corpus.jsonl", sentences(100))
    stock = TextStock(f"jsonl:{tmp_path}", rules, tmp_path / "cache", lambda text: None)
    try:
        stock.bring(0)
        stock.bring(1)
        assert [stock.open(group) is None for group in (0, 1)] == [True, False]
    finally:
        stock.close()


def test_a_field_that_is_not_there_and_text_that_is_none_are_sentences(tmp_path, rules):
    json_lines(tmp_path / "corpus.jsonl", sentences(100), field="body")
    stock = TextStock(f"jsonl:{tmp_path}", rules, tmp_path / "cache", lambda text: None)
    with pytest.raises(UsageFault, match="no text in field 'text'; its rows have id, body"):
        stock.held_out()
    stock.close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "nothing.txt").touch()
    with pytest.raises(UsageFault, match="holds no text"):
        TextStock(f"text:{tmp_path}/empty", rules, tmp_path / "cache", lambda text: None)


def test_too_little_to_hold_out_says_what_helps_and_what_was_left_out(tmp_path, rules):
    folder = tmp_path / "few"
    folder.mkdir()
    (folder / "one.txt").write_text("the marsh\n")
    (folder / "picture").write_bytes(b"\0" * 9)
    stock = TextStock(f"text:{folder}", replace(rules, held_out_fraction=0.0), tmp_path / "cache", lambda text: None)
    said = r"has 1 document, and 0 tokens of them held out; left out or mended: binary files \(1\); .*peer data prepare"
    with pytest.raises(UsageFault, match=said):
        stock.held_out()
    stock.close()


def test_what_cannot_be_had_is_tried_again_and_said_once(monkeypatch):
    monkeypatch.setattr(stock_module, "PAUSES_SECONDS", (0.0,))
    notes, tried, over = [], [], threading.Event()

    def bring(group: int) -> None:
        tried.append(group)
        if len(tried) < 5:
            raise LocalFault("the line broke")
        if set(tried[4:]) == {7, 8}:
            over.set()

    stock = Stock(bring, notes.append)
    stock.want([7, 8])
    assert over.wait(10)
    assert {7, 8} <= set(tried[:4])  # one that fails does not hold up the other
    assert notes[0] == "data cannot be had now: the line broke; training goes on with what is here"
    assert notes[1:] in ([], ["data comes again"])


class Rows:
    """Stands for what `datasets.load_dataset` gives from its cache."""

    def __init__(self, texts):
        self._texts = texts
        self.num_rows = len(texts)

    def select(self, chosen):
        return ({"text": self._texts[index]} for index in chosen)


def test_a_data_set_of_the_hub_is_read_by_rows(monkeypatch):
    texts, asked = sentences(5000), []

    def load_dataset(path, **choices):
        asked.append((path, choices))
        return Rows(texts)

    monkeypatch.setitem(__import__("sys").modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parts, _ = parts_of_source("hf:org/name@abc/en:validation")
    assert asked == [
        ("org/name", {"name": "en", "split": "validation", "revision": "abc", "streaming": False}),
    ]
    found = [text for part in parts for text, ended in documents(part, "text", Complaints()) if ended]
    assert found == texts
    assert len(parts) == 3

    def fail(path, **choices):
        raise ConnectionError("no route")

    monkeypatch.setitem(__import__("sys").modules, "datasets", SimpleNamespace(load_dataset=fail))
    with pytest.raises(LocalFault, match=r"hf:org/name@abc cannot be read \(no route\)"):
        hub_module.num_hub_rows("hf:org/name@abc")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UsageFault, match="pip install"):
        hub_module.num_hub_rows("hf:org/name@abc")
