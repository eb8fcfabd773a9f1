"""Scores in tasks of lm-eval that lie on this disk."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dht.ground.errors import LocalFault, UsageFault
from peer.export.evaluate import evaluate_tasks
from peer.export.formats.model_folder import write_folder
from tests.kit.trainer.exported_models import NOW, anchors_of, trained_model

TEXTS = ("one line", "zwei Zeilen é", "three")


def write_task(folder: Path, name: str, **fields: object) -> Path:
    """Write a task on `TEXTS` in the harness's form; JSON is YAML."""
    data = folder / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    common = {"task": name, "dataset_path": "json", "test_split": "test", "doc_to_text": ""}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({**common, "dataset_kwargs": {"data_files": {"test": str(data)}}, **fields}))
    return path


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.filterwarnings("ignore")
def test_an_exported_folder_is_scored_and_its_tokenizer_stays_in_the_limited_child(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = trained_model(), tmp_path / "model"
    write_folder(anchors_of(model), folder, NOW, replace=False)
    of_bytes = {"output_type": "loglikelihood_rolling", "doc_to_target": "{{text}}"}
    in_bytes = write_task(tmp_path, "tiny_bytes", **of_bytes, metric_list=[{"metric": "bits_per_byte"}])
    choices = {"output_type": "multiple_choice", "doc_to_choice": ["a", "b"], "doc_to_target": 1}
    choice = write_task(tmp_path, "tiny_choice", **choices, metric_list=[{"metric": "acc"}])
    with monkeypatch.context() as no_libraries:
        no_libraries.setattr("tokenizers.Tokenizer.from_str", None)
        no_libraries.setattr("tokenizers.Tokenizer.from_file", None)
        assert evaluate_tasks(folder, f"{in_bytes},{choice}", None, "cpu", True) == 0
    facts = json.loads(capsys.readouterr().out)
    scores = {(score["task"], score["metric"]): score for score in facts["scores"]}
    assert set(scores) == {("tiny_bytes", "bits_per_byte"), ("tiny_choice", "acc")}
    assert (facts["versions"], facts["tokens"], scores["tiny_choice", "acc"]["num_samples"]) == ([7] * 4, 4321, 3)
    # The model itself gives these bits for the bytes, each text after the byte that ends texts.
    nats = 0.0
    with torch.no_grad():
        for text in TEXTS:
            tokens = torch.tensor([0, *text.encode()])
            nats += float(F.cross_entropy(model(tokens[None, :-1])[0], tokens[1:], reduction="sum"))
    expected = nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert scores["tiny_bytes", "bits_per_byte"]["value"] == pytest.approx(expected, rel=1e-4)


def test_what_the_harness_raises_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise KeyError("no_such_task")

    write_folder(anchors_of(trained_model()), tmp_path / "model", NOW, replace=False)
    monkeypatch.setattr("lm_eval.simple_evaluate", fail)
    with pytest.raises(LocalFault, match=r"lm-eval cannot measure no_such_task: KeyError.*; try one task with --limit"):
        evaluate_tasks(tmp_path / "model", "no_such_task", None, "cpu", False)


def test_without_the_harness_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(UsageFault, match=r"lm-eval, which cannot .*pip install (-e )?'\.\[eval\]'"):
        evaluate_tasks(tmp_path / "not looked at", "any", None, "cpu", False)
