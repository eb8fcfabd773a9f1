"""Whatever a stranger's tokenizer does to its library, wherever it is used: one sentence, within the limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from dht.ground.errors import LocalFault
from peer.config.manifest import RunManifest
from peer.export.evaluate import evaluate_tasks
from peer.export.opened_model import OpenedModel
from peer.export.sample import written
from peer.limited_child.limited_child import ChildLimits
from peer.trainer.data import tokenize_pool, tokenizing
from peer.trainer.data.tokenizing import OpenTokenizer, load_tokenizer
from peer.trainer.hf.manifest_from_config import describe_model
from peer.trainer.prepare import prepare_data
from tests.kit.trainer.hostile_tokenizers import (
    AT_DECODE,
    AT_ENCODE,
    AT_LOAD,
    LONG_TEXTS,
    NORMAL_TEXT,
    hostile_tokenizer,
)
from tests.kit.trainer.prepared_data import json_lines, sentences, small_tokenizer

pytest.importorskip("tokenizers")
WITHIN = (
    r"(PanicException|SIGABRT|took more than 5 s|took more than 315 MB).*; expected an answer within 315 MB and 5 s; "
)


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ChildLimits(memory_bytes=300 << 20, seconds=5)
    monkeypatch.setattr(tokenizing, "LIMITS", limits)
    monkeypatch.setattr(tokenize_pool, "LIMITS", limits)


@pytest.mark.parametrize("kind", AT_LOAD)
def test_a_file_that_cannot_be_loaded(tmp_path: Path, kind: str) -> None:
    path = hostile_tokenizer(tmp_path / "model", kind)
    with pytest.raises(LocalFault, match=f"the tokenizer {path} .*{WITHIN}"):
        load_tokenizer(path)
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 5}))
    with pytest.raises(LocalFault, match=f"the tokenizer {path} .*{WITHIN}"):
        describe_model(tmp_path / "model")


@pytest.mark.parametrize("kind", AT_ENCODE)
def test_a_text_that_cannot_be_encoded(tmp_path: Path, kind: str) -> None:
    path = hostile_tokenizer(tmp_path / "tokenizer", kind)
    with OpenTokenizer(path) as tokenizer, pytest.raises(LocalFault, match=f"the tokenizer {path} .*{WITHIN}"):
        tokenizer.encode([NORMAL_TEXT])
    (tmp_path / "text.txt").write_text(NORMAL_TEXT)
    with pytest.raises(LocalFault, match=f"text with {path} .*{WITHIN}"):
        prepare_data([str(tmp_path / "text.txt")], path, tmp_path / "out", num_processes=1, say=lambda text: None)


@pytest.mark.parametrize("kind", AT_DECODE)
def test_tokens_that_cannot_be_decoded(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hostile_tokenizer(tmp_path, kind)
    monkeypatch.setattr("peer.export.sample.sample_tokens", lambda *_, **__: iter([2, 3, 2]))
    manifest = RunManifest.model_validate({"name": "tiny", "model": {"vocab_size": 5}})
    opened = OpenedModel(nn.Linear(1, 1), manifest, "tiny-0", (), 0, path)
    with pytest.raises(LocalFault, match=f"the tokenizer {path} .*{WITHIN}"):
        list(written(opened, opened.model, "a", 3, 0.0, 1))


def test_no_token_stands_for_a_long_text(tmp_path: Path) -> None:
    """A sample of 1,000 tokens would take 100 MB."""
    path = hostile_tokenizer(tmp_path, LONG_TEXTS)
    with OpenTokenizer(path) as tokenizer:
        assert tokenizer.decode([1, 1]) == "aa"
        with pytest.raises(LocalFault, match="returns no valid text"):
            tokenizer.decode([3])


def test_tasks_of_the_harness_meet_no_such_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hostile_tokenizer(tmp_path, AT_LOAD[0])
    pytest.importorskip("lm_eval")
    monkeypatch.setattr("peer.export.evaluate.run_json", lambda folder: "")
    monkeypatch.setattr("peer.export.evaluate.read_header", lambda folder, text: ({}, None, None))
    with pytest.raises(LocalFault, match=f"the tokenizer {path} .*{WITHIN}"):
        evaluate_tasks(tmp_path, "tasks", 1, "cpu", as_json=False)


def test_texts_of_the_harness_are_encoded_within_the_limits(tmp_path: Path) -> None:
    path = hostile_tokenizer(tmp_path, AT_ENCODE[1])
    pytest.importorskip("transformers")
    from peer.export.limited_tokenizer import LimitedTokenizer

    with OpenTokenizer(path) as tokenizer, pytest.raises(LocalFault, match=f"the tokenizer {path} .*{WITHIN}"):
        LimitedTokenizer(tokenizer)(NORMAL_TEXT)


def test_a_folder_of_shards_may_be_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has another working folder."""
    monkeypatch.chdir(tmp_path)
    small_tokenizer(Path("tokenizer"))
    json_lines(Path("corpus.jsonl"), sentences(40))
    prepare_data(["corpus.jsonl"], Path("tokenizer"), Path("out"), num_processes=1, say=lambda text: None)
    assert list(Path("out").glob("*.u16"))


def test_tokens_above_the_model_s_are_a_sentence(tmp_path: Path) -> None:
    path = hostile_tokenizer(tmp_path, AT_ENCODE[0])
    manifest = RunManifest.model_validate({"name": "tiny", "model": {"vocab_size": 4}})
    opened = OpenedModel(nn.Linear(1, 1), manifest, "tiny-0", (), 0, path)
    with pytest.raises(LocalFault, match="the tokenizer of run tiny-0 has 5 tokens, but its model has 4"):
        written(opened, opened.model, "a", 3, 0.0, 1)
