"""Scores in tasks of lm-eval that lie on this disk."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dht.ground.errors import Incompatible, UsageFault
from peer.config.manifest import RunManifest
from peer.export import opened_model
from peer.export.evaluate import evaluate_tasks
from peer.export.formats.model_file import write_model
from peer.export.formats.model_folder import write_folder
from peer.export.formats.model_reading import read_model
from peer.export.model_source import ModelFileSource
from peer.export.task_scores import score_tasks
from tests.kit.trainer.exported_models import MODEL, NOW, anchors_of, trained_model

TEXTS = ("one line", "zwei Zeilen é", "three")


def write_task(folder: Path, name: str, **fields: object) -> Path:
    """A task on `TEXTS` in the harness's form; JSON is YAML."""
    folder.mkdir(exist_ok=True)
    data = folder / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    common = {"task": name, "dataset_path": "json", "test_split": "test", "doc_to_text": ""}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({**common, "dataset_kwargs": {"data_files": {"test": str(data)}}, **fields}))
    return path


def write_tasks(folder: Path) -> Path:
    of_bytes = {"output_type": "loglikelihood_rolling", "doc_to_target": "{{text}}"}
    write_task(folder, "tiny_bytes", **of_bytes, metric_list=[{"metric": "bits_per_byte"}])
    choices = {"output_type": "multiple_choice", "doc_to_choice": ["a", "b"], "doc_to_target": 1}
    write_task(folder, "tiny_choice", **choices, metric_list=[{"metric": "acc"}])
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.filterwarnings("ignore")
def test_a_model_is_scored_from_file_and_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no clone of git
    model, tasks = trained_model(), write_tasks(tmp_path / "tasks")
    write_folder(anchors_of(model), tmp_path / "model", NOW, replace=False)
    write_model(anchors_of(model), tmp_path / "model.safetensors", NOW, replace=False)
    assert evaluate_tasks(ModelFileSource(tmp_path / "model"), str(tasks), None, "cpu", True) == 0
    said, complaints = capfd.readouterr()
    assert complaints == ""  # neither git nor bars, which are for terminals
    facts = json.loads(said)
    scores = {(score["task"], score["metric"]): score for score in facts["scores"]}
    assert set(scores) == {("tiny_bytes", "bits_per_byte"), ("tiny_choice", "acc")}
    assert (facts["versions"], facts["tokens"], scores["tiny_choice", "acc"]["num_samples"]) == ([7] * 4, 4321, 3)
    # What the model itself says of these bytes, each text after the byte that ends texts.
    nats = 0.0
    with torch.no_grad():
        for text in TEXTS:
            tokens = torch.tensor([0, *text.encode()])
            nats += float(F.cross_entropy(model(tokens[None, :-1])[0], tokens[1:], reduction="sum"))
    expected = nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert scores["tiny_bytes", "bits_per_byte"]["value"] == pytest.approx(expected, rel=1e-4)

    source = ModelFileSource(tmp_path / "model.safetensors")
    assert evaluate_tasks(source, str(tasks / "tiny_choice.yaml"), 2, "cpu", False) == 0
    assert [line.split()[:2] for line in capfd.readouterr().out.splitlines()[-1:]] == [["tiny_choice", "acc"]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        (" , ", "names no task"),
        ("empty", "empty has no task in it; expected YAML files"),
        ("empty/none.yaml", "is no file; expected a task of lm-eval"),
        ("broken.yaml", "broken.yaml: .*expected tasks of lm-eval whose data is here"),
        ("far.yaml", "expected tasks of lm-eval whose data is here"),
    ],
)
def test_tasks_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: str, sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.yaml").write_text("task: [")
    write_task(tmp_path, "far", dataset_kwargs={"data_files": {"test": str(tmp_path / "nowhere.jsonl")}})
    with pytest.raises(UsageFault, match=sentence):
        score_tasks(tmp_path / "no-model", tasks, None, "cpu")


def test_without_the_harness_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(UsageFault, match=r"lm-eval, which cannot .*pip install (-e )?'\.\[eval\]'"):
        evaluate_tasks(ModelFileSource(tmp_path / "not looked at"), "any", None, "cpu", False)


def test_a_run_without_a_tokenizer_has_no_text_to_be_scored(tmp_path: Path) -> None:
    manifest = RunManifest.model_validate({"name": "tiny", "model": MODEL, "data": {"source": "tokens:"}})
    write_folder(anchors_of(trained_model(manifest), manifest), tmp_path / "model", NOW, replace=False)
    with pytest.raises(Incompatible, match=r"reads tokens of its own .* brings no tokenizer"):
        evaluate_tasks(ModelFileSource(tmp_path / "model"), "any", None, "cpu", False)


def test_a_model_that_does_not_write_is_measured_with_its_own_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(anchors_of(trained_model()), tmp_path / "model", NOW, replace=False)
    found = read_model(tmp_path / "model")
    model = found.manifest.model.model_copy(update={"task": "sequence-classification"})
    classifier = replace(found, manifest=found.manifest.model_copy(update={"model": model}))
    monkeypatch.setattr(opened_model, "read_model", lambda path: classifier)
    # The folder is an export already: another one would not help.
    with pytest.raises(Incompatible, match=r"for sequence-classification; .*lm-eval.*; load its export with transform"):
        evaluate_tasks(ModelFileSource(tmp_path / "model"), "any", None, "cpu", False)
