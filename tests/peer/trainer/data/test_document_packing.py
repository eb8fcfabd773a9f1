"""Parts of text become shards of tokens, a bounded amount of text at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dht.ground.errors import LocalFault
from peer.trainer.data import document_packing
from peer.trainer.data.document_packing import TokenizeOrder
from peer.trainer.data.loaded_tokenizer import LoadedTokenizer
from peer.trainer.text.documents import FileRange, TextPart
from peer.trainer.text.held_out import HeldOutRule
from tests.kit.trainer.prepared_data import in_this_process, sentences, small_tokenizer, tokenize_part


def test_one_huge_row_and_many_long_ones_take_the_memory_of_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer takes 40 bytes of memory for each character that it is given at once."""
    monkeypatch.setattr(document_packing, "BATCH_CHARACTERS", 200)
    monkeypatch.setattr(document_packing, "MAX_TEXT_CHARACTERS", 150)
    texts = sentences(20)
    texts[5] = " ".join(texts)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = in_this_process(small_tokenizer(tmp_path / "tokenizer"))
    part = TextPart("jsonl", (FileRange(str(path), 0, path.stat().st_size),))
    order = TokenizeOrder(part, "text", HeldOutRule.of(0.0), tmp_path / "training", tmp_path / "held")
    encode, given = LoadedTokenizer.encode, []

    def spied(self: LoadedTokenizer, together: list[str]) -> object:
        given.append(sum(map(len, together)))
        return encode(self, together)

    monkeypatch.setattr(LoadedTokenizer, "encode", spied)
    told = tokenize_part(order, tokenizer)
    assert max(given) < 200 + 150
    assert sum(given) == sum(map(len, texts))
    tokens = np.fromfile(tmp_path / "training", tokenizer.dtype)
    assert tokenizer.decode(tokens.tolist()).split("<|endoftext|>")[:-1] == texts
    assert told["documents"] == 20


def test_a_part_of_endless_text_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of Parquet can stand for as many rows as their writer likes."""
    monkeypatch.setattr(document_packing, "CHECKED_BYTES", 1000)
    monkeypatch.setattr(document_packing, "BATCH_CHARACTERS", 200)
    free = [10**9 + 10**8, 10**9]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free.pop(0)))
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps({"text": "some words of a text"}) + "\n") * 2000)
    tokenizer = in_this_process(small_tokenizer(tmp_path / "tokenizer"))
    part = TextPart("jsonl", (FileRange(str(path), 0, path.stat().st_size),))
    with pytest.raises(LocalFault, match=r"has 1.00 GB left, but t takes .* kB; expected that and 1 GB more"):
        tokenize_part(TokenizeOrder(part, "text", HeldOutRule.of(0.0), tmp_path / "t", tmp_path / "h"), tokenizer)
    assert not list(tmp_path.glob(".*"))
