"""Tokenizers: made, loaded, and what is wrong with them."""

from __future__ import annotations

import builtins
import errno
import json

import pytest

from dht.ground.errors import LocalFault, UsageFault
from peer.trainer.data.loaded_tokenizer import loaded
from peer.trainer.data.tokenizing import OpenTokenizer, load_tokenizer, make_tokenizer
from peer.trainer.prepare import train_tokenizer
from tests.kit.trainer.prepared_data import in_this_process, sentences, small_tokenizer


def test_a_tokenizer_is_what_transformers_reads(tmp_path):
    from transformers import AutoTokenizer

    made = small_tokenizer(tmp_path / "made")
    mine = in_this_process(made)
    read = AutoTokenizer.from_pretrained(tmp_path / "made")
    text = "0: birds fly \u00fcber the marsh\n"
    assert read(text)["input_ids"] == mine.encode([text])[0].tolist()
    assert mine.decode(mine.encode([text])[0].tolist()) == text
    with OpenTokenizer(made.path) as elsewhere:
        tokens = elsewhere.encode([text, ""])
        assert tokens == [mine.encode([text])[0].tolist(), []]
        assert elsewhere.decode(tokens[0]) == text
    assert (read.eos_token_id, made.eos, made.vocab_size) == (0, 0, 300)
    assert load_tokenizer(tmp_path / "made").digest == made.digest


def test_the_end_of_a_document_is_found_or_asked_for(tmp_path):
    made = small_tokenizer(tmp_path / "made")
    config = tmp_path / "made" / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": {"content": "zebra"}}))
    with pytest.raises(UsageFault, match=r"no token .zebra. that could end a document"):
        load_tokenizer(tmp_path / "made")
    config.unlink()
    assert load_tokenizer(made.path).eos == 0
    content = made.path.read_text().replace("<|endoftext|>", "<|over|>")
    made.path.write_text(content)
    with pytest.raises(
        UsageFault, match=r"does not specify the token.*eos_token.*`peer data prepare` also accepts --eos TOKEN"
    ):
        load_tokenizer(made.path)
    assert load_tokenizer(made.path, "<|over|>").eos == 0


def test_a_person_is_told_how_far_it_is(tmp_path):
    (tmp_path / "text.txt").write_text("birds fly over the marsh\n" * 200)
    seconds = iter(range(0, 1000, 2))
    told = []
    train_tokenizer([str(tmp_path / "text.txt")], 300, tmp_path / "made", tell=told.append, clock=lambda: next(seconds))
    assert told[0] == "reading 1 file"
    assert told[1:] == ["5000 letters read", "5000 letters read; choosing 300 tokens"]


def test_what_was_left_out_is_said_where_nothing_is_left(tmp_path):
    (tmp_path / "picture.txt").write_bytes(bytes(100))
    said = []
    with pytest.raises(UsageFault, match="there is no text"):
        train_tokenizer([str(tmp_path / "picture.txt")], 300, tmp_path / "made", say=said.append)
    assert said == ["left out or repaired: binary files (1)"]


def test_a_full_disk_leaves_no_folder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("peer.trainer.data.shards.os.replace", full)
    with pytest.raises(LocalFault, match="No space left on device"):
        make_tokenizer(sentences(20), 300, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_is_no_tokenizer_is_a_sentence(tmp_path):
    with pytest.raises(UsageFault, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageFault, match="is not a tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(UsageFault, match="already exists"):
        make_tokenizer(sentences(5), 300, tmp_path)
    with pytest.raises(UsageFault, match="at least 257"):
        make_tokenizer(sentences(5), 100, tmp_path / "new")
    with pytest.raises(UsageFault, match="there is no text"):
        make_tokenizer([], 300, tmp_path / "new")


def test_without_the_library_a_sentence_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "tokenizers":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageFault, match=r"pip install (-e )?'\.\[hf\]'"):
        loaded(b"{}", "tokenizer.json", None)


def test_rows_of_which_none_has_text_are_named_and_one_without_is_no_fault(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"body": "a"}\n' * 200)
    with pytest.raises(UsageFault, match="no text in field 'text'; its rows have body"):
        train_tokenizer([str(tmp_path / "rows.jsonl")], 300, tmp_path / "made", say=lambda text: None)
    (tmp_path / "more.jsonl").write_text('{"text": "some words"}\n')
    said = []
    assert train_tokenizer([str(tmp_path)], 300, tmp_path / "made", say=said.append).vocab_size
    assert said == ["left out or repaired: rows without the field (200)"]


def test_a_byte_order_mark_before_a_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"\xef\xbb\xbf{}")
    with pytest.raises(UsageFault, match="begins with a byte order mark, which"):
        load_tokenizer(tmp_path)
